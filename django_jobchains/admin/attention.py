"""What needs a person, the worst first: a few sentences, for at night nobody reads tables."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from django.utils.translation import gettext, ngettext

from django_jobchains.admin.facts import Counts
from django_jobchains.admin.words import age, ago, number
from django_jobchains.overview import DatabaseFacts, FailingType, Overview, QueueFacts, TypeFacts, WorkerFacts

#: Sentences of one kind; of more it says how many there are.
MOST_OF_A_KIND = 3
#: Jobs that wait for longer are late, although workers run them.
LATE_SECONDS = 300.0
#: A type is failing now when an attempt of it failed so lately.
FAILING_SECONDS = 3600.0
#: A transaction that is open for longer keeps the database from clearing up after finished jobs.
LONG_TRANSACTION_SECONDS = 300.0
#: Of the connections that the server allows.
MANY_CONNECTIONS = 0.9

FactsT = TypeVar("FactsT")


@dataclass(frozen=True)
class Concern:
    """``section``: the end of the id of the page's section with more of it."""

    text: str
    section: str
    is_error: bool = True


def concerns(
    overview: Overview, queues: Sequence[QueueFacts] | None = None, *, is_whole: bool = True
) -> tuple[Concern, ...]:
    """Return what needs attention, of these queues or all.

    ``is_whole`` False: for a user who does not see all jobs, and learns nothing of workers and the database.
    """
    attention = _Attention(overview, overview.queues if queues is None else queues)
    return tuple(attention.concerns() if is_whole else attention.concerns_of_jobs())


class _Attention:
    def __init__(self, overview: Overview, queues: Sequence[QueueFacts]) -> None:
        self.overview = overview
        self.queues = queues
        self.counts = Counts(overview)
        self.alive = [worker for worker in overview.workers if not worker.is_stale]

    def concerns(self) -> Iterator[Concern]:
        found = self.overview
        yield from self.without_worker() if self.alive else self.without_any_worker()
        yield from _some(found.workers, _stale, _more_stale)
        yield from _some(found.workers, _stuck, _more_stuck)
        yield from _some(self.queues, self.paused, _more_paused)
        yield from _some(self.queues, self.late, _more_late)
        yield from _some(found.failing, _failing, _more_failing)
        yield from _of_database(found.database)

    def concerns_of_jobs(self) -> Iterator[Concern]:
        yield from self.without_worker() if self.alive else map(_in_types, self.without_any_worker())
        yield from _some(self.queues, self.paused, _more_paused)
        yield from _some(self.queues, self.late, _more_late)
        yield from _some(self.overview.failing, _failing, _more_failing)

    def without_any_worker(self) -> Iterator[Concern]:
        oldest = self.overview.oldest_due_age_seconds
        if oldest is not None:
            text = ngettext(
                "No worker is running, and %(count)s job is due, for %(age)s.",
                "No worker is running, and %(count)s jobs are due, the oldest for %(age)s.",
                self.overview.due,
            )
            yield Concern(text % {"count": self.counts.all_due(), "age": age(oldest)}, "workers")
        elif self.overview.types:
            yield Concern(gettext("No worker is running."), "workers")

    def without_worker(self) -> Iterator[Concern]:
        """Jobs that none of the workers will run."""
        yield from _some(self.overview.types, self.unserved_type, _more_unserved_types)
        yield from _some(self.queues, self.unserved_queue, _more_unserved_queues)

    def is_served(self, queue: QueueFacts) -> bool:
        return any(worker.queues is None or queue.name in worker.queues for worker in self.alive)

    def unserved_type(self, kind: TypeFacts) -> Concern | None:
        if not kind.due or kind.workers:
            return None
        text = ngettext(
            "No worker serves type %(name)s: %(count)s job is due, for %(age)s.",
            "No worker serves type %(name)s: %(count)s jobs are due, the oldest for %(age)s.",
            kind.due,
        )
        return Concern(text % self.of_due(kind), "types")

    def unserved_queue(self, queue: QueueFacts) -> Concern | None:
        if not queue.due or self.is_served(queue):
            return None
        text = ngettext(
            "No worker serves queue %(name)s: %(count)s job is due, for %(age)s.",
            "No worker serves queue %(name)s: %(count)s jobs are due, the oldest for %(age)s.",
            queue.due,
        )
        return Concern(text % self.of_due(queue), "queues")

    def paused(self, queue: QueueFacts) -> Concern | None:
        if not queue.is_paused or not queue.due:
            return None
        text = ngettext(
            "Queue %(name)s is paused: %(count)s job is due, for %(age)s.",
            "Queue %(name)s is paused: %(count)s jobs are due, the oldest for %(age)s.",
            queue.due,
        )
        return Concern(text % self.of_due(queue), "queues", is_error=False)

    def late(self, queue: QueueFacts) -> Concern | None:
        if queue.is_paused or not self.is_served(queue) or (queue.oldest_due_age_seconds or 0.0) < LATE_SECONDS:
            return None
        text = ngettext(
            "Queue %(name)s is late: %(count)s job is due, for %(age)s.",
            "Queue %(name)s is late: %(count)s jobs are due, the oldest for %(age)s.",
            queue.due,
        )
        return Concern(text % self.of_due(queue), "queues", is_error=False)

    def of_due(self, facts: QueueFacts | TypeFacts) -> dict[str, str]:
        oldest = age(facts.oldest_due_age_seconds or 0.0)
        return {"name": facts.name, "count": self.counts.pending(facts.due, facts), "age": oldest}


