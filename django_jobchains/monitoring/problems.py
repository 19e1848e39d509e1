"""What needs attention: problems that follow from the facts. The admin and the command line show the same ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_jobchains.conf import get_settings
from django_jobchains.db.times import Times
from django_jobchains.models import Schedule
from django_jobchains.monitoring.facts import Overview, QueueFacts, RecordFacts, TypeFacts
from django_jobchains.store.stats import DatabaseFacts, FailingType
from django_jobchains.text.humanize import age, ago, number

#: The end of some texts.
_DUE = ngettext_lazy(
    "%(count)s job has been due for %(age)s.", "%(count)s jobs are due, the oldest for %(age)s.", "number"
)

#: A transaction that is open for longer prevents the database from removing dead rows.
LONG_TRANSACTION_SECONDS = 300.0
#: It is a problem if this share of the server's connections is in use.
MAX_CONNECTION_SHARE = 0.9


@dataclass(frozen=True, eq=False)
class Kind:
    """What can be wrong. ``section``: the part of the facts that has the details.

    ``text`` and ``more`` are lazy translations. ``more`` is for problems of this kind that are not listed.
    """

    section: str
    text: Any
    more: Any = ""
    is_error: bool = True


@dataclass(frozen=True)
class Problem:
    """A problem of ``subject``, with the numbers of its text.

    ``is_lower_bound``: whether there may be more than ``count``. ``detail``: the host of a worker, or its pool.
    ``is_rest``: it stands for ``count`` other problems of its kind.
    """

    kind: Kind
    subject: str = ""
    count: int = 0
    is_lower_bound: bool = False
    limit: int = 0
    seconds: float = 0.0
    detail: str = ""
    is_rest: bool = False

    @property
    def text(self) -> str:
        """One sentence in the active language."""
        values = {
            "name": self.subject,
            "number": self.count,
            "count": number(self.count, is_lower_bound=self.is_lower_bound),
            "limit": number(self.limit),
            "age": age(self.seconds),
            "ago": ago(self.seconds),
            "detail": self.detail,
        }
        return str((self.kind.more if self.is_rest else self.kind.text) % {**values, "due": _DUE % values})


NO_WORKER = Kind("workers", _("No worker is running."))
NO_WORKER_FOR_DUE_JOBS = Kind("workers", _("No worker is running. %(due)s"))
UNSERVED_TYPE = Kind(
    "types",
    _("No worker processes type %(name)s: %(due)s"),
    ngettext_lazy(
        "No worker processes %(count)s more type with due jobs.",
        "No worker processes %(count)s more types with due jobs.",
        "number",
    ),
)
UNSERVED_QUEUE = Kind(
    "queues",
    _("No worker processes queue %(name)s: %(due)s"),
    ngettext_lazy(
        "No worker processes %(count)s more queue with due jobs.",
        "No worker processes %(count)s more queues with due jobs.",
        "number",
    ),
)
UNSERVED_RECORDS = Kind(
    "records",
    ngettext_lazy(
        "No worker processes %(name)s: %(count)s record has been due for %(age)s.",
        "No worker processes %(name)s: %(count)s records are due, the oldest for %(age)s.",
        "number",
    ),
    ngettext_lazy(
        "No worker processes %(count)s more type with due records.",
        "No worker processes %(count)s more types with due records.",
        "number",
    ),
)
NOT_MIGRATED = Kind(
    "database",
    _("The table of %(name)s does not exist or lacks columns. Run manage.py migrate."),
    ngettext_lazy(
        "%(count)s more table of records does not exist or lacks columns.",
        "%(count)s more tables of records do not exist or lack columns.",
        "number",
    ),
)
STALE_WORKER = Kind(
    "workers",
    _("Worker %(name)s on %(detail)s sent its last heartbeat %(ago)s."),
    ngettext_lazy("%(count)s more worker sends no heartbeats.", "%(count)s more workers send no heartbeats.", "number"),
)
STUCK_WORKER = Kind(
    "workers",
    ngettext_lazy(
        "%(count)s slot of worker %(name)s is stuck: its handler does not stop.",
        "%(count)s slots of worker %(name)s are stuck: their handlers do not stop.",
        "number",
    ),
    ngettext_lazy("%(count)s more worker has stuck slots.", "%(count)s more workers have stuck slots.", "number"),
)
_MORE_POOLS = ngettext_lazy(
    "%(count)s more pool cannot start child processes.", "%(count)s more pools cannot start child processes.", "number"
)
BROKEN_POOL = Kind("pools", _("Worker %(name)s cannot start child processes for %(detail)s: see its log."), _MORE_POOLS)
WEAKENED_POOL = Kind(
    "pools",
    _("Worker %(name)s cannot start child processes for %(detail)s and runs its jobs in threads: see its log."),
    _MORE_POOLS,
)
FAILING_SCHEDULE = Kind(
    "schedules",
    _("Schedule %(name)s is failing: its tick could not be fired %(ago)s."),
    ngettext_lazy("%(count)s more schedule is failing.", "%(count)s more schedules are failing.", "number"),
)
ORPHANED_SCHEDULE = Kind(
    "schedules",
    _("Schedule %(name)s is orphaned: no running worker declares it, so it does not fire."),
    ngettext_lazy("%(count)s more schedule is orphaned.", "%(count)s more schedules are orphaned.", "number"),
    is_error=False,
)
LOCKED_RECORDS = Kind(
    "database",
    _("The table of %(name)s is locked by another transaction, so its records are not counted."),
    ngettext_lazy(
        "%(count)s more table of records is locked.", "%(count)s more tables of records are locked.", "number"
    ),
    is_error=False,
)
PAUSED_QUEUE = Kind(
    "queues",
    _("Queue %(name)s is paused: %(due)s"),
    ngettext_lazy("%(count)s more paused queue has due jobs.", "%(count)s more paused queues have due jobs.", "number"),
    is_error=False,
)
LATE_QUEUE = Kind(
    "queues",
    _("Queue %(name)s is falling behind: %(due)s"),
    ngettext_lazy("%(count)s more queue is falling behind.", "%(count)s more queues are falling behind.", "number"),
    is_error=False,
)
FAILING_TYPE = Kind(
    "failing",
    _("Type %(name)s is failing: %(count)s of %(limit)s attempts failed in the last %(age)s."),
    ngettext_lazy("%(count)s more type is failing.", "%(count)s more types are failing.", "number"),
    is_error=False,
)
FAILED_JOBS = Kind(
    "failing",
    ngettext_lazy(
        "%(count)s job of type %(name)s failed in the last hour.",
        "%(count)s jobs of type %(name)s failed in the last hour.",
        "number",
    ),
    ngettext_lazy(
        "Jobs of %(count)s more type failed in the last hour.",
        "Jobs of %(count)s more types failed in the last hour.",
        "number",
    ),
    is_error=False,
)
LONG_TRANSACTION = Kind(
    "database",
    _("A database transaction has been open for %(age)s, which slows down the search for due jobs."),
    is_error=False,
)
MANY_CONNECTIONS = Kind("database", _("%(count)s of the database's %(limit)s connections are in use."))


def find_problems(
    found: Overview,
    records: Iterable[RecordFacts] = (),
    queues: Iterable[QueueFacts] | None = None,
    schedules: Sequence[Schedule] = (),
) -> list[Problem]:
    """Return the problems, worst first.

    ``queues``: only problems of these, if not of all. ``schedules``: those that are failing or orphaned.
    """
    of_schedules = list(problems_of_schedules(schedules)) if found.alive else []
    queues = list(found.queues if queues is None else queues)
    uncounted = [problem for problem in map(problem_of_records, records) if problem]
    late_seconds = get_settings().ALERT_DUE_SECONDS
    late = [queue for queue in queues if not queue.is_paused and (queue.oldest_due_age_seconds or 0.0) >= late_seconds]
    return [
        *_unserved(found, queues, schedules),
        *_unserved_records(found, records),
        *(problem for problem in uncounted if problem.kind.is_error),
        *_of_workers(found),
        *(problem for problem in of_schedules if problem.kind.is_error),
        *(problem for problem in of_schedules if not problem.kind.is_error),
        *(problem for problem in uncounted if not problem.kind.is_error),
        *(_due(PAUSED_QUEUE, queue, found) for queue in queues if queue.is_paused and queue.due),
        *(_due(LATE_QUEUE, queue, found) for queue in late if found.is_served(queue)),
        *_of_failures(found.failing),
        *_of_database(found.database),
    ]


def about_jobs(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems for users who may not see workers and the database."""
    for problem in problems:
        if problem.kind in (NO_WORKER, NO_WORKER_FOR_DUE_JOBS):
            yield replace(problem, kind=replace(problem.kind, section="types"))
        elif problem.kind.section in ("types", "queues", "records", "schedules", "failing"):
            yield problem


