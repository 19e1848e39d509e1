"""The alerts of the dashboard: problems that need a person, worst first."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from django.utils.translation import gettext, ngettext

from django_jobchains.admin.dashboard.record_workers import count_of
from django_jobchains.admin.dashboard.tables import Counts
from django_jobchains.monitoring import (
    DatabaseFacts,
    FailingType,
    Overview,
    QueueFacts,
    RecordFacts,
    TypeFacts,
    WorkerFacts,
)
from django_jobchains.text.humanize import age, ago, number

#: The number of alerts of one kind; a last one counts the others.
MAX_ALERTS_PER_KIND = 3
#: A queue is falling behind if one of its jobs has been due for longer.
LATE_SECONDS = 300.0
#: A type is failing if one of its attempts failed within this time.
FAILING_SECONDS = 3600.0
#: A transaction that is open for longer prevents the database from removing dead rows.
LONG_TRANSACTION_SECONDS = 300.0
#: There is an alert if this share of the server's connections is in use.
MAX_CONNECTION_SHARE = 0.9

FactsT = TypeVar("FactsT")


@dataclass(frozen=True)
class Alert:
    """A problem or a warning, with the section of the page that has the details."""

    text: str
    section: str
    is_error: bool = True


def find_alerts(
    overview: Overview,
    queues: Sequence[QueueFacts] | None = None,
    records: Sequence[RecordFacts] = (),
    *,
    is_whole: bool = True,
) -> tuple[Alert, ...]:
    """Return the alerts for these queues, or for all, and for these record workers.

    If not ``is_whole``, jobs are hidden from the user, who then gets no alerts about workers and the database.
    """
    finder = _AlertFinder(overview, overview.queues if queues is None else queues, records)
    return tuple(finder.all_alerts() if is_whole else finder.job_alerts())


class _AlertFinder:
    def __init__(self, overview: Overview, queues: Sequence[QueueFacts], records: Sequence[RecordFacts]) -> None:
        self.overview = overview
        self.queues = queues
        self.records = records
        self.served = {kind.name for kind in overview.types if kind.workers}
        self.counts = Counts(overview)
        self.alive = [worker for worker in overview.workers if not worker.is_stale]

    def all_alerts(self) -> Iterator[Alert]:
        found = self.overview
        yield from self.unserved() if self.alive else self.no_worker()
        yield from _some(self.records, self.unserved_records, _more_unserved_records)
        yield from _some(self.records, _not_migrated, _more_not_migrated)
        yield from _some(found.workers, _stale, _more_stale)
        yield from _some(found.workers, _stuck, _more_stuck)
        yield from _some(self.queues, self.paused, _more_paused)
        yield from _some(self.queues, self.falling_behind, _more_falling_behind)
        yield from _some(found.failing, _failing, _more_failing)
        yield from _of_database(found.database)

    def job_alerts(self) -> Iterator[Alert]:
        yield from self.unserved() if self.alive else map(_in_types, self.no_worker())
        yield from _some(self.records, self.unserved_records, _more_unserved_records)
        yield from _some(self.queues, self.paused, _more_paused)
        yield from _some(self.queues, self.falling_behind, _more_falling_behind)
        yield from _some(self.overview.failing, _failing, _more_failing)

    def no_worker(self) -> Iterator[Alert]:
        oldest = self.overview.oldest_due_age_seconds
        if oldest is not None:
            text = ngettext(
                "No worker is running. %(count)s job has been due for %(age)s.",
                "No worker is running. %(count)s jobs are due, the oldest for %(age)s.",
                self.overview.due,
            )
            yield Alert(text % {"count": self.counts.all_due(), "age": age(oldest)}, "workers")
        elif self.overview.types:
            yield Alert(gettext("No worker is running."), "workers")

    def unserved(self) -> Iterator[Alert]:
        """Return alerts for due jobs that no worker will run."""
        yield from _some(self.overview.types, self.unserved_type, _more_unserved_types)
        yield from _some(self.queues, self.unserved_queue, _more_unserved_queues)

    def is_served(self, queue: QueueFacts) -> bool:
        return any(worker.queues is None or queue.name in worker.queues for worker in self.alive)

    def unserved_type(self, kind: TypeFacts) -> Alert | None:
        if not kind.due or kind.workers:
            return None
        text = ngettext(
            "No worker processes type %(name)s: %(count)s job has been due for %(age)s.",
            "No worker processes type %(name)s: %(count)s jobs are due, the oldest for %(age)s.",
            kind.due,
        )
        return Alert(text % self.due_values(kind), "types")

    def unserved_queue(self, queue: QueueFacts) -> Alert | None:
        if not queue.due or self.is_served(queue):
            return None
        text = ngettext(
            "No worker processes queue %(name)s: %(count)s job has been due for %(age)s.",
            "No worker processes queue %(name)s: %(count)s jobs are due, the oldest for %(age)s.",
            queue.due,
        )
        return Alert(text % self.due_values(queue), "queues")

    def unserved_records(self, kind: RecordFacts) -> Alert | None:
        if not kind.due or kind.name in self.served:
            return None
        text = ngettext(
            "No worker processes %(name)s: %(count)s record has been due for %(age)s.",
            "No worker processes %(name)s: %(count)s records are due, the oldest for %(age)s.",
            kind.due,
        )
        values = {"name": kind.name, "count": count_of(kind, kind.due), "age": age(kind.oldest_seconds)}
        return Alert(text % values, "records")

    def paused(self, queue: QueueFacts) -> Alert | None:
        if not queue.is_paused or not queue.due:
            return None
        text = ngettext(
            "Queue %(name)s is paused: %(count)s job has been due for %(age)s.",
            "Queue %(name)s is paused: %(count)s jobs are due, the oldest for %(age)s.",
            queue.due,
        )
        return Alert(text % self.due_values(queue), "queues", is_error=False)

    def falling_behind(self, queue: QueueFacts) -> Alert | None:
        if queue.is_paused or not self.is_served(queue) or (queue.oldest_due_age_seconds or 0.0) < LATE_SECONDS:
            return None
        text = ngettext(
            "Queue %(name)s is falling behind: %(count)s job has been due for %(age)s.",
            "Queue %(name)s is falling behind: %(count)s jobs are due, the oldest for %(age)s.",
            queue.due,
        )
        return Alert(text % self.due_values(queue), "queues", is_error=False)

    def due_values(self, facts: QueueFacts | TypeFacts) -> dict[str, str]:
        oldest = age(facts.oldest_due_age_seconds or 0.0)
        return {"name": facts.name, "count": self.counts.pending(facts.due, facts), "age": oldest}


def _in_types(alert: Alert) -> Alert:
    """Refer to the section of types, on a page without a section of workers."""
    return replace(alert, section="types")


def _not_migrated(kind: RecordFacts) -> Alert | None:
    if kind.problem != "missing":
        return None
    text = gettext("The table of %(name)s does not exist or lacks columns. Run manage.py migrate.")
    return Alert(text % {"name": kind.name}, "database")


def _stale(worker: WorkerFacts) -> Alert | None:
    if not worker.is_stale:
        return None
    text = gettext("Worker %(name)s on %(host)s sent its last heartbeat %(ago)s.")
    return Alert(text % {"name": worker.id, "host": worker.host, "ago": ago(worker.heartbeat_age_seconds)}, "workers")


def _stuck(worker: WorkerFacts) -> Alert | None:
    if worker.is_stale or not worker.stuck:
        return None
    text = ngettext(
        "%(count)s slot of worker %(name)s is stuck: its handler does not stop.",
        "%(count)s slots of worker %(name)s are stuck: their handlers do not stop.",
        worker.stuck,
    )
    return Alert(text % {"count": number(worker.stuck), "name": worker.id}, "workers")


def _failing(kind: FailingType) -> Alert | None:
    if kind.last_age_seconds > FAILING_SECONDS:
        return None
    text = ngettext(
        "Type %(name)s is failing: %(count)s failed attempt in the last 24 hours, %(ago)s.",
        "Type %(name)s is failing: %(count)s failed attempts in the last 24 hours, the last one %(ago)s.",
        kind.attempts,
    )
    names = {"name": kind.name, "count": number(kind.attempts), "ago": ago(kind.last_age_seconds)}
    return Alert(text % names, "failing", is_error=False)


def _of_database(database: DatabaseFacts) -> Iterator[Alert]:
    oldest, used, limit = database.oldest_transaction_seconds, database.connections, database.max_connections
    if oldest is not None and oldest > LONG_TRANSACTION_SECONDS:
        text = gettext("A database transaction has been open for %(age)s, which slows down the search for due jobs.")
        yield Alert(text % {"age": age(oldest)}, "database", is_error=False)
    if used is not None and limit is not None and used > limit * MAX_CONNECTION_SHARE:
        text = gettext("%(used)s of the database's %(limit)s connections are in use.")
        yield Alert(text % {"used": number(used), "limit": number(limit)}, "database")


def _some(
    items: Sequence[FactsT], make_alert: Callable[[FactsT], Alert | None], more: Callable[[int], str]
) -> Iterator[Alert]:
    """Return the first few alerts, and one with the number of the others."""
    found = filter(None, map(make_alert, items))
    shown = list(islice(found, MAX_ALERTS_PER_KIND))
    yield from shown
    if rest := sum(1 for _ in found):
        yield Alert(more(rest), shown[0].section, shown[0].is_error)


def _more_unserved_types(count: int) -> str:
    return _counted(
        ngettext(
            "No worker processes %(count)s more type with due jobs.",
            "No worker processes %(count)s more types with due jobs.",
            count,
        ),
        count,
    )


def _more_unserved_queues(count: int) -> str:
    return _counted(
        ngettext(
            "No worker processes %(count)s more queue with due jobs.",
            "No worker processes %(count)s more queues with due jobs.",
            count,
        ),
        count,
    )


def _more_unserved_records(count: int) -> str:
    return _counted(
        ngettext(
            "No worker processes %(count)s more type with due records.",
            "No worker processes %(count)s more types with due records.",
            count,
        ),
        count,
    )


def _more_not_migrated(count: int) -> str:
    return _counted(
        ngettext(
            "%(count)s more table of records does not exist or lacks columns.",
            "%(count)s more tables of records do not exist or lack columns.",
            count,
        ),
        count,
    )


def _more_stale(count: int) -> str:
    return _counted(
        ngettext("%(count)s more worker sends no heartbeats.", "%(count)s more workers send no heartbeats.", count),
        count,
    )


def _more_stuck(count: int) -> str:
    return _counted(
        ngettext("%(count)s more worker has stuck slots.", "%(count)s more workers have stuck slots.", count), count
    )


def _more_paused(count: int) -> str:
    return _counted(
        ngettext("%(count)s more paused queue has due jobs.", "%(count)s more paused queues have due jobs.", count),
        count,
    )


def _more_falling_behind(count: int) -> str:
    return _counted(
        ngettext("%(count)s more queue is falling behind.", "%(count)s more queues are falling behind.", count), count
    )


def _more_failing(count: int) -> str:
    return _counted(ngettext("%(count)s more type is failing.", "%(count)s more types are failing.", count), count)


def _counted(text: str, count: int) -> str:
    return text % {"count": number(count)}
