"""What is known about workers, queues, types, records, failures and the database.

The number of statements is constant for jobs, and for each record worker. Finished jobs and records do not affect the
cost. Others are counted up to a limit.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from django.db.models import Model, QuerySet
from django.db.models.functions import Now

from django_jobchains.conf import current_database
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.setup import is_column_missing, is_table_missing
from django_jobchains.declare.labels import MAX_INPUT_LENGTH
from django_jobchains.declare.registry import get_registry
from django_jobchains.models import Chain, Job, Schedule, ScheduleQuerySet
from django_jobchains.models.payload_fields import short_input
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.operations import RecordQuerySet
from django_jobchains.statuses import Status
from django_jobchains.store import Store, get_store
from django_jobchains.store.errors import is_lock_timeout
from django_jobchains.store.queues import QueueRule
from django_jobchains.store.stats import MAX_GROUPS, DatabaseFacts, FailingType, HeldGroup, PendingGroup
from django_jobchains.store.workers import WorkerFacts
from django_jobchains.text.humanize import number

#: The limit up to which the jobs of each queue, type and priority are counted, and the records of each state.
COUNT_TO = 10_000
#: A type counts as failing for this time after its last failed attempt.
FAILING_SECONDS = 86_400.0
#: The number of running jobs that are read to find the longest running ones.
MAX_RUNNING = 1_000
#: The number of failing and orphaned schedules that are read.
MAX_SCHEDULES = 1_000
#: How long to wait for a table of records that another transaction has locked, so that the others are counted soon.
MAX_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class JobCounts:
    """The jobs of a queue or type. ``due`` is the backlog: pending jobs that may run now.

    ``outside``: due jobs of types that are declared without a processor, which are completed from outside and are not
    part of the backlog. ``is_capped``: there are more jobs than were counted. ``oldest_due_age_seconds``: None if no
    job is due.
    """

    name: str
    due: int
    scheduled: int
    running: int
    blocked: int
    outside: int
    oldest_due_age_seconds: float | None
    is_capped: bool


@dataclass(frozen=True)
class QueueFacts(JobCounts):
    """The numbers of jobs in a queue. ``slot_limit``: how many of them may run at the same time, or None."""

    is_paused: bool
    slot_limit: int | None


@dataclass(frozen=True)
class TypeFacts(JobCounts):
    """The numbers of jobs of a type.

    ``failed``: how many of the newest failed jobs have this type. ``workers``: how many live workers have a processor
    for it.
    """

    failed: int
    workers: int

    @property
    def is_unserved(self) -> bool:
        """Whether there are due jobs and no live worker has a processor for the type."""
        return bool(self.due and not self.workers)

    @property
    def has_jobs(self) -> bool:
        """Whether there are incomplete jobs, or jobs that failed recently."""
        return any((self.due, self.scheduled, self.running, self.blocked, self.outside, self.failed))


@dataclass(frozen=True)
class RecordFacts:
    """The numbers of records of a record worker, as its queryset selects them. Each is counted up to ``count_to``.

    ``queued``: waiting records, including errored ones that will be tried again. ``errored``: all errored records,
    including waiting ones. ``due``: records that can be processed now. ``oldest_seconds``: the longest wait of a due
    record, or 0. ``problem``: why nothing is counted, or "". If it is "missing", the table or a column does not exist;
    if it is "locked", another transaction has locked the table.
    """

    name: str
    model: str
    queue: str
    queued: int
    processing: int
    errored: int
    failed: int
    due: int
    oldest_seconds: float
    count_to: int
    problem: Literal["", "missing", "locked"] = ""


@dataclass(frozen=True)
class Overview:
    """A snapshot of workers, queues and types. ``is_complete`` is False if some queues or types are missing in it.

    ``count_to``: the number up to which jobs are counted."""

    workers: tuple[WorkerFacts, ...]
    queues: tuple[QueueFacts, ...]
    types: tuple[TypeFacts, ...]
    failing: tuple[FailingType, ...]
    database: DatabaseFacts
    count_to: int
    is_complete: bool

    @property
    def alive(self) -> list[WorkerFacts]:
        """The workers that send heartbeats."""
        return [worker for worker in self.workers if not worker.is_stale]

    @property
    def busy_slots(self) -> int:
        return sum(worker.busy for worker in self.alive)

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.alive)

    @property
    def due(self) -> int:
        """The backlog of all queues."""
        return sum(queue.due for queue in self.queues)

    @property
    def is_due_lower_bound(self) -> bool:
        return self.due >= self.count_to and any(queue.is_capped for queue in self.queues)

    @property
    def oldest_due_age_seconds(self) -> float | None:
        return max((queue.oldest_due_age_seconds or 0.0 for queue in self.queues if queue.due), default=None)

    def is_served(self, queue: QueueFacts) -> bool:
        """Return whether a live worker processes jobs of a queue."""
        return any(worker.slots and (worker.queues is None or queue.name in worker.queues) for worker in self.alive)

    def is_lower_bound(self, facts: JobCounts | RecordFacts, name: str) -> bool:
        """Return whether there may be more jobs or records than the number in this field, because counting stopped."""
        count = getattr(facts, name)
        if isinstance(facts, RecordFacts):
            return bool(count >= facts.count_to)
        if name in ("running", "blocked"):  # counted up to the limit for all queues together
            return bool(count) and sum(getattr(queue, name) for queue in self.queues) >= self.count_to
        return facts.is_capped and count >= self.count_to

    def shown(self, facts: JobCounts | RecordFacts, name: str) -> str:
        """Return a number of jobs or records as a text, with a plus sign if there may be more."""
        return number(getattr(facts, name), is_lower_bound=self.is_lower_bound(facts, name))

    def as_json(self) -> dict[str, Any]:
        """Return the overview as JSON values, with times in ISO 8601 format."""
        return json.loads(json.dumps(asdict(self), default=datetime.isoformat))  # type: ignore[no-any-return]


@has_async_twin("monitoring")
def overview(using: str | None = None, *, count_to: int = COUNT_TO) -> Overview:
    """Return an overview of workers, queues and jobs. Times are by the database's clock.

    ``count_to``: the number up to which the jobs of each queue, type and priority are counted.
    """
    if count_to < 1:
        raise ValueError(f"count_to must be 1 or more, not {count_to!r}.")
    store = get_store(using)
    return build_overview(
        store,
        pending=store.stats.pending_groups(count_to),
        held=store.stats.held_groups(count_to),
        failing=store.stats.failing_types(FAILING_SECONDS),
        count_to=count_to,
    )


aoverview = sync_to_async(overview)


def build_overview(
    store: Store,
    pending: Sequence[PendingGroup],
    held: Sequence[HeldGroup],
    failing: Sequence[FailingType],
    count_to: int,
) -> Overview:
    """Return the overview of jobs that were counted, with the current workers, queues and database."""
    workers = tuple(store.workers.present())
    return Overview(
        workers,
        _queues(store.queues.rules().queues, pending[:MAX_GROUPS], held, workers, count_to),
        _types(pending[:MAX_GROUPS], held, failing, workers, count_to),
        tuple(failing),
        store.stats.activity(),
        count_to,
        is_complete=len(pending) <= MAX_GROUPS,
    )


def _counts(
    pending: Iterable[PendingGroup], held: Sequence[HeldGroup], key: str, count_to: int, workers: Iterable[WorkerFacts]
) -> "defaultdict[str, dict[str, Any]]":
    """Return the fields of ``JobCounts`` and ``failed`` by the name of a queue or type."""
    # The types that are declared without a processor, and that no worker has a processor for.
    outside = {name for name, job_type in get_registry().job_types().items() if job_type.processor is None}
    outside -= {name for worker in workers for name in worker.type_names}
    totals: defaultdict[str, int] = defaultdict(int)
    for part in held:
        totals[part.status] += part.jobs
    numbers = ("due", "scheduled", "running", "blocked", "outside", "failed")
    counts: defaultdict[str, dict[str, Any]] = defaultdict(
        lambda: {**dict.fromkeys(numbers, 0), "oldest_due_age_seconds": None, "is_capped": False}
    )
    for group in pending:
        found, is_outside = counts[getattr(group, key)], group.type_name in outside
        found["outside" if is_outside else "due"] += group.due
        found["scheduled"] += group.scheduled
        found["is_capped"] |= count_to in (group.due, group.scheduled)
        if group.due and not is_outside:
            found["oldest_due_age_seconds"] = max(found["oldest_due_age_seconds"] or 0.0, group.due_seconds)
    for part in held:
        found = counts[getattr(part, key)]
        found[part.status] += part.jobs
        found["is_capped"] |= part.status != "failed" and totals[part.status] >= count_to
    return counts


def _queues(
    rules: Iterable[QueueRule],
    pending: Iterable[PendingGroup],
    held: Iterable[HeldGroup],
    workers: Iterable[WorkerFacts],
    count_to: int,
) -> tuple[QueueFacts, ...]:
    by_name = {rule.name: rule for rule in rules}
    counts = _counts(pending, [part for part in held if part.status != "failed"], "queue", count_to, workers)
    served = {name for worker in workers for name in worker.queues or ()}
    queues = []
    for name in sorted({*by_name, *counts, *served}):
        rule = by_name.get(name)
        found = {field: value for field, value in counts[name].items() if field != "failed"}
        is_paused, slot_limit = (rule.is_paused, rule.slot_limit) if rule else (False, None)
        queues.append(QueueFacts(name=name, **found, is_paused=is_paused, slot_limit=slot_limit))
    return tuple(queues)


def _types(
    pending: Iterable[PendingGroup],
    held: Sequence[HeldGroup],
    failing: Iterable[FailingType],
    workers: Iterable[WorkerFacts],
    count_to: int,
) -> tuple[TypeFacts, ...]:
    counts = _counts(pending, held, "type_name", count_to, workers)
    served = [name for worker in workers if not worker.is_stale for name in worker.type_names]
    names = sorted({*counts, *served, *(part.name for part in failing)})
    return tuple(TypeFacts(name=name, **counts[name], workers=served.count(name)) for name in names)


def record_overview(
    using: str | None = None,
    *,
    count_to: int = COUNT_TO,
    is_counted: Callable[[type[Model]], bool] = lambda model: True,
) -> tuple[RecordFacts, ...]:
    """Return the numbers of records of each record worker, by name.

    Models for which ``is_counted`` returns False are excluded, and models whose tables are in another database, because
    its workers process them.
    """
    alias = using or current_database()
    kinds = sorted(get_registry().record_types(), key=lambda kind: kind.name)
    return tuple(_records(kind, alias, count_to) for kind in kinds if kind.is_in(alias) and is_counted(kind.model))


def _records(kind: RecordType, using: str, count_to: int) -> RecordFacts:
    db = get_store(using).db
    # A savepoint, because an error would end the caller's transaction.
    savepoint = transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext()
    try:
        with db.waits_at_most(MAX_LOCK_SECONDS), db.limited(), savepoint:
            return _counted_records(kind, using, count_to)
    except DatabaseError as error:
        is_locked = is_lock_timeout(error)
        if not (is_locked or is_table_missing(error) or is_column_missing(error)):
            raise
    nothing = RecordFacts(kind.name, kind.model._meta.label, kind.queue, 0, 0, 0, 0, 0, 0.0, count_to)
    return replace(nothing, problem="locked" if is_locked else "missing")


def _counted_records(kind: RecordType, using: str, count_to: int) -> RecordFacts:
    counts = get_store(using).records.count_by_state(
        kind.table(using), kind.select(using), count_to, kind.retry_seconds
    )
    rows: RecordQuerySet[Model] = RecordQuerySet(kind.model, kind.queryset.query.chain(), using)
    rows.record_type = kind
    waiting = counts.queued + (counts.errored if kind.retry_seconds is not None else 0)
    return RecordFacts(
        name=kind.name,
        model=kind.model._meta.label,
        queue=kind.queue,
        queued=min(waiting, count_to),
        processing=counts.processing,
        errored=counts.errored,
        failed=counts.failed,
        due=counts.due,
        oldest_seconds=rows.max_duration_in_queue().total_seconds() if counts.due else 0.0,
        count_to=count_to,
    )


def longest_running(jobs: QuerySet[Job], limit: int) -> list[tuple[Job, float]]:
    """Return the running jobs among these, and for how many seconds they have been running, longest first.

    Only ``MAX_RUNNING`` of them are read.
    """
    running = jobs.filter(status=Status.RUNNING).annotate(now=Now())
    rows: Any = running.order_by("leased_until")[:MAX_RUNNING]  # Their index has this order.
    found = [(job, (job.now - job.last_attempt_at).total_seconds()) for job in rows if job.last_attempt_at]
    return sorted(found, key=lambda pair: -pair[1])[:limit]


def label_inputs(jobs: Iterable[Job | Chain], using: str) -> dict[UUID, str | None]:
    """Return the stored inputs of a few jobs, or of the first jobs of chains, for labels. A long one is None."""
    rows = Job.objects.using(using).filter(pk__in=[job.pk for job in jobs])
    return dict(rows.annotate(text=short_input(MAX_INPUT_LENGTH)).values_list("pk", "text"))


def troubled_schedules(rows: ScheduleQuerySet) -> list[Schedule]:
    """Return the schedules that are failing or orphaned, by name, without their inputs and errors."""
    found = rows.in_state(Schedule.State.FAILING, Schedule.State.ORPHANED).order_by("name")
    return list(found.defer("input", "last_error")[:MAX_SCHEDULES])