def summarized(problems: Iterable[Problem], limit: int) -> Iterator[Problem]:
    """Yield the first problems of each kind, up to ``limit``, and one that counts the others."""
    for kind, group in groupby(problems, key=lambda problem: problem.kind):
        each = list(group)
        yield from each[:limit]
        if rest := len(each[limit:]):
            yield Problem(kind, count=rest, is_rest=True)


def problem_of_records(kind: RecordFacts) -> Problem | None:
    """Return why the records of a worker were not counted."""
    if kind.problem == "missing":
        return Problem(NOT_MIGRATED, kind.name)
    return Problem(LOCKED_RECORDS, kind.name) if kind.problem else None


def problems_of_schedules(schedules: Iterable[Schedule]) -> Iterator[Problem]:
    """Yield the problems of failing and of orphaned schedules. Without a worker, all schedules of code are orphaned."""
    schedules = list(schedules)
    for schedule in schedules:
        if schedule.state == "failing" and schedule.last_error_at:
            seconds = Times(str(schedule._state.db)).seconds_since(schedule.last_error_at)
            yield Problem(FAILING_SCHEDULE, schedule.name, seconds=seconds)
    yield from (Problem(ORPHANED_SCHEDULE, schedule.name) for schedule in schedules if schedule.state == "orphaned")


