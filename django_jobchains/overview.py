"""What is going on: workers, queues, types, what fails. One call, a constant number of statements.

What has ended costs nothing, however much it is; what has not is counted up to a limit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from django_jobchains.processors import get_registry
from django_jobchains.store import (
    MOST_GROUPS,
    FailingGroup,
    HeldGroup,
    PendingGroup,
    PresentWorker,
    QueueRule,
    Store,
    get_store,
)

__all__ = (
    "DatabaseFacts",
    "FailingType",
    "Overview",
    "QueueFacts",
    "TypeFacts",
    "WorkerFacts",
    "aoverview",
    "overview",
)

#: Up to which jobs are counted, of each queue, type and priority.
COUNT_TO = 10_000
#: A type is failing for so long after its last failed attempt.
LATELY_SECONDS = 86_400.0
#: A worker is stale when so many of its heartbeats did not come. After some more its row is deleted.
STALE_AFTER_MISSED = 3


@dataclass(frozen=True)
class WorkerFacts:
    """A worker as it last told. ``queues`` None: every queue. ``is_stale``: it has not been heard of for a while."""

    id: str
    host: str
    pid: int
    version: str
    slots: int
    busy: int
    stuck: int
    queues: tuple[str, ...] | None
    type_names: tuple[str, ...]
    is_stopping: bool
    is_stale: bool
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_age_seconds: float
    up_seconds: float


@dataclass(frozen=True)
class QueueFacts:
    """``due`` is the backlog: pending jobs that may run now. ``outside``: those that no worker runs, as this project
    declares their type without a processor; they are completed from outside. ``is_capped``: there are more than was
    counted.

    ``slot_limit``: slots of each worker that may run its jobs; None: all. ``oldest_due_age_seconds``: None when none is
    due.
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
    """As of a queue. ``failed``: how many of the newest failed jobs are of this type. ``workers``: how many that are
    alive have a processor for it."""

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
    """A type with attempts that failed in the last day, among the newest 1,000 of all types: how many, how many of them
    because a lease ran out, of how many jobs; and the last error's first line."""

    name: str
    attempts: int
    crashes: int
    jobs: int
    last_error: str
    last_at: datetime
    last_age_seconds: float


@dataclass(frozen=True)
class DatabaseFacts:
    """None: not known of this database."""

    alias: str
    vendor: str
    oldest_transaction_seconds: float | None
    connections: int | None
    most_connections: int | None


@dataclass(frozen=True)
class Overview:
    """``count_to``: how far jobs were counted. ``is_complete`` False: there are more queues and types than shown."""

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
        """The same in values that JSON has; times as ISO 8601."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def overview(using: str | None = None, *, count_to: int = COUNT_TO) -> Overview:
    """Looks at the workers, the queues and what is in them; the times are by the database's clock.

    ``count_to``: jobs of one queue, type and priority beyond it are not counted.
    """
    if count_to < 1:
        raise ValueError(f"count_to is 1 or more, not {count_to!r}.")
    store = get_store(using)
    return overview_of(
        store,
        pending=store.pending_groups(count_to),
        held=store.held_groups(count_to),
        failing=store.failing_groups(LATELY_SECONDS),
        count_to=count_to,
    )


aoverview = sync_to_async(overview)


def overview_of(
    store: Store,
    pending: Sequence[PendingGroup],
    held: Sequence[HeldGroup],
    failing: Sequence[FailingGroup],
    count_to: int,
) -> Overview:
    """Return the overview of jobs that were counted, with the workers, the queues and the database as they are now."""
    workers = tuple(map(_worker, store.present_workers()))
    rules = store.queue_rules()
    failing_types = tuple(map(failing_type, failing))
    activity = store.activity()
    return Overview(
        workers,
        _queues(rules, pending[:MOST_GROUPS], held, workers, count_to),
        _types(pending[:MOST_GROUPS], held, failing_types, workers, count_to),
        failing_types,
        DatabaseFacts(store.using, store.connection.vendor, *(activity or (None, None, None))),
        count_to,
        is_complete=len(pending) <= MOST_GROUPS,
    )


def _worker(present: PresentWorker) -> WorkerFacts:
    beat = present.beat
    return WorkerFacts(
        id=beat.worker,
        host=beat.host,
        pid=beat.pid,
        version=beat.version,
        slots=beat.slots,
        busy=beat.busy,
        stuck=beat.stuck,
        queues=beat.queues,
        type_names=beat.type_names,
        is_stopping=beat.is_stopping,
        is_stale=present.silent_seconds > STALE_AFTER_MISSED * beat.heartbeat_seconds,
        started_at=present.started_at,
        heartbeat_at=present.heartbeat_at,
        heartbeat_age_seconds=present.silent_seconds,
        up_seconds=beat.up_seconds + present.silent_seconds,
    )


class _Tally:
    """What is counted of one queue or type."""

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


def _tallies(
    pending: Iterable[PendingGroup], held: Iterable[HeldGroup], key: str, count_to: int, outside: Collection[str]
) -> "defaultdict[str, _Tally]":
    tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
    held = list(held)
    for group in pending:
        tallies[getattr(group, key)].add(group, count_to, is_outside=group.type_name in outside)
    for part in held:
        tally = tallies[getattr(part, key)]
        tally.held[part.status] += part.jobs
        tally.is_capped |= part.status != "failed" and _total(held, part.status) >= count_to
    return tallies


def _outside(workers: Iterable[WorkerFacts]) -> set[str]:
    """The types that are declared here without a processor, and that no worker has one for either."""
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
    said = {rule.name: rule for rule in rules}
    tallies = _tallies(
        pending, (part for part in held if part.status != "failed"), "queue", count_to, _outside(workers)
    )
    served = {name for worker in workers for name in worker.queues or ()}
    return tuple(_queue(name, said.get(name), tallies[name]) for name in sorted({*said, *tallies, *served}))


def _queue(name: str, rule: QueueRule | None, tally: _Tally) -> QueueFacts:
    return QueueFacts(
        name=name,
        is_paused=rule is not None and rule.is_paused,
        slot_limit=rule.slot_limit if rule else None,
        due=tally.due,
        scheduled=tally.scheduled,
        running=tally.held["running"],
        blocked=tally.held["blocked"],
        outside=tally.outside,
        oldest_due_age_seconds=tally.oldest,
        is_capped=tally.is_capped,
    )


def _types(
    pending: Iterable[PendingGroup],
    held: Iterable[HeldGroup],
    failing: Iterable[FailingType],
    workers: Iterable[WorkerFacts],
    count_to: int,
) -> tuple[TypeFacts, ...]:
    tallies = _tallies(pending, held, "type_name", count_to, _outside(workers))
    served = [name for worker in workers if not worker.is_stale for name in worker.type_names]
    names = sorted({*tallies, *served, *(part.name for part in failing)})
    return tuple(_type(name, tallies[name], served.count(name)) for name in names)


def _type(name: str, tally: _Tally, workers: int) -> TypeFacts:
    return TypeFacts(
        name=name,
        due=tally.due,
        scheduled=tally.scheduled,
        running=tally.held["running"],
        blocked=tally.held["blocked"],
        failed=tally.held["failed"],
        workers=workers,
        outside=tally.outside,
        oldest_due_age_seconds=tally.oldest,
        is_capped=tally.is_capped,
    )


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
