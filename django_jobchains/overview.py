"""An overview of workers, queues, types and failures, in a constant number of statements.

Finished jobs do not affect the cost. Other jobs are counted up to a limit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from django_jobchains.db.connections import close_thread_connections
from django_jobchains.records.overview import RecordFacts, record_overview
from django_jobchains.registry.registry import get_registry
from django_jobchains.store import (
    MAX_GROUPS,
    FailingGroup,
    HeldGroup,
    PendingGroup,
    PoolState,
    PresentWorker,
    QueueRule,
    Store,
    WorkerState,
    get_store,
)
from django_jobchains.telemetry.probes import DatabaseFigures, QueueFigures, RecordFigures

__all__ = (
    "DatabaseFacts",
    "FailingType",
    "Overview",
    "PoolState",
    "QueueFacts",
    "TypeFacts",
    "WorkerFacts",
    "aoverview",
    "overview",
)

#: The limit up to which the jobs of each queue, type and priority are counted.
COUNT_TO = 10_000
#: A type counts as failing for this time after its last failed attempt.
FAILING_SECONDS = 86_400.0
#: A worker is stale after this number of missed heartbeats. After some more, its row is deleted.
STALE_AFTER_MISSED = 3


@dataclass(frozen=True)
class WorkerFacts(WorkerState):
    """A worker, with the state it reported with its last heartbeat. ``is_stale``: its heartbeats are missing."""

    is_stale: bool
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_age_seconds: float
    up_seconds: float

    @property
    def is_maintenance_only(self) -> bool:
        """Whether the worker runs no handlers."""
        return not self.slots


@dataclass(frozen=True)
class QueueFacts:
    """A queue with its jobs. ``due`` is the backlog: pending jobs that may run now.

    ``outside``: due jobs of types that are declared without a processor, which are completed from outside and are not
    part of the backlog. ``is_capped``: there are more jobs than were counted. ``slot_limit``: the slots of each worker
    that may run its jobs, or None. ``oldest_due_age_seconds``: None if no job is due.
    """

    name: str
    is_paused: bool
    slot_limit: int | None
    due: int
    scheduled: int
    running: int
    blocked: int
    outside: int
    oldest_due_age_seconds: float | None
    is_capped: bool


@dataclass(frozen=True)
class TypeFacts:
    """A type with its jobs, counted as for a queue.

    ``failed``: how many of the newest failed jobs have this type. ``workers``: how many live workers have a processor
    for it.
    """

    name: str
    due: int
    scheduled: int
    running: int
    blocked: int
    failed: int
    workers: int
    outside: int
    oldest_due_age_seconds: float | None
    is_capped: bool


@dataclass(frozen=True)
class FailingType:
    """A type with failed attempts in the last day, among the newest 1,000 of all types.

    ``crashes``: how many of the ``attempts`` failed because their lease ran out. ``last_error``: one line.
    """

    name: str
    attempts: int
    crashes: int
    jobs: int
    last_error: str
    last_at: datetime
    last_age_seconds: float


@dataclass(frozen=True)
class DatabaseFacts:
    """Figures of the database. None: unknown for this vendor."""

    alias: str
    vendor: str
    oldest_transaction_seconds: float | None
    connections: int | None
    max_connections: int | None


@dataclass(frozen=True)
class Overview:
    """A snapshot. ``count_to``: the limit of the counts. ``is_complete``: False if there are more queues and types."""

    workers: tuple[WorkerFacts, ...]
    queues: tuple[QueueFacts, ...]
    types: tuple[TypeFacts, ...]
    failing: tuple[FailingType, ...]
    database: DatabaseFacts
    count_to: int
    is_complete: bool

    @property
    def due(self) -> int:
        """The backlog of all queues."""
        return sum(queue.due for queue in self.queues)

    @property
    def oldest_due_age_seconds(self) -> float | None:
        return max((queue.oldest_due_age_seconds or 0.0 for queue in self.queues if queue.due), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the overview as JSON values, with times in ISO 8601 format."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def overview(using: str | None = None, *, count_to: int = COUNT_TO) -> Overview:
    """Return an overview of workers, queues and jobs. Times are by the database's clock.

    ``count_to``: the limit up to which the jobs of each queue, type and priority are counted.
    """
    if count_to < 1:
        raise ValueError(f"count_to must be 1 or more, not {count_to!r}.")
    store = get_store(using)
    return build_overview(
        store,
        pending=store.stats.pending_groups(count_to),
        held=store.stats.held_groups(count_to),
        failing=store.stats.failing_groups(FAILING_SECONDS),
        count_to=count_to,
    )


aoverview = sync_to_async(overview)


def database_figures(using: str | None) -> DatabaseFigures:
    """Return what gauges report about a database. Closes the connections of the thread."""
    try:
        current, records = overview(using), record_overview(using)
    finally:
        close_thread_connections()
    queues = tuple(
        QueueFigures(
            queue.name,
            {"due": queue.due, "scheduled": queue.scheduled, "blocked": queue.blocked, "running": queue.running},
            queue.oldest_due_age_seconds or 0.0,
        )
        for queue in current.queues
    )
    return DatabaseFigures(
        queues,
        current.database.oldest_transaction_seconds,
        tuple(_record_figures(kind) for kind in records if not kind.problem),
    )


def _record_figures(kind: RecordFacts) -> RecordFigures:
    counts = {state: getattr(kind, state) for state in ("due", "queued", "processing", "errored", "failed")}
    return RecordFigures(kind.queue, kind.name, counts, kind.oldest_seconds)


def build_overview(
    store: Store,
    pending: Sequence[PendingGroup],
    held: Sequence[HeldGroup],
    failing: Sequence[FailingGroup],
    count_to: int,
) -> Overview:
    """Return the overview of jobs that were counted, with the current workers, queues and database."""
    workers = tuple(map(_worker, store.workers.present()))
    rules = store.queues.rules()
    failing_types = tuple(map(failing_type, failing))
    activity = store.stats.activity()
    return Overview(
        workers,
        _queues(rules, pending[:MAX_GROUPS], held, workers, count_to),
        _types(pending[:MAX_GROUPS], held, failing_types, workers, count_to),
        failing_types,
        DatabaseFacts(store.using, store.connection.vendor, *(activity or (None, None, None))),
        count_to,
        is_complete=len(pending) <= MAX_GROUPS,
    )


def _worker(present: PresentWorker) -> WorkerFacts:
    beat = {name: getattr(present.beat, name) for name in present.beat.__dataclass_fields__}
    interval, up_seconds = beat.pop("heartbeat_seconds"), beat.pop("up_seconds")
    return WorkerFacts(
        **beat,
        is_stale=present.silent_seconds > STALE_AFTER_MISSED * interval,
        started_at=present.started_at,
        heartbeat_at=present.heartbeat_at,
        heartbeat_age_seconds=present.silent_seconds,
        up_seconds=up_seconds + present.silent_seconds,
    )


class _Counter:
    """Counts the jobs of one queue or type."""

    def __init__(self) -> None:
        self.due = self.scheduled = self.outside = 0
        self.held = {"running": 0, "blocked": 0, "failed": 0}
        self.oldest: float | None = None
        self.is_capped = False

    def add(self, group: PendingGroup, count_to: int, *, is_outside: bool) -> None:
        self.scheduled += group.scheduled
        self.is_capped |= count_to in (group.due, group.scheduled)
        if is_outside:
            self.outside += group.due
            return
        self.due += group.due
        if group.due:
            self.oldest = max(self.oldest or 0.0, group.due_seconds)

    def facts(self) -> dict[str, Any]:
        """Return the fields that the facts of queues and types have in common."""
        held = {status: self.held[status] for status in ("running", "blocked")}
        pending = {"due": self.due, "scheduled": self.scheduled, "outside": self.outside}
        return {**pending, **held, "oldest_due_age_seconds": self.oldest, "is_capped": self.is_capped}


def _counters(
    pending: Iterable[PendingGroup], held: Iterable[HeldGroup], key: str, count_to: int, outside: Collection[str]
) -> "defaultdict[str, _Counter]":
    counters: defaultdict[str, _Counter] = defaultdict(_Counter)
    held = list(held)
    for group in pending:
        counters[getattr(group, key)].add(group, count_to, is_outside=group.type_name in outside)
    for part in held:
        counter = counters[getattr(part, key)]
        counter.held[part.status] += part.jobs
        counter.is_capped |= part.status != "failed" and _total(held, part.status) >= count_to
    return counters


def _outside(workers: Iterable[WorkerFacts]) -> set[str]:
    """Return the types that are declared without a processor, and that no worker has a processor for."""
    declared = {name for name, job_type in get_registry().job_types().items() if job_type.processor is None}
    return declared - {name for worker in workers for name in worker.type_names}


def _total(held: Iterable[HeldGroup], status: str) -> int:
    return sum(part.jobs for part in held if part.status == status)


def _queues(
    rules: Iterable[QueueRule],
    pending: Iterable[PendingGroup],
    held: Iterable[HeldGroup],
    workers: Iterable[WorkerFacts],
    count_to: int,
) -> tuple[QueueFacts, ...]:
    by_name = {rule.name: rule for rule in rules}
    counters = _counters(
        pending, (part for part in held if part.status != "failed"), "queue", count_to, _outside(workers)
    )
    served = {name for worker in workers for name in worker.queues or ()}
    return tuple(_queue(name, by_name.get(name), counters[name]) for name in sorted({*by_name, *counters, *served}))


def _queue(name: str, rule: QueueRule | None, counter: _Counter) -> QueueFacts:
    return QueueFacts(
        name=name,
        is_paused=rule is not None and rule.is_paused,
        slot_limit=rule.slot_limit if rule else None,
        **counter.facts(),
    )


def _types(
    pending: Iterable[PendingGroup],
    held: Iterable[HeldGroup],
    failing: Iterable[FailingType],
    workers: Iterable[WorkerFacts],
    count_to: int,
) -> tuple[TypeFacts, ...]:
    counters = _counters(pending, held, "type_name", count_to, _outside(workers))
    served = [name for worker in workers if not worker.is_stale for name in worker.type_names]
    names = sorted({*counters, *served, *(part.name for part in failing)})
    return tuple(_type(name, counters[name], served.count(name)) for name in names)


def _type(name: str, counter: _Counter, workers: int) -> TypeFacts:
    return TypeFacts(name=name, failed=counter.held["failed"], workers=workers, **counter.facts())


def failing_type(group: FailingGroup) -> FailingType:
    lines = group.error.strip().splitlines()
    return FailingType(
        name=group.type_name,
        attempts=group.attempts,
        crashes=group.crashes,
        jobs=group.jobs,
        last_error=lines[0] if lines else "",
        last_at=group.last_at,
        last_age_seconds=max(group.last_seconds, 0.0),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
