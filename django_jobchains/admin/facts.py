"""The tables of an overview as the dashboard shows them: a bounded number of rows, each value as people read it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from django.utils.translation import gettext

from django_jobchains.admin.payloads import Payloads
from django_jobchains.admin.words import age, ago, number, span
from django_jobchains.overview import FailingType, Overview, QueueFacts, TypeFacts, WorkerFacts
from django_jobchains.throughput import TypeRuns

#: Rows of a table.
MOST_ROWS = 100
#: Of the slowest types.
MOST_SLOW = 10

RowT = TypeVar("RowT")
FactsT = TypeVar("FactsT")


@dataclass(frozen=True)
class Table(Generic[RowT]):
    """``more``: how many rows there are besides these."""

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
    """``state`` is a word of ours, and the end of a CSS class."""

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


class Counts:
    """Numbers of an overview; one that counting stopped at has a plus behind it, for there may be more."""

    def __init__(self, overview: Overview) -> None:
        self._overview, self._to = overview, overview.count_to
        self._is_capped = {
            status: sum(getattr(queue, status) for queue in overview.queues) >= self._to
            for status in ("running", "blocked")
        }

    def all_due(self) -> str:
        due, is_capped = self._overview.due, any(queue.is_capped for queue in self._overview.queues)
        return self._shown(due, is_capped and due >= self._to)

    def pending(self, count: int, facts: QueueFacts | TypeFacts) -> str:
        """Of those that are due, scheduled or for outside."""
        return self._shown(count, facts.is_capped and count >= self._to)

    def held(self, facts: QueueFacts | TypeFacts, status: str) -> str:
        count: int = getattr(facts, status)
        return self._shown(count, self._is_capped[status] and count > 0)

    def _shown(self, count: int, is_more: bool) -> str:
        return f"{number(count)}+" if is_more else number(count)


def queue_table(
    queues: Sequence[QueueFacts], counts: Counts, may_change: Callable[[str], bool] = lambda name: False
) -> Table[QueueRow]:
    """Of these queues, with whether the user may change the one with a name."""

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
    """Of the types that have jobs to be done, or failed ones."""

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
    """``payloads_of`` returns what shows the last error of the type with a name."""

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

    return Table(tuple(map(row, failing[:MOST_ROWS])), max(0, len(failing) - MOST_ROWS))


def slow_table(types: Sequence[TypeRuns]) -> Table[SlowRow]:
    rows = tuple(
        SlowRow(
            kind.name or gettext("other types"),
            number(kind.completed),
            number(kind.failed),
            span(kind.mean_seconds),
            span(kind.longest_seconds),
        )
        for kind in types[:MOST_SLOW]
    )
    return Table(rows, max(0, len(types) - MOST_SLOW))


def worker_table(workers: Sequence[WorkerFacts]) -> Table[WorkerRow]:
    return _table(workers, _worker, lambda worker: (not worker.is_stale, not worker.stuck))


def state_of(worker: WorkerFacts) -> str:
    """The word for it, of which there is a text and a colour."""
    if worker.is_stale:
        return "stale"
    if worker.stuck:
        return "stuck"
    if worker.is_stopping:
        return "stopping"
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
        gettext("every queue") if worker.queues is None else ", ".join(worker.queues),
        worker.type_names,
        worker.version,
    )


def _state_text(state: str) -> str:
    texts = {
        "stale": gettext("not heard of"),
        "stuck": gettext("stuck"),
        "stopping": gettext("stopping"),
        "busy": gettext("busy"),
        "idle": gettext("idle"),
    }
    return texts[state]


def _oldest(facts: QueueFacts | TypeFacts) -> str:
    return "" if facts.oldest_due_age_seconds is None else age(facts.oldest_due_age_seconds)


def _table(
    facts: Iterable[FactsT], row: Callable[[FactsT], RowT], first: Callable[[FactsT], tuple[object, ...]]
) -> Table[RowT]:
    """Of too many those that matter ``first``; in the order they came, so that nothing moves under a pointer."""
    given = list(enumerate(facts))
    chosen = sorted(given, key=lambda pair: first(pair[1]))[:MOST_ROWS]
    return Table(tuple(row(fact) for _, fact in sorted(chosen, key=lambda pair: pair[0])), len(given) - len(chosen))
