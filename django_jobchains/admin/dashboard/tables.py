"""The tables of the dashboard, with a limited number of rows and formatted values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from django.utils.translation import gettext

from django_jobchains.admin.payload_display import Payloads
from django_jobchains.monitoring import FailingType, Overview, PoolState, QueueFacts, TypeFacts, TypeRuns, WorkerFacts
from django_jobchains.text.humanize import age, ago, memory, number, span

#: The number of rows of a table.
MAX_ROWS = 100
#: The number of slowest types.
MAX_SLOW = 10

RowT = TypeVar("RowT")
FactsT = TypeVar("FactsT")


@dataclass(frozen=True)
class Table(Generic[RowT]):
    """The rows of a table, and the number of omitted rows in ``more``."""

    rows: tuple[RowT, ...]
    more: int


@dataclass(frozen=True)
class QueueRow:
    name: str
    may_change: bool
    is_paused: bool
    slot_limit: int | None
    due: str
    oldest: str
    running: str
    scheduled: str
    blocked: str
    outside: str


@dataclass(frozen=True)
class TypeRow:
    name: str
    due: str
    oldest: str
    running: str
    scheduled: str
    blocked: str
    outside: str
    failed: str
    workers: str
    is_unserved: bool


@dataclass(frozen=True)
class FailingRow:
    name: str
    attempts: str
    crashes: str
    jobs: str
    last: str
    last_at: datetime
    error: str


@dataclass(frozen=True)
class SlowRow:
    name: str
    completed: str
    failed: str
    mean: str
    longest: str


@dataclass(frozen=True)
class WorkerRow:
    """A worker. ``state`` is part of a CSS class, and ``state_text`` is its translation."""

    id: str
    host: str
    pid: str
    state: str
    state_text: str
    busy: str
    stuck: int
    heartbeat: str
    heartbeat_at: datetime
    up: str
    queues: str
    types: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class PoolRow:
    """A pool of child processes of a worker. ``state`` is part of a CSS class, and ``state_text`` its translation."""

    worker: str
    name: str
    level: str
    state: str
    state_text: str
    children: str
    busy: str
    memory: str
    largest: str
    crashed: str
    killed: str
    recycled: str


class Counts:
    """Formats the counts of an overview, with a plus sign if counting stopped at the limit."""

    def __init__(self, overview: Overview) -> None:
        self._overview, self._limit = overview, overview.count_to
        self._is_capped = {
            status: sum(getattr(queue, status) for queue in overview.queues) >= self._limit
            for status in ("running", "blocked")
        }

    def all_due(self) -> str:
        due, is_capped = self._overview.due, any(queue.is_capped for queue in self._overview.queues)
        return self._shown(due, is_capped and due >= self._limit)

    def pending(self, count: int, facts: QueueFacts | TypeFacts) -> str:
        """Format a count of due, scheduled or outside jobs."""
        return self._shown(count, facts.is_capped and count >= self._limit)

    def held(self, facts: QueueFacts | TypeFacts, status: str) -> str:
        count: int = getattr(facts, status)
        return self._shown(count, self._is_capped[status] and count > 0)

    def _shown(self, count: int, is_more: bool) -> str:
        return f"{number(count)}+" if is_more else number(count)


def queue_table(
    queues: Sequence[QueueFacts], counts: Counts, may_change: Callable[[str], bool] = lambda name: False
) -> Table[QueueRow]:
    """Return the table of queues. ``may_change`` returns whether the user may change the queue with a name."""

    def row(queue: QueueFacts) -> QueueRow:
        return QueueRow(
            queue.name,
            may_change(queue.name),
            queue.is_paused,
            queue.slot_limit,
            counts.pending(queue.due, queue),
            _oldest(queue),
            counts.held(queue, "running"),
            counts.pending(queue.scheduled, queue),
            counts.held(queue, "blocked"),
            counts.pending(queue.outside, queue),
        )

    return _table(queues, row, lambda queue: (not queue.is_paused, -queue.due))


def type_table(overview: Overview, counts: Counts) -> Table[TypeRow]:
    """Return the table of types with unfinished or failed jobs."""

    def row(kind: TypeFacts) -> TypeRow:
        return TypeRow(
            kind.name,
            counts.pending(kind.due, kind),
            _oldest(kind),
            counts.held(kind, "running"),
            counts.pending(kind.scheduled, kind),
            counts.held(kind, "blocked"),
            counts.pending(kind.outside, kind),
            number(kind.failed),
            number(kind.workers),
            bool(kind.due and not kind.workers),
        )

    shown = [kind for kind in overview.types if _has_jobs(kind)]
    return _table(shown, row, lambda kind: (bool(kind.workers), -kind.due))


def _has_jobs(kind: TypeFacts) -> bool:
    return any((kind.due, kind.running, kind.scheduled, kind.blocked, kind.outside, kind.failed))


def failing_table(failing: Sequence[FailingType], payloads_of: Callable[[str], Payloads]) -> Table[FailingRow]:
    """Return the table of failing types. ``payloads_of`` returns the formatter for the last error of a type."""

    def row(kind: FailingType) -> FailingRow:
        return FailingRow(
            kind.name,
            number(kind.attempts),
            number(kind.crashes),
            number(kind.jobs),
            ago(kind.last_age_seconds),
            kind.last_at,
            payloads_of(kind.name).error_line(kind.last_error),
        )

    return Table(tuple(map(row, failing[:MAX_ROWS])), max(0, len(failing) - MAX_ROWS))


def slow_table(types: Sequence[TypeRuns]) -> Table[SlowRow]:
    rows = tuple(
        SlowRow(
            kind.name or gettext("other types"),
            number(kind.completed),
            number(kind.failed),
            span(kind.mean_seconds),
            span(kind.longest_seconds),
        )
        for kind in types[:MAX_SLOW]
    )
    return Table(rows, max(0, len(types) - MAX_SLOW))


def worker_table(workers: Sequence[WorkerFacts]) -> Table[WorkerRow]:
    return _table(workers, _worker, lambda worker: (not worker.is_stale, not worker.stuck))


def state_of(worker: WorkerFacts) -> str:
    """Return the state of a worker, which has a text and a colour."""
    if worker.is_stale:
        return "stale"
    if worker.stuck:
        return "stuck"
    if worker.is_stopping:
        return "stopping"
    if worker.is_maintenance_only:
        return "maintenance"
    return "busy" if worker.busy else "idle"


def _worker(worker: WorkerFacts) -> WorkerRow:
    state = state_of(worker)
    return WorkerRow(
        worker.id,
        worker.host,
        str(worker.pid),
        state,
        _state_text(state),
        gettext("%(busy)s of %(slots)s") % {"busy": number(worker.busy), "slots": number(worker.slots)},
        worker.stuck,
        ago(worker.heartbeat_age_seconds),
        worker.heartbeat_at,
        age(worker.up_seconds),
        gettext("all queues") if worker.queues is None else ", ".join(worker.queues),
        worker.type_names,
        worker.version,
    )


def pool_table(workers: Sequence[WorkerFacts]) -> Table[PoolRow]:
    pools = [(worker, pool) for worker in workers if not worker.is_stale for pool in worker.pools]
    return _table(pools, _pool, lambda pair: (_pool_state(pair[1])[0] != "stuck", not pair[1].is_saturated))


def _pool(pair: tuple[WorkerFacts, PoolState]) -> PoolRow:
    worker, pool = pair
    state, text = _pool_state(pool)
    children = {"workers": number(pool.workers), "limit": number(pool.max_workers)}
    return PoolRow(
        worker.id,
        pool.key,
        pool.level,
        state,
        text,
        gettext("%(workers)s of %(limit)s") % children,
        number(pool.busy),
        memory(pool.rss_bytes),
        memory(pool.largest_rss_bytes),
        number(pool.crashed),
        number(pool.killed),
        number(pool.recycled),
    )


def _pool_state(pool: PoolState) -> tuple[str, str]:
    """Return the state of a pool, in the CSS classes of workers, with its text."""
    if pool.cannot_start:
        return "stuck", gettext("cannot start")
    if pool.is_weakened:
        return "stuck", gettext("in threads")
    if pool.is_saturated:
        return "stopping", gettext("saturated")
    return ("busy", gettext("busy")) if pool.busy else ("idle", gettext("idle"))


def _state_text(state: str) -> str:
    texts = {
        "stale": gettext("no heartbeat"),
        "stuck": gettext("stuck"),
        "stopping": gettext("stopping"),
        "maintenance": gettext("maintenance only"),
        "busy": gettext("busy"),
        "idle": gettext("idle"),
    }
    return texts[state]


def _oldest(facts: QueueFacts | TypeFacts) -> str:
    return "" if facts.oldest_due_age_seconds is None else age(facts.oldest_due_age_seconds)


def _table(
    items: Iterable[FactsT], row: Callable[[FactsT], RowT], priority: Callable[[FactsT], tuple[object, ...]]
) -> Table[RowT]:
    """Keep the rows with the lowest ``priority``, in their given order, so that a refresh does not move them."""
    given = list(enumerate(items))
    kept = sorted(given, key=lambda pair: priority(pair[1]))[:MAX_ROWS]
    return Table(tuple(row(item) for _, item in sorted(kept, key=lambda pair: pair[0])), len(given) - len(kept))
