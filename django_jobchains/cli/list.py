"""``list``: lists chains or jobs, newest first, page by page."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_jobchains.chains import Chain, Job
from django_jobchains.cli import converters
from django_jobchains.cli.screen import Column, ElapsedTimes, counted, first_line, status_cell
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.db.keyset import MAX_PAGE_SIZE
from django_jobchains.declare.labels import MAX_INPUT_LENGTH, label_of
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidCursor
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.models.payload_fields import short_input
from django_jobchains.store import get_store
from django_jobchains.text.humanize import span
from django_jobchains.values import did_you_mean

#: The limit of rows in one call.
MAX_ROWS = 100_000


class ListCommand(Subcommand):
    name = "list"
    help = "lists chains, or jobs with --jobs, newest first"
    forms = ("table", "json", "ids")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--jobs", action="store_true", help="jobs instead of chains")
        parser.add_argument(
            "--type", action="append", default=[], metavar="TYPE", help="the complete name of a type; may be repeated"
        )
        parser.add_argument(
            "--chain-type",
            action="append",
            default=[],
            metavar="TYPE",
            help="with --jobs, the type that their chains start with; may be repeated",
        )
        parser.add_argument(
            "--status",
            action="append",
            default=[],
            type=converters.status,
            metavar="STATUS",
            help="a status as it is shown; may be repeated. pending includes scheduled, running stopping, completed "
            "continued, and cancelled expired ones",
        )
        parser.add_argument(
            "--incomplete", action="store_true", help="only those that may still run: blocked, pending or running"
        )
        parser.add_argument(
            "--blocked-by", type=converters.id_of, metavar="ID", help="only those that have this chain as a blocker"
        )
        parser.add_argument("--roots", action="store_true", help="only chains that no job has as a blocker")
        for option, text in (("--created-after", "at this time or later"), ("--created-before", "before this time")):
            parser.add_argument(
                option, type=converters.time, metavar="TIME", help=f"only those created {text}, as in 2026-11-22T09:30"
            )
        parser.add_argument("--oldest", action="store_true", help="oldest first")
        text = f"the number of rows (50), at most {MAX_ROWS:,}; --after continues"
        parser.add_argument("--limit", type=converters.integer(1, MAX_ROWS), default=50, metavar="N", help=text)
        parser.add_argument("--after", metavar="CURSOR", help="continue after the last page")

    def run(self, call: Invocation) -> None:
        rows, cursor = _rows(call)
        if not rows:
            _warn_of_unknown_types(call)
        {"table": _table, "json": _json, "ids": _ids}[call.screen.form](rows, cursor, call)


def _warn_of_unknown_types(call: Invocation) -> None:
    """Warn of types that no app declares, because they may be misspelled."""
    registry = get_registry()
    registry.add_tasks(get_store(call.using).task_names.read)
    for name in dict.fromkeys((*call["type"], *call["chain_type"])):
        if registry.find(name) is None:
            nearest = did_you_mean(name, registry.job_types())
            call.screen.errors.write(f"No app declares the type {name!r}.{nearest}")


def _rows(call: Invocation) -> tuple[list[Any], str | None]:
    """Read as many pages as needed. Return the rows and the next cursor."""
    listing, cursor = _listing(call), call["after"]
    if call.screen.form == "table":
        listing = listing.annotate(input_text=short_input(MAX_INPUT_LENGTH))
    rows: list[Any] = []
    while True:
        try:
            page = listing.page(cursor, min(call["limit"] - len(rows), MAX_PAGE_SIZE))
        except InvalidCursor as error:
            raise CommandError(f"--after: {error}") from error
        rows += page.items
        cursor = page.next_cursor
        if cursor is None or len(rows) >= call["limit"]:
            return rows, cursor


def _listing(call: Invocation) -> Any:
    listing: Any = (Job if call["jobs"] else Chain).objects.using(call.using)
    if ShownStatus.CONTINUED in call["status"] and not call["jobs"]:
        raise CommandError("--status continued is for jobs: add --jobs. A chain has the status of its last job.")
    if call["status"]:
        listing = listing.with_status(*call["status"])
    if call["incomplete"]:
        listing = listing.incomplete()
    if call["type"]:
        listing = listing.of_type(*call["type"])
    if call["chain_type"]:
        listing = listing.of_chain_type(*call["chain_type"])
    if call["blocked_by"]:
        listing = listing.blocked_by(call["blocked_by"])
    if call["roots"]:
        listing = listing.roots()
    if call["created_after"] or call["created_before"]:
        listing = listing.created_between(call["created_after"], call["created_before"])
    if call["oldest"]:
        listing = listing.order_by(*listing.page_orders[1])
    listing = listing.all() if call["jobs"] else listing.select_related("current_job").defer("current_job__input")
    return listing.defer("input", "output", *([] if call["jobs"] else ["current_job__output"]))


def _label(row: Chain | Job) -> str:
    return label_of(get_registry().find(row.type_name), row.input_text)  # type: ignore[union-attr]  # annotated


def _table(rows: list[Any], cursor: str | None, call: Invocation) -> None:
    screen = call.screen
    if not rows:
        screen.line(f"No {'jobs' if call['jobs'] else 'chains'}.")
        return
    columns = (_job_columns if call["jobs"] else _chain_columns)(screen.times)
    has_labels = any(map(_label, rows))
    screen.table([column for column in columns if has_labels or column.value is not _label], rows)
    if cursor:
        screen.out.write("")
        screen.out.write(f"More: --after {cursor}")


def _chain_columns(times: ElapsedTimes) -> tuple[Column, ...]:
    def duration(chain: Chain) -> str:
        seconds = times.between(chain.created_at, chain.finished_at) if chain.finished_at else None
        return "" if seconds is None else span(seconds)

    def current(chain: Chain) -> str:
        return chain.current_job.type_name if chain.current_job.chain_index else ""

    return (
        Column("CHAIN", lambda chain: str(chain.id)),
        Column("STATUS", lambda chain: status_cell(shown_status(chain.current_job, times))),
        Column("TYPE", lambda chain: chain.type_name, min_width=8),
        Column("LABEL", _label, min_width=8, is_optional=True),
        Column("CREATED", lambda chain: times.ago(chain.created_at), is_number=True, is_optional=True),
        Column("DURATION", duration, is_number=True, is_optional=True),
        Column("STEP", lambda chain: str(chain.current_job.chain_index + 1), is_number=True, is_optional=True),
        Column("CURRENT", current, min_width=8, is_optional=True),
        Column("LAST ERROR", lambda chain: first_line(chain.last_error), min_width=10, is_optional=True),
    )


def _job_columns(times: ElapsedTimes) -> tuple[Column, ...]:
    return (
        Column("JOB", lambda job: str(job.id)),
        Column("STATUS", lambda job: status_cell(shown_status(job, times))),
        Column("TYPE", lambda job: job.type_name, min_width=8),
        Column("LABEL", _label, min_width=8, is_optional=True),
        Column("CREATED", lambda job: times.ago(job.created_at), is_number=True, is_optional=True),
        Column("STEP", lambda job: str(job.chain_index + 1), is_number=True, is_optional=True),
        Column("ATTEMPT", lambda job: str(job.attempt), is_number=True, is_optional=True),
        Column("QUEUE", lambda job: job.queue, min_width=8, is_optional=True),
        Column("LAST ERROR", lambda job: first_line(job.last_error), min_width=10, is_optional=True),
    )


def _json(rows: list[Any], cursor: str | None, call: Invocation) -> None:
    name = "jobs" if call["jobs"] else "chains"
    call.screen.json({name: [(_job_json if call["jobs"] else _chain_json)(row, call) for row in rows], "next": cursor})


def _chain_json(chain: Chain, call: Invocation) -> dict[str, Any]:
    return {**chain_json(chain, call.screen.times), "current_job": _job_json(chain.current_job, call)}


def _job_json(job: Job, call: Invocation) -> dict[str, Any]:
    return {**job_json(job, call.screen.times), "chain": job.chain_id, "chain_type": job.chain_type_name}


def chain_json(chain: Chain, times: ElapsedTimes) -> dict[str, Any]:
    return {
        "id": chain.id,
        "type": chain.type_name,
        "status": chain.status,
        "is_expired": chain.is_expired,
        "created_at": times.iso(chain.created_at),
        "finished_at": times.iso(chain.finished_at),
        "deduplication_key": chain.deduplication_key,
        "last_error": chain.last_error,
    }


def job_json(job: Job, times: ElapsedTimes) -> dict[str, Any]:
    return {
        "id": job.id,
        "step": job.chain_index + 1,
        "type": job.type_name,
        "status": job.status,
        "is_expired": job.is_expired,
        "queue": job.queue,
        "priority": job.priority,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "run_at": times.iso(job.run_at),
        "expires_at": times.iso(job.expires_at),
        "created_at": times.iso(job.created_at),
        "last_attempt_at": times.iso(job.last_attempt_at),
        "finished_at": times.iso(job.finished_at),
        "worker": job.leased_by,
        "cancel_requested_at": times.iso(job.cancel_requested_at),
        "last_error": job.last_error,
    }


def _ids(rows: list[Any], cursor: str | None, call: Invocation) -> None:
    for row in rows:
        call.screen.out.write(str(row.id))
    if cursor:
        call.screen.errors.write(f"{counted(len(rows), 'id')}, more with --after {cursor}")
