"""``status``: shows workers, queues, types, records and failures. ``top`` and ``queues`` share its tables."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django_jobchains.cli.formatting import first_line
from django_jobchains.cli.screen import Screen
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.cli.tables import Cell, Column
from django_jobchains.monitoring import (
    AttemptTotals,
    FailingType,
    Overview,
    QueueFacts,
    RecordFacts,
    Throughput,
    TypeFacts,
    WorkerFacts,
    overview,
    record_overview,
    throughput,
)
from django_jobchains.monitoring.problems import find_problems
from django_jobchains.text.humanize import age, memory, number

Rows = list[list[Cell | str]]

WORKERS = (
    Column("WORKER", min_width=12),
    Column("BUSY", is_number=True),
    Column("STATE"),
    Column("LAST SEEN", is_number=True),
    Column("UPTIME", is_number=True),
    Column("QUEUES", min_width=8, is_optional=True),
    Column("TYPES", is_number=True, is_optional=True),
    Column("VERSION", is_optional=True),
)
POOLS = (
    Column("WORKER", min_width=12),
    Column("POOL"),
    Column("CHILDREN", is_number=True),
    Column("BUSY", is_number=True),
    Column("STATE"),
    Column("MEMORY", is_number=True),
    Column("LARGEST", is_number=True),
    Column("CRASHED", is_number=True),
    Column("KILLED", is_number=True),
    Column("RECYCLED", is_number=True, is_optional=True),
)
QUEUES = (
    Column("QUEUE", min_width=8),
    Column("DUE", is_number=True),
    Column("OLDEST", is_number=True),
    Column("RUNNING", is_number=True),
    Column("STATE", min_width=8),
    Column("SCHEDULED", is_number=True, is_optional=True),
    Column("BLOCKED", is_number=True, is_optional=True),
    Column("EXTERNAL", is_number=True, is_optional=True),
)
TYPES = (
    Column("TYPE", min_width=12),
    Column("DUE", is_number=True),
    Column("OLDEST", is_number=True),
    Column("RUNNING", is_number=True),
    Column("FAILED", is_number=True),
    Column("WORKERS", is_number=True),
    Column("SCHEDULED", is_number=True, is_optional=True),
    Column("BLOCKED", is_number=True, is_optional=True),
    Column("EXTERNAL", is_number=True, is_optional=True),
)
RECORDS = (
    Column("RECORDS", min_width=12),
    Column("MODEL", min_width=8),
    Column("QUEUED", is_number=True),
    Column("OLDEST", is_number=True),
    Column("PROCESSING", is_number=True),
    Column("ERRORED", is_number=True),
    Column("FAILED", is_number=True),
    Column("QUEUE", is_optional=True),
)
FAILING = (
    Column("TYPE", min_width=12),
    Column("ATTEMPTS", is_number=True),
    Column("JOBS", is_number=True),
    Column("LAST", is_number=True),
    Column("LAST ERROR", min_width=10),
)


class StatusCommand(Subcommand):
    name = "status"
    help = "shows workers, queues with their backlog, records, and the types that fail"

    def run(self, call: Invocation) -> None:
        found, attempts, records = overview(call.using), throughput(call.using), record_overview(call.using)
        if call.screen.is_json:
            more = {"due": found.due, "throughput": throughput_json(attempts), "warnings": warnings(found, records)}
            call.screen.json({**asdict(found), **more, "records": [asdict(kind) for kind in records]})
        else:
            show(found, attempts, records, call.screen)


def show(found: Overview, attempts: Throughput, records: Sequence[RecordFacts], screen: Screen) -> None:
    sections = (
        ("Workers", WORKERS, worker_rows(found.workers, screen), "No workers are running: manage.py run_jobworker"),
        ("Child processes", POOLS, pool_rows(found.workers, screen), ""),
        ("Queues", QUEUES, queue_rows(found, screen), "No jobs are waiting or running."),
        ("Types", TYPES, type_rows(found, screen), ""),
        ("Records", RECORDS, record_rows(records, found, screen), ""),
        ("Failed in the last day", FAILING, failing_rows(found.failing), ""),
    )
    for index, (title, columns, rows, otherwise) in enumerate(sections):
        if rows or otherwise:
            screen.line() if index else None
            screen.heading(title)
            screen.table(columns, rows, "  ") if rows else screen.line(otherwise, begin="  ")
    screen.line()
    screen.line(throughput_line(attempts))
    for index, warning in enumerate(warnings(found, records)):
        screen.line() if not index else None
        screen.line(warning, screen.style.WARNING, begin="! ")


def warnings(found: Overview, records: Sequence[RecordFacts] = ()) -> list[str]:
    """Return sentences about everything that needs attention."""
    more = [] if found.is_complete else ["There are more queues and types than are shown."]
    return [problem.text for problem in find_problems(found, records)] + more


def worker_rows(workers: Sequence[WorkerFacts], screen: Screen) -> Rows:
    return [
        [
            worker.id,
            f"{worker.busy} of {worker.slots}",
            screen.status(_worker_state(worker)),
            f"{age(worker.heartbeat_age_seconds)} ago",
            age(worker.up_seconds),
            "all" if worker.queues is None else ", ".join(worker.queues),
            number(len(worker.type_names)),
            worker.version,
        ]
        for worker in workers
    ]


def pool_rows(workers: Sequence[WorkerFacts], screen: Screen) -> Rows:
    return [
        [
            worker.id,
            f"{pool.level} {pool.key}",
            f"{pool.workers} of {pool.max_workers}",
            number(pool.busy),
            screen.status("running" if pool.state == "busy" else pool.state.replace("_", " ")),
            memory(pool.rss_bytes),
            memory(pool.largest_rss_bytes),
            number(pool.crashed),
            number(pool.killed),
            number(pool.recycled),
        ]
        for worker in workers
        for pool in worker.pools
    ]


def _worker_state(worker: WorkerFacts) -> str:
    return {
        "stuck": f"stuck ({worker.stuck})",
        "maintenance": "maintenance only",
        "busy": "running",
    }.get(worker.state, worker.state)


def queue_rows(overview: Overview, screen: Screen) -> Rows:
    return [
        [
            queue.name,
            overview.shown(queue, "due"),
            _oldest(queue),
            overview.shown(queue, "running"),
            screen.status(_queue_state(queue)),
            overview.shown(queue, "scheduled"),
            overview.shown(queue, "blocked"),
            overview.shown(queue, "outside"),
        ]
        for queue in overview.queues
    ]


def _queue_state(queue: QueueFacts) -> str:
    limit = f"{queue.slot_limit} slots per worker" if queue.slot_limit else ""
    return ", ".join(filter(None, ("paused" if queue.is_paused else "", limit))) or "open"


def type_rows(overview: Overview, screen: Screen) -> Rows:
    """Return the rows of types that have jobs."""
    return [
        [
            kind.name,
            overview.shown(kind, "due"),
            _oldest(kind),
            overview.shown(kind, "running"),
            Cell(number(kind.failed), screen.paint_of("failed") if kind.failed else None),
            Cell(str(kind.workers), screen.paint_of("failed") if kind.is_unserved else None),
            overview.shown(kind, "scheduled"),
            overview.shown(kind, "blocked"),
            overview.shown(kind, "outside"),
        ]
        for kind in overview.types
        if kind.has_jobs
    ]


def record_rows(records: Sequence[RecordFacts], overview: Overview, screen: Screen) -> Rows:
    return [
        [
            kind.name,
            kind.model,
            overview.shown(kind, "queued"),
            age(kind.oldest_seconds) if kind.oldest_seconds else "",
            overview.shown(kind, "processing"),
            overview.shown(kind, "errored"),
            Cell(overview.shown(kind, "failed"), screen.paint_of("failed") if kind.failed else None),
            kind.queue,
        ]
        for kind in records
        if not kind.problem
    ]


def failing_rows(failing: Sequence[FailingType]) -> Rows:
    return [
        [
            kind.name,
            number(kind.attempts),
            number(kind.jobs),
            f"{age(kind.last_age_seconds)} ago",
            first_line(kind.last_error),
        ]
        for kind in failing
    ]


def throughput_line(found: Throughput) -> str:
    return f"Last minute: {_totals(found.last_minute)} · last hour: {_totals(found.last_hour)}"


def throughput_json(found: Throughput) -> dict[str, Any]:
    return {name: asdict(getattr(found, name)) for name in ("last_minute", "last_hour", "last_day")}


def _totals(totals: AttemptTotals) -> str:
    return f"{number(totals.completed)} completed, {number(totals.failed)} failed"


def _oldest(facts: QueueFacts | TypeFacts) -> str:
    return "" if facts.oldest_due_age_seconds is None else age(facts.oldest_due_age_seconds)