def _due(kind: Kind, facts: QueueFacts | TypeFacts, found: Overview) -> Problem:
    is_lower_bound = found.is_lower_bound(facts, "due")
    return Problem(kind, facts.name, facts.due, is_lower_bound, seconds=facts.oldest_due_age_seconds or 0.0)


def _unserved(found: Overview, queues: Iterable[QueueFacts], schedules: Sequence[Schedule]) -> Iterator[Problem]:
    """Yield the problems of due jobs that no worker will run, and of schedules that none fires."""
    if found.slots:  # Workers that only do maintenance have none. They fire schedules.
        yield from (_due(UNSERVED_TYPE, kind, found) for kind in found.types if kind.is_unserved)
        yield from (_due(UNSERVED_QUEUE, queue, found) for queue in queues if queue.due and not found.is_served(queue))
    elif found.oldest_due_age_seconds is not None:
        seconds = found.oldest_due_age_seconds
        yield Problem(NO_WORKER_FOR_DUE_JOBS, "", found.due, found.is_due_lower_bound, seconds=seconds)
    elif not found.alive and (found.types or schedules):
        yield Problem(NO_WORKER)


def _unserved_records(found: Overview, records: Iterable[RecordFacts]) -> Iterator[Problem]:
    served = {kind.name for kind in found.types if kind.workers}
    for kind in records:
        if kind.due and kind.name not in served:
            is_lower_bound = found.is_lower_bound(kind, "due")
            yield Problem(UNSERVED_RECORDS, kind.name, kind.due, is_lower_bound, seconds=kind.oldest_seconds)


def _of_workers(found: Overview) -> Iterator[Problem]:
    for worker in found.workers:
        if worker.is_stale:
            yield Problem(STALE_WORKER, worker.id, seconds=worker.heartbeat_age_seconds, detail=worker.host)
    yield from (Problem(STUCK_WORKER, worker.id, worker.stuck) for worker in found.alive if worker.stuck)
    for state, kind in (("cannot_start", BROKEN_POOL), ("in_threads", WEAKENED_POOL)):
        for worker in found.alive:
            names = [f"{pool.level} {pool.key!r}" for pool in worker.pools if pool.state == state]
            yield from (Problem(kind, worker.id, detail=name) for name in names)


def _of_failures(failing: Iterable[FailingType]) -> Iterator[Problem]:
    """Yield the types of which too many attempts fail, and then the others of which jobs failed.

    A failed attempt alone is not a problem, because retries are normal.
    """
    settings, failing = get_settings(), list(failing)
    rate, most = settings.ALERT_FAILURE_RATE, settings.ALERT_FAILED_JOBS
    names = set()
    for kind in failing:
        is_counted = kind.counted_attempts >= settings.ALERT_MIN_ATTEMPTS
        if rate is not None and is_counted and kind.counted_failures >= rate * kind.counted_attempts:
            names.add(kind.name)
            count, limit, seconds = kind.counted_failures, kind.counted_attempts, kind.counted_seconds
            yield Problem(FAILING_TYPE, kind.name, count, limit=limit, seconds=seconds)
    for kind in failing:
        if most is not None and kind.new_failed_jobs >= most and kind.name not in names:
            yield Problem(FAILED_JOBS, kind.name, kind.new_failed_jobs)


def _of_database(database: DatabaseFacts) -> Iterator[Problem]:
    oldest, used, limit = database.oldest_transaction_seconds, database.connections, database.max_connections
    if oldest is not None and oldest > LONG_TRANSACTION_SECONDS:
        yield Problem(LONG_TRANSACTION, seconds=oldest)
    if used is not None and limit is not None and used > limit * MAX_CONNECTION_SHARE:
        yield Problem(MANY_CONNECTIONS, count=used, limit=limit)