def _in_types(concern: Concern) -> Concern:
    """The page has no section of workers."""
    return replace(concern, section="types")


def _stale(worker: WorkerFacts) -> Concern | None:
    if not worker.is_stale:
        return None
    text = gettext("Worker %(name)s on %(host)s was last heard of %(ago)s.")
    return Concern(text % {"name": worker.id, "host": worker.host, "ago": ago(worker.heartbeat_age_seconds)}, "workers")


def _stuck(worker: WorkerFacts) -> Concern | None:
    if worker.is_stale or not worker.stuck:
        return None
    text = ngettext(
        "%(count)s slot of worker %(name)s is stuck: its handler does not stop.",
        "%(count)s slots of worker %(name)s are stuck: their handlers do not stop.",
        worker.stuck,
    )
    return Concern(text % {"count": number(worker.stuck), "name": worker.id}, "workers")


def _failing(kind: FailingType) -> Concern | None:
    if kind.last_age_seconds > FAILING_SECONDS:
        return None
    text = ngettext(
        "Type %(name)s fails: %(count)s attempt in the last day, %(ago)s.",
        "Type %(name)s fails: %(count)s attempts in the last day, the last %(ago)s.",
        kind.attempts,
    )
    names = {"name": kind.name, "count": number(kind.attempts), "ago": ago(kind.last_age_seconds)}
    return Concern(text % names, "failing", is_error=False)


def _of_database(database: DatabaseFacts) -> Iterator[Concern]:
    oldest, used, most = database.oldest_transaction_seconds, database.connections, database.most_connections
    if oldest is not None and oldest > LONG_TRANSACTION_SECONDS:
        text = gettext("A transaction of the database is open for %(age)s: looking for due jobs becomes slow.")
        yield Concern(text % {"age": age(oldest)}, "database", is_error=False)
    if used is not None and most is not None and used > most * MANY_CONNECTIONS:
        text = gettext("%(used)s of the database's %(most)s connections are in use.")
        yield Concern(text % {"used": number(used), "most": number(most)}, "database")


def _some(
    facts: Sequence[FactsT], tell: Callable[[FactsT], Concern | None], more: Callable[[int], str]
) -> Iterator[Concern]:
    """The first few, and how many more there are."""
    told = filter(None, map(tell, facts))
    shown = list(islice(told, MOST_OF_A_KIND))
    yield from shown
    if rest := sum(1 for _ in told):
        yield Concern(more(rest), shown[0].section, shown[0].is_error)


def _more_unserved_types(count: int) -> str:
    text = ngettext(
        "No worker serves %(count)s more type with due jobs.",
        "No worker serves %(count)s more types with due jobs.",
        count,
    )
    return text % {"count": number(count)}


def _more_unserved_queues(count: int) -> str:
    text = ngettext(
        "No worker serves %(count)s more queue with due jobs.",
        "No worker serves %(count)s more queues with due jobs.",
        count,
    )
    return text % {"count": number(count)}


def _more_stale(count: int) -> str:
    return ngettext("%(count)s more worker was not heard of.", "%(count)s more workers were not heard of.", count) % {
        "count": number(count)
    }


def _more_stuck(count: int) -> str:
    return ngettext("%(count)s more worker has stuck slots.", "%(count)s more workers have stuck slots.", count) % {
        "count": number(count)
    }


def _more_paused(count: int) -> str:
    text = ngettext("%(count)s more paused queue has due jobs.", "%(count)s more paused queues have due jobs.", count)
    return text % {"count": number(count)}


def _more_late(count: int) -> str:
    return ngettext("%(count)s more queue is late.", "%(count)s more queues are late.", count) % {
        "count": number(count)
    }


def _more_failing(count: int) -> str:
    return ngettext("%(count)s more type fails.", "%(count)s more types fail.", count) % {"count": number(count)}
