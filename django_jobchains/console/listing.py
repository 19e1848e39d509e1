"""``list``: chains or jobs, the newest first, page by page."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_jobchains.chains import Chain, Job
from django_jobchains.console import arguments
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.tables import Cell, Column
from django_jobchains.console.words import counted, first_line, span
from django_jobchains.exceptions import InvalidCursor
from django_jobchains.pages import MOST_ON_A_PAGE
from django_jobchains.shown_statuses import shown_status

MOST_ROWS = 100_000

CHAINS = (
    Column("CHAIN"),
    Column("STATUS"),
    Column("TYPE", least=8),
    Column("CREATED", is_number=True, is_optional=True),
    Column("TOOK", is_number=True, is_optional=True),
    Column("STEP", is_number=True, is_optional=True),
    Column("AT", least=8, is_optional=True),
    Column("LAST ERROR", least=10, is_optional=True),
)
JOBS = (
    Column("JOB"),
    Column("STATUS"),
    Column("TYPE", least=8),
    Column("CREATED", is_number=True, is_optional=True),
    Column("STEP", is_number=True, is_optional=True),
    Column("ATTEMPT", is_number=True, is_optional=True),
    Column("QUEUE", least=8, is_optional=True),
    Column("LAST ERROR", least=10, is_optional=True),
)


class List(Subcommand):
    name = "list"
    help = "lists chains, or jobs with --jobs, the newest first"
    forms = ("table", "json", "ids")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--jobs", action="store_true", help="jobs instead of chains")
        parser.add_argument(
            "--type", action="append", default=[], metavar="NAME", help="of this type, whole; repeat it"
        )
        parser.add_argument(
            "--status", action="append", default=[], type=arguments.status, metavar="STATUS", help="repeat it"
        )
        parser.add_argument("--open", action="store_true", help="only what may still run")
        parser.add_argument(
            "--blocked-by", type=arguments.id_of, metavar="ID", help="that wait, or did, for this chain"
        )
        parser.add_argument("--oldest", action="store_true", help="the oldest first")
        parser.add_argument("--limit", type=arguments.positive, default=50, metavar="N", help="so many rows (50)")
        parser.add_argument("--after", metavar="CURSOR", help="go on where the last page ended")

    def run(self, call: Call) -> None:
        if call["limit"] > MOST_ROWS:
            raise CommandError(f"--limit {call['limit']}: at most {MOST_ROWS:,} rows; use --after for the others.")
        rows, cursor = _rows(call)
        {"table": _table, "json": _json, "ids": _ids}[call.screen.form](rows, cursor, call)


def _rows(call: Call) -> tuple[list[Any], str | None]:
    """Page after page of what was asked for."""
    listing, cursor = _asked(call), call["after"]
    rows: list[Any] = []
    while True:
        try:
            page = listing.page(cursor, min(call["limit"] - len(rows), MOST_ON_A_PAGE))
        except InvalidCursor as error:
            raise CommandError(f"--after: {error}") from error
        rows += page.items
        cursor = page.next_cursor
        if cursor is None or len(rows) >= call["limit"]:
            return rows, cursor


def _asked(call: Call) -> Any:
    listing: Any = (Job if call["jobs"] else Chain).objects.using(call.using)
    order = ("chain_id", "chain_index") if call["jobs"] else ("id",)
    if call["status"]:
        listing = listing.with_status(*call["status"])
    if call["open"]:
        listing = listing.incomplete()
    if call["type"]:
        listing = listing.of_type(*call["type"])
    if call["blocked_by"]:
        listing = listing.blocked_by(call["blocked_by"])
    if call["oldest"]:
        listing = listing.order_by(*order)
    listing = listing.all() if call["jobs"] else listing.select_related("current_job").defer("current_job__input")
    return listing.defer("input", "output", *([] if call["jobs"] else ["current_job__output"]))


def _table(rows: list[Any], cursor: str | None, call: Call) -> None:
    screen = call.screen
    if not rows:
        screen.line(f"No {'jobs' if call['jobs'] else 'chains'}.")
        return
    screen.table(JOBS if call["jobs"] else CHAINS, [(_job if call["jobs"] else _chain)(row, call) for row in rows])
    if cursor:
        screen.out.write("")
        screen.out.write(f"More: --after {cursor}")


def _chain(chain: Chain, call: Call) -> list[Cell | str]:
    job, times = chain.current_job, call.screen.times
    took = times.between(chain.created_at, chain.finished_at)
    return [
        str(chain.id),
        call.screen.status(shown_status(job, times)),
        chain.type_name,
        times.ago(chain.created_at),
        span(took) if took is not None and chain.finished_at else "",
        str(job.chain_index + 1),
        job.type_name if job.chain_index else "",
        first_line(job.last_error),
    ]


def _job(job: Job, call: Call) -> list[Cell | str]:
    return [
        str(job.id),
        call.screen.status(shown_status(job, call.screen.times)),
        job.type_name,
        call.screen.times.ago(job.created_at),
        str(job.chain_index + 1),
        str(job.attempt),
        job.queue,
        first_line(job.last_error),
    ]


def _json(rows: list[Any], cursor: str | None, call: Call) -> None:
    name = "jobs" if call["jobs"] else "chains"
    call.screen.json({name: [(_job_json if call["jobs"] else _chain_json)(row, call) for row in rows], "next": cursor})


def _chain_json(chain: Chain, call: Call) -> dict[str, Any]:
    times = call.screen.times
    return {
        "id": chain.id,
        "type": chain.type_name,
        "status": chain.status,
        "created_at": times.iso(chain.created_at),
        "finished_at": times.iso(chain.finished_at),
        "deduplication_key": chain.deduplication_key,
        "last_error": chain.last_error,
        "current_job": _job_json(chain.current_job, call),
    }


def _job_json(job: Job, call: Call) -> dict[str, Any]:
    times = call.screen.times
    return {
        "id": job.id,
        "chain": job.chain_id,
        "step": job.chain_index + 1,
        "type": job.type_name,
        "chain_type": job.chain_type_name,
        "status": job.status,
        "queue": job.queue,
        "priority": job.priority,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "run_at": times.iso(job.run_at),
        "created_at": times.iso(job.created_at),
        "last_attempt_at": times.iso(job.last_attempt_at),
        "finished_at": times.iso(job.finished_at),
        "worker": job.leased_by,
        "cancel_requested_at": times.iso(job.cancel_requested_at),
        "last_error": job.last_error,
    }


def _ids(rows: list[Any], cursor: str | None, call: Call) -> None:
    for row in rows:
        call.screen.out.write(str(row.id))
    if cursor:
        call.screen.errors.write(f"{counted(len(rows), 'id')}, there are more: --after {cursor}")
