"""The tables of an overview and the line of what was done, which ``status`` and ``top`` show alike."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django_jobchains.console.screen import Screen
from django_jobchains.console.tables import Cell, Column
from django_jobchains.console.words import age, first_line, number
from django_jobchains.overview import FailingType, Overview, QueueFacts, TypeFacts, WorkerFacts
from django_jobchains.throughput import Ended, Throughput

Rows = list[list[Cell | str]]

WORKERS = (
    Column("WORKER", least=12),
    Column("BUSY", is_number=True),
    Column("STATE"),
    Column("HEARD OF", is_number=True),
    Column("UP", is_number=True),
    Column("QUEUES", least=8, is_optional=True),
    Column("TYPES", is_number=True, is_optional=True),
    Column("VERSION", is_optional=True),
)
QUEUES = (
    Column("QUEUE", least=8),
    Column("DUE", is_number=True),
    Column("OLDEST", is_number=True),
    Column("RUNNING", is_number=True),
    Column("STATE", least=8),
    Column("SCHEDULED", is_number=True, is_optional=True),
    Column("BLOCKED", is_number=True, is_optional=True),
    Column("OUTSIDE", is_number=True, is_optional=True),
)
TYPES = (
    Column("TYPE", least=12),
    Column("DUE", is_number=True),
    Column("OLDEST", is_number=True),
    Column("RUNNING", is_number=True),
    Column("FAILED", is_number=True),
    Column("WORKERS", is_number=True),
    Column("SCHEDULED", is_number=True, is_optional=True),
    Column("BLOCKED", is_number=True, is_optional=True),
    Column("OUTSIDE", is_number=True, is_optional=True),
)
FAILING = (
    Column("TYPE", least=12),
    Column("ATTEMPTS", is_number=True),
    Column("JOBS", is_number=True),
    Column("LAST", is_number=True),
    Column("LAST ERROR", least=10),
)


def worker_rows(workers: Sequence[WorkerFacts], screen: Screen) -> Rows:
    return [
        [
            worker.id,
            f"{worker.busy} of {worker.slots}",
            screen.status(state_of(worker)),
            f"{age(worker.heartbeat_age_seconds)} ago",
            age(worker.up_seconds),
            "every" if worker.queues is None else ", ".join(worker.queues),
            number(len(worker.type_names)),
            worker.version,
        ]
        for worker in workers
    ]


def state_of(worker: WorkerFacts) -> str:
    if worker.is_stale:
        return "stale"
    state = "stopping" if worker.is_stopping else "running" if worker.busy else "idle"
    return f"stuck ({worker.stuck})" if worker.stuck else state


def queue_rows(overview: Overview, screen: Screen) -> Rows:
    return [
        [
            queue.name,
            _capped(queue.due, queue, overview),
            _oldest(queue),
            number(queue.running),
            screen.status(_state_of(queue)),
            _capped(queue.scheduled, queue, overview),
            number(queue.blocked),
            number(queue.outside),
        ]
        for queue in overview.queues
    ]


def _state_of(queue: QueueFacts) -> str:
    limit = f"{queue.slot_limit} slots a worker" if queue.slot_limit else ""
    return ", ".join(filter(None, ("paused" if queue.is_paused else "", limit))) or "open"


def type_rows(overview: Overview, screen: Screen) -> Rows:
    """Those of which there is something."""
    return [
        [
            kind.name,
            _capped(kind.due, kind, overview),
            _oldest(kind),
            number(kind.running),
            Cell(number(kind.failed), screen.paint_of("failed") if kind.failed else None),
            Cell(str(kind.workers), screen.paint_of("failed") if kind.due and not kind.workers else None),
            _capped(kind.scheduled, kind, overview),
            number(kind.blocked),
            number(kind.outside),
        ]
        for kind in overview.types
        if any((kind.due, kind.running, kind.failed, kind.scheduled, kind.blocked, kind.outside))
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


def done(lately: Throughput) -> str:
    """Attempts that ended, as workers told."""
    return f"Last minute: {_ended(lately.last_minute)} · last hour: {_ended(lately.last_hour)}"


def done_json(lately: Throughput) -> dict[str, Any]:
    return {name: asdict(getattr(lately, name)) for name in ("last_minute", "last_hour", "last_day")}


def _ended(part: Ended) -> str:
    return f"{number(part.completed)} completed, {number(part.failed)} failed"


def _oldest(facts: QueueFacts | TypeFacts) -> str:
    return "" if facts.oldest_due_age_seconds is None else age(facts.oldest_due_age_seconds)


def _capped(count: int, facts: QueueFacts | TypeFacts, overview: Overview) -> str:
    return number(count, is_more=facts.is_capped and count >= overview.count_to)
