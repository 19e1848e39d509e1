"""``status``: shows workers, queues, types, records, failures and problems. ``top`` and ``queues`` share its tables."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from django_jobchains.cli.screen import Cell, Column, counted, first_line, status_cell
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.models import Schedule
from django_jobchains.monitoring import (
    AttemptTotals,
    Overview,
    PoolState,
    QueueFacts,
    RecordFacts,
    Throughput,
    TypeFacts,
    WorkerFacts,
    overview,
    record_overview,
    throughput,
)
from django_jobchains.monitoring.facts import troubled_schedules
from django_jobchains.monitoring.problems import Problem, find_problems
from django_jobchains.text.humanize import age, ago, memory, number
from django_jobchains.text.redaction import redacted_text


class Section(NamedTuple):
    """A table with its title. ``otherwise``: what is shown if it has no rows, or "" to omit it then."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    otherwise: str = ""


class StatusCommand(Subcommand):
    name = "status"
    help = "shows workers, queues with their backlog, records, the types that fail, and problems"

    def run(self, call: Invocation) -> None:
        found, attempts, records = overview(call.using), throughput(call.using), record_overview(call.using)
        schedules = troubled_schedules(Schedule.objects.using(call.using))
        problems = [text_of(problem) for problem in find_problems(found, records, schedules=schedules)]
        if not found.is_complete:
            problems.append("There are more queues and types than are shown.")
        screen = call.screen
        if screen.is_json:
            more = {"due": found.due, "throughput": throughput_json(attempts)}
            screen.json({**asdict(found), **more, "records": [asdict(kind) for kind in records]}, warnings=problems)
            return
        for index, section in enumerate(_sections(found, records)):
            screen.line() if index else None
            screen.heading(section.title)
            if section.rows:
                screen.table(section.columns, section.rows, "  ")
            else:
                screen.line(section.otherwise, begin="  ")
        screen.line()
        screen.line(throughput_line(attempts))
        for index, problem in enumerate(problems):
            screen.line() if not index else None
            screen.sentence(problem, "warning", begin="! ")


def text_of(problem: Problem) -> str:
    """Return the sentence about a problem, with redacted names."""
    return replace(problem, subject=redacted_text(problem.subject), detail=redacted_text(problem.detail)).text


def _sections(found: Overview, records: Sequence[RecordFacts]) -> Iterator[Section]:
    sections = (
        workers_section(found)._replace(otherwise="No workers are running. Start one with manage.py run_jobworker."),
        pools_section(found),
        queues_section(found)._replace(otherwise="No jobs are waiting or running."),
        _types_section(found),
        records_section(found, records),
        failing_section(found),
    )
    return (section for section in sections if section.rows or section.otherwise)


def workers_section(found: Overview) -> Section:
    columns = (
        Column("WORKER", lambda worker: worker.id, min_width=12),
        Column("BUSY", lambda worker: f"{worker.busy} of {worker.slots}", is_number=True),
        Column("STATE", lambda worker: status_cell(_worker_state(worker))),
        Column("LAST SEEN", lambda worker: ago(worker.heartbeat_age_seconds), is_number=True),
        Column("UPTIME", lambda worker: age(worker.up_seconds), is_number=True),
        Column(
            "QUEUES",
            lambda worker: "all" if worker.queues is None else ", ".join(worker.queues),
            min_width=8,
            is_optional=True,
        ),
        Column("TYPES", lambda worker: number(len(worker.type_names)), is_number=True, is_optional=True),
        Column("VERSION", lambda worker: worker.version, is_optional=True),
    )
    return Section("Workers", columns, found.workers)


def _worker_state(worker: WorkerFacts) -> str:
    texts = {"stuck": f"stuck ({worker.stuck})", "maintenance": "maintenance only", "busy": "running"}
    return texts.get(worker.state, worker.state)


def pools_section(found: Overview) -> Section:
    """Return the table of the workers' pools, as pairs of a worker's id and a pool."""
    columns = (
        Column("WORKER", lambda row: row[0], min_width=12),
        Column("POOL", lambda row: f"{row[1].level} {row[1].key}"),
        Column("CHILDREN", lambda row: f"{row[1].workers} of {row[1].max_workers}", is_number=True),
        Column("BUSY", lambda row: number(row[1].busy), is_number=True),
        Column("STATE", lambda row: status_cell(_pool_state(row[1]))),
        Column("MEMORY", lambda row: memory(row[1].rss_bytes), is_number=True),
        Column("LARGEST", lambda row: memory(row[1].largest_rss_bytes), is_number=True),
        Column("CRASHED", lambda row: number(row[1].crashed), is_number=True),
        Column("KILLED", lambda row: number(row[1].killed), is_number=True),
        Column("RECYCLED", lambda row: number(row[1].recycled), is_number=True, is_optional=True),
    )
    return Section("Child processes", columns, [(worker.id, pool) for worker in found.workers for pool in worker.pools])


def _pool_state(pool: PoolState) -> str:
    return "running" if pool.state == "busy" else pool.state.replace("_", " ")


def queues_section(found: Overview) -> Section:
    columns = (
        Column("QUEUE", lambda queue: queue.name, min_width=8),
        *_due_or_running(found),
        Column("STATE", lambda queue: status_cell(_queue_state(queue)), min_width=8),
        *_waiting(found),
    )
    return Section("Queues", columns, found.queues)


def _due_or_running(found: Overview) -> Iterator[Column]:
    """Yield the columns with due and running jobs of a queue or type."""

    def oldest(facts: QueueFacts | TypeFacts) -> str:
        return "" if facts.oldest_due_age_seconds is None else age(facts.oldest_due_age_seconds)

    yield Column("DUE", lambda facts: found.shown(facts, "due"), is_number=True)
    yield Column("OLDEST", oldest, is_number=True)
    yield Column("RUNNING", lambda facts: found.shown(facts, "running"), is_number=True)


def _waiting(found: Overview) -> Iterator[Column]:
    """Yield the columns of the jobs of a queue or type that no worker may start yet."""
    yield Column("SCHEDULED", lambda facts: found.shown(facts, "scheduled"), is_number=True, is_optional=True)
    yield Column("BLOCKED", lambda facts: found.shown(facts, "blocked"), is_number=True, is_optional=True)
    yield Column("OUTSIDE", lambda facts: found.shown(facts, "outside"), is_number=True, is_optional=True)


def _queue_state(queue: QueueFacts) -> str:
    limit = "" if queue.slot_limit is None else f"at most {queue.slot_limit} at once"
    return ", ".join(filter(None, ("paused" if queue.is_paused else "", limit))) or "open"


def _types_section(found: Overview) -> Section:
    """Return the table of the types that have jobs."""
    columns = (
        Column("TYPE", lambda kind: kind.name, min_width=12),
        *_due_or_running(found),
        Column("FAILED", lambda kind: Cell(number(kind.failed), "failed" if kind.failed else ""), is_number=True),
        Column("WORKERS", lambda kind: Cell(str(kind.workers), "error" if kind.is_unserved else ""), is_number=True),
        *_waiting(found),
    )
    return Section("Types", columns, [kind for kind in found.types if kind.has_jobs])


def records_section(found: Overview, records: Sequence[RecordFacts]) -> Section:
    def failed(kind: RecordFacts) -> Cell:
        return Cell(found.shown(kind, "failed"), "failed" if kind.failed else "")

    columns = (
        Column("RECORDS", lambda kind: kind.name, min_width=12),
        Column("MODEL", lambda kind: kind.model, min_width=8),
        Column("WAITING", lambda kind: found.shown(kind, "queued"), is_number=True),
        Column("OLDEST", lambda kind: age(kind.oldest_seconds) if kind.oldest_seconds else "", is_number=True),
        Column("PROCESSING", lambda kind: found.shown(kind, "processing"), is_number=True),
        Column("ERRORED", lambda kind: found.shown(kind, "errored"), is_number=True),
        Column("FAILED", failed, is_number=True),
        Column("QUEUE", lambda kind: kind.queue, is_optional=True),
    )
    return Section("Records", columns, [kind for kind in records if not kind.problem])


def failing_section(found: Overview) -> Section:
    columns = (
        Column("TYPE", lambda kind: kind.name, min_width=12),
        Column("ATTEMPTS", lambda kind: number(kind.attempts), is_number=True),
        Column("JOBS", lambda kind: number(kind.jobs), is_number=True),
        Column("LAST", lambda kind: ago(kind.last_age_seconds), is_number=True),
        Column("LAST ERROR", lambda kind: first_line(kind.last_error), min_width=10),
        Column("FAILED JOBS", lambda kind: number(kind.failed_jobs), is_number=True, is_optional=True),
    )
    return Section("Failed attempts in the last day", columns, found.failing)


def throughput_line(found: Throughput) -> str:
    return f"Last minute: {_totals(found.last_minute)} · last hour: {_totals(found.last_hour)}"


def throughput_json(found: Throughput) -> dict[str, Any]:
    return {name: asdict(getattr(found, name)) for name in ("last_minute", "last_hour", "last_day")}


def _totals(totals: AttemptTotals) -> str:
    jobs = f"{number(totals.completed)} jobs completed, {number(totals.jobs_failed)} failed"
    return f"{jobs} ({counted(totals.failed, 'failed attempt')})"
