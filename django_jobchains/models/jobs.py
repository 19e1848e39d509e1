"""Jobs with their progress, chains, which are a view of the jobs, and the chains that jobs wait for."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar
from uuid import UUID

from django.db import models
from django.db.models import Case, Count, F, OuterRef, Q, Value, When
from django.db.models.base import ModelState
from django.db.models.functions import Now
from django.db.models.lookups import IsNull
from django.utils.translation import gettext_lazy as _

from django_jobchains.conf import current_database
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.ids import ChainPart, ChainRef, chain_id_of, new_id
from django_jobchains.db.keyset import ChainPartQuerySet, InArray, JobTablesQuerySet, ListIndex, Orders
from django_jobchains.db.times import Times
from django_jobchains.exceptions import ChainNotFound, InvalidOutput
from django_jobchains.models.chain_view import NAME
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField, ReadOnlyInstance
from django_jobchains.notifications.waiting import await_chain, wait
from django_jobchains.payloads.codecs import Unreadable
from django_jobchains.payloads.types import HasTypes, OutputT_co, name_of, output_codec
from django_jobchains.statuses import FINAL, OPEN, Status
from django_jobchains.store.deduplication import KEY_LENGTH
from django_jobchains.values import ATTEMPTS_LIMIT, QUEUE, SCHEDULE_NAME, TYPE_NAME, DurationLike, did_you_mean

TYPE_NAME_LENGTH, QUEUE_LENGTH, SCHEDULE_NAME_LENGTH = TYPE_NAME.length, QUEUE.length, SCHEDULE_NAME.length
#: The number of ids in one statement. SQLite allows 32,766 parameters.
MAX_IDS = 10_000
#: Columns of the last job that are also columns of the chain, or that a chain does not need.
_LARGE_OF_LAST_JOB = ("current_job__input", "current_job__output", "current_job__last_error", "current_job__context")

#: ``models`` without types. A field from here can be annotated with the type of its values, which most type checkers
#: cannot derive from Django's classes.
columns: Any = models

RowsT = TypeVar("RowsT", bound=ChainPartQuerySet[Any])

#: Selects the last job of each chain. A job that has a continuation has no output, not even a JSON null.
LAST = ~Q(status=Status.COMPLETED) | Q(output__isnull=False)


def not_a_blocker(chain_id: str) -> Case:
    """Return the condition that no job has the chain as a blocker.

    PostgreSQL would read all blockers for an EXISTS. It evaluates this form by one index probe for each row, and
    expects it to be true for half of them.
    """
    links = JobBlocker.objects.filter(blocker=OuterRef(chain_id)).values("blocker_id")
    has_none = When(IsNull(models.Subquery(links[:1]), True), then=Value(True))
    return Case(has_none, default=Value(False), output_field=models.BooleanField())


class JobTable(models.Model):
    """The base of the tables around the jobs. By default, nobody has a permission for their rows in the admin."""

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        default_permissions: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return str(self.pk)


class JobQuerySet(ChainPartQuerySet["Job"]):
    page_orders: Orders = (("-chain_id", "-chain_index"), ("chain_id", "chain_index"))

    def with_status(self, *statuses: str) -> "JobQuerySet":
        """Jobs with one of these statuses, stored or as they are shown: see ``ShownStatus``."""
        return _with_status(self, statuses, {**_parts_of_statuses("run_at"), ShownStatus.CONTINUED: ~LAST})

    def of_type(self, *types: str | HasTypes[Any, Any]) -> "JobQuerySet":
        return self._any_of("type_name", tuple(map(name_of, types)))

    def of_chain_type(self, *types: str | HasTypes[Any, Any]) -> "JobQuerySet":
        """Jobs of chains that start with one of these types."""
        return self._any_of("chain_type_name", tuple(map(name_of, types)))

    def roots(self) -> "JobQuerySet":
        """Jobs of chains that no job has as a blocker."""
        return self.filter(not_a_blocker("chain_id"))

    def created_between(self, start: datetime | None, end: datetime | None) -> "JobQuerySet":
        """See ``ChainPartQuerySet.created_between``. Pages are in the order of the jobs' own ids."""
        jobs = super().created_between(start, end)
        if jobs.page_orders == JobQuerySet.page_orders:
            jobs.page_orders = (("-id",), ("id",))
        return jobs

    def of_chain(self, chain: ChainRef) -> "JobQuerySet":
        """The jobs of a chain, in the order of its steps."""
        jobs = self.filter(chain_id=chain_id_of(chain)).order_by("chain_index")
        jobs.page_orders = (("chain_index",), ("-chain_index",))
        return jobs

    def blocked_by(self, chain: ChainRef) -> "JobQuerySet":
        """Jobs that have this chain as a blocker, even if they no longer wait for it."""
        links = JobBlocker.objects.filter(blocker=chain_id_of(chain))
        return self.filter(InArray(F("id"), models.Subquery(links.values("job_id"))))


class Job(ReadOnlyInstance, ChainPart, models.Model):
    """One unit of work. A chain has the id of its first job, and continues with further jobs."""

    class OnBlockerFailure(models.TextChoices):
        WAIT = "wait", _("wait")
        FAIL = "fail", _("fail")
        RUN = "run", _("run")

    id: UUID = columns.UUIDField(primary_key=True, default=new_id, editable=False)
    chain_id: UUID = columns.UUIDField(_("chain"))
    chain_index: int = columns.PositiveIntegerField(_("step"))
    chain_type_name: str = columns.CharField(_("chain type"), max_length=TYPE_NAME_LENGTH)
    type_name: str = columns.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    queue: str = columns.CharField(_("queue"), max_length=QUEUE_LENGTH)
    #: A higher number runs first, as in ``django.tasks``.
    priority: int = columns.SmallIntegerField(_("priority"), default=0)
    status: str = columns.CharField(_("status"), max_length=10, choices=Status)
    run_at: datetime = columns.DateTimeField(_("run at"))
    attempt: int = columns.PositiveIntegerField(_("attempt"), default=0)
    #: Incremented by every claim, and checked by every write of an attempt.
    lease_number: int = columns.PositiveIntegerField(default=0)
    leased_by: str | None = columns.CharField(_("leased by"), max_length=200, null=True)  # NULL is "nobody"
    leased_until: datetime | None = columns.DateTimeField(_("leased until"), null=True)
    #: Leases that ran out, which are counted separately from failures.
    crashes: int = columns.PositiveIntegerField(_("crashes"), default=0)
    #: Attempts that ended with ``RescheduleJob``, which are not failures either. NULL means 0.
    reschedules: int | None = columns.IntegerField(_("reschedules"), null=True)
    max_attempts: int | None = columns.PositiveIntegerField(_("maximum attempts"), null=True)
    input: Any = PayloadField(_("input"), null=True)
    output: Any = PayloadField(_("output"), null=True)
    last_error: str | None = PayloadTextField(_("last error"), null=True)  # type: ignore[assignment]
    created_at: datetime = columns.DateTimeField(_("created at"))
    last_attempt_at: datetime | None = columns.DateTimeField(_("last attempt at"), null=True)
    finished_at: datetime | None = columns.DateTimeField(_("finished at"), null=True)
    #: The worker that completed the job. NULL if it was completed without a worker.
    completed_by: str | None = columns.CharField(_("completed by"), max_length=200, null=True)
    #: The deduplication key of the chain. Each job of the chain has it, so that the incomplete job is found by the key.
    deduplication_key: str | None = columns.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)
    #: Until when the first job of a chain keeps its key after the chain has ended. NULL with a key means forever.
    deduplicates_until: datetime | None = columns.DateTimeField(_("deduplicates until"), null=True)
    #: The values that were bound where the chain was enqueued (see ``context``), such as a tenant or an actor.
    context: Any = PayloadField(_("context"), null=True)
    #: When a running job was asked to stop. It is cancelled, unless its attempt completes it. If the job has expired,
    #: this is ``expires_at``.
    cancel_requested_at: datetime | None = columns.DateTimeField(_("cancel requested at"), null=True)
    #: NULL for a job without blockers.
    on_blocker_failure: str | None = columns.CharField(
        _("on blocker failure"), max_length=4, choices=OnBlockerFailure, null=True
    )

    #: The name of the schedule that enqueued the chain, and the tick for which it did. NULL for other chains.
    schedule_name: str | None = columns.CharField(_("schedule"), max_length=SCHEDULE_NAME_LENGTH, null=True)
    scheduled_for: datetime | None = columns.DateTimeField(_("scheduled for"), null=True)
    #: The failed job for which ``on_failure`` started the chain, in its first job. NULL for other jobs.
    failed_job_id: UUID | None = columns.UUIDField(_("failed job"), null=True, editable=False)
    #: If the job has not started at this time, it is cancelled. NULL for a job that does not expire, or no longer
    #: expires.
    expires_at: datetime | None = columns.DateTimeField(_("expires at"), null=True)
    #: A hash of the keys of the limits of its type, which take turns. NULL if the type has no limits.
    limit_key: int | None = columns.BigIntegerField(null=True, editable=False)
    #: The name of the type or group, and the key, by which the job is counted while it runs. NULL if it is not counted.
    concurrency_key: str | None = columns.TextField(_("concurrency key"), null=True)
    #: The name and the key by which its starts are counted. NULL if they are not counted.
    rate_key: str | None = columns.TextField(_("rate key"), null=True)

    # For type checkers without a plugin for Django, which would not know the methods of JobQuerySet. Methods that only
    # managers have, such as db_manager(), are errors there. If the annotation were a class that inherits both, filter()
    # would return a manager.
    objects: ClassVar[JobQuerySet] = JobQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = (
            ("complete_job", "Can complete jobs and continue chains"),
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel chains"),
            ("run_job", "Can run jobs now and reschedule them"),
            ("enqueue_job", "Can enqueue chains"),
            ("view_payload", "Can view inputs, outputs, errors and logs"),
        )
        constraints = (models.UniqueConstraint(fields=["chain_id", "chain_index"], name="jobchains_one_job_per_step"),)
        indexes = (
            models.Index(
                "queue",
                "type_name",
                -F("priority"),
                "run_at",
                "id",
                # Repeated as a plain column: PostgreSQL counts with an index-only scan if the index has every column.
                "priority",
                condition=Q(status=Status.PENDING),
                name="jobchains_claimable",
            ),
            models.Index(fields=["leased_until"], condition=Q(status=Status.RUNNING), name="jobchains_leased"),
            # For pages: docs/decisions/0081-indexes-of-lists.md. Also to prune, and to find jobs blocked by mistake.
            ListIndex(
                fields=["status", "chain_id", "chain_index"],
                condition=~Q(status=Status.RUNNING),
                name="jobchains_status",
            ),
            ListIndex(
                fields=["type_name", "chain_id", "chain_index"], condition=Q(status__in=FINAL), name="jobchains_type"
            ),
            # The migration adds one of the blocked and pending jobs on PostgreSQL.
            ListIndex(
                fields=["chain_type_name", "chain_id", "chain_index"],
                condition=Q(status__in=FINAL),
                name="jobchains_chain_type",
            ),
            # For failed jobs of a type, which are few. Completed jobs are not in these indexes.
            models.Index(
                fields=["type_name", "chain_id", "chain_index"],
                condition=Q(status=Status.FAILED),
                name="jobchains_failed_type",
            ),
            models.Index(
                fields=["chain_type_name", "chain_id"], condition=Q(status=Status.FAILED), name="jobchains_failed_chain"
            ),
            # For pages by queue: docs/decisions/0040-queue-index.md.
            ListIndex(
                fields=["queue", "chain_id", "chain_index"], condition=Q(status__in=FINAL), name="jobchains_queue"
            ),
            models.Index(
                fields=["queue", "chain_id", "chain_index"],
                condition=Q(status=Status.FAILED),
                name="jobchains_failed_queue",
            ),
            models.Index(
                fields=["deduplication_key", "chain_type_name"],
                condition=Q(deduplication_key__isnull=False, status__in=OPEN),
                name="jobchains_open_key",
            ),
            models.Index(
                fields=["deduplication_key", "chain_type_name", "created_at"],
                condition=Q(deduplication_key__isnull=False, chain_index=0),
                name="jobchains_key",
            ),
            # The chains of a schedule. Only their jobs are in it.
            models.Index(
                fields=["schedule_name", "chain_id", "chain_index"],
                condition=Q(schedule_name__isnull=False),
                name="jobchains_schedule",
            ),
            # The chains that ``on_failure`` started for a job. Only their first jobs are in it.
            models.Index(
                fields=["failed_job_id"], condition=Q(failed_job_id__isnull=False), name="jobchains_failed_job"
            ),
            # Jobs that may still expire. The first condition is false for other jobs.
            models.Index(
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False) & Q(attempt=0, status__in=(Status.BLOCKED, Status.PENDING)),
                name="jobchains_expiring",
            ),
            # Jobs of limited types, which are not in other types' way: docs/decisions/0091-limits.md.
            models.Index(
                "queue",
                "type_name",
                "limit_key",
                -F("priority"),
                "run_at",
                "id",
                condition=Q(status=Status.PENDING, limit_key__isnull=False),
                name="jobchains_limited",
            ),
            models.Index(
                fields=["concurrency_key"],
                condition=Q(status=Status.RUNNING, concurrency_key__isnull=False),
                name="jobchains_counted",
            ),
        )

    def __str__(self) -> str:
        return f"{self.type_name} {self.id}"

    @property
    def blockers(self) -> "list[Chain[Any]]":
        """The chains that the job waits for or has waited for, in their declared order, read from the database."""
        return Chain.blockers_of([self.id], self._state.db or current_database()).get(self.id, [])

    @property
    def progress(self) -> "JobProgress | None":
        """What ``job.set_progress`` last reported, or None before the first report.

        ``select_related("reported_progress")`` avoids a query for each job.
        """
        progress: JobProgress | None = getattr(self, "reported_progress", None)
        return progress

    @property
    def completed_in_seconds(self) -> float | None:
        """The time from the claim of the last attempt until the completion was stored, by the database's clock.

        None if the job is not completed, or was completed without a worker.
        """
        if self.status != Status.COMPLETED or not (self.completed_by and self.last_attempt_at and self.finished_at):
            return None
        return (self.finished_at - self.last_attempt_at).total_seconds()

    @property
    def may_expire(self) -> bool:
        """Whether the job expires at ``expires_at`` if it has not started."""
        is_waiting = self.status in (Status.BLOCKED, Status.PENDING) and not self.attempt
        return is_waiting and self.expires_at is not None

    @property
    def is_expired(self) -> bool:
        """Whether the job was cancelled because it had not started when it expired."""
        return _is_expired(self)

    @property
    def finite_max_attempts(self) -> int | None:
        """The limit that was passed when the job was enqueued, or None if there is none."""
        return None if self.max_attempts == ATTEMPTS_LIMIT else self.max_attempts

    @property
    def counted_attempts(self) -> int:
        """The number of attempts that count towards ``max_attempts``: failed attempts, and the running one."""
        return self.attempt - self.crashes - (self.reschedules or 0)


class JobBlocker(JobTable):
    """One chain that a job waits for. The row stays after the chain has ended, so that the job can read its output."""

    pk = models.CompositePrimaryKey("job_id", "position")
    job = models.ForeignKey(Job, models.CASCADE, related_name="blocker_links", db_index=False, verbose_name=_("job"))
    #: From 0, in the order in which the blockers were passed.
    position = models.PositiveIntegerField(_("position"))
    #: The first job of the chain.
    blocker = models.ForeignKey(
        Job, models.PROTECT, related_name="dependent_links", db_index=False, verbose_name=_("blocker")
    )
    #: True until the chain has ended in a way that lets the job run.
    is_open = models.BooleanField(_("open"))

    class Meta(JobTable.Meta):
        verbose_name = _("blocker")
        verbose_name_plural = _("blockers")
        indexes = (
            models.Index(fields=["blocker", "job"], name="jobchains_blocks"),
            models.Index(fields=["job"], condition=Q(is_open=True), name="jobchains_open_blocker"),
        )

    def __str__(self) -> str:
        return f"job {self.job_id} waits for chain {self.blocker_id}"


class JobProgress(JobTable):
    """The last call of ``job.set_progress``.

    The row stays when another attempt begins. It is outdated if its ``lease_number`` differs from the job's.
    """

    job: Job = columns.OneToOneField(
        Job, models.CASCADE, primary_key=True, related_name="reported_progress", db_index=False, verbose_name=_("job")
    )
    #: The lease number of the attempt that wrote it.
    lease_number: int = columns.PositiveIntegerField()
    attempt: int = columns.PositiveIntegerField(_("attempt"))
    #: From 0 to 1.
    fraction: float = columns.FloatField(_("fraction"))
    text: str = PayloadTextField(_("text"))  # type: ignore[assignment]
    logged_at: datetime = columns.DateTimeField(_("logged at"))

    class Meta(JobTable.Meta):
        verbose_name = _("progress")
        verbose_name_plural = _("progress")

    def __str__(self) -> str:
        return f"{self.fraction:.0%} {self.text}".rstrip()


class ChainQuerySet(ChainPartQuerySet["Chain"]):
    page_orders: Orders = (("-id",), ("id",))

    def with_status(self, *statuses: str) -> "ChainQuerySet":
        """Chains whose last job has one of these statuses, stored or as they are shown: see ``ShownStatus``."""
        return _with_status(self, statuses, _parts_of_statuses("current_job__run_at"))

    def of_type(self, *types: str | HasTypes[Any, Any]) -> "ChainQuerySet":
        return self._any_of("type_name", tuple(map(name_of, types)))

    def of_chain_type(self, *types: str | HasTypes[Any, Any]) -> "ChainQuerySet":
        """The same as ``of_type``, so that chains and jobs can be filtered in the same way."""
        return self.of_type(*types)

    def roots(self) -> "ChainQuerySet":
        """Chains that no job has as a blocker."""
        return self.filter(not_a_blocker("id"))

    def blocked_by(self, chain: ChainRef) -> "ChainQuerySet":
        """Chains with a job that has this chain as a blocker, even if it no longer waits for it."""
        links = JobBlocker.objects.filter(blocker=chain_id_of(chain))
        return self.filter(InArray(F("id"), models.Subquery(links.values("job__chain_id"))))

    def update(self, **values: Any) -> NoReturn:
        raise TypeError("Chains cannot be updated directly. Use the functions of django_jobchains.chains.")

    def delete(self) -> NoReturn:
        raise TypeError("Chains cannot be deleted directly. Use django_jobchains.chains.delete(ids).")

    update.alters_data = delete.alters_data = True  # type: ignore[attr-defined]


class BlockersProgress(NamedTuple):
    """Of the chains that a job waits or waited for: how many have ended so that it may run, and how many there are."""

    ended: int
    total: int


class OutputField(PayloadField):
    """The output of a chain. Queries call it ``output``; instances have the JSON value as ``stored_output``."""

    def contribute_to_class(self, cls: type[models.Model], name: str, private_only: bool = False) -> None:
        super().contribute_to_class(cls, "output", private_only)

    def get_attname(self) -> str:
        return f"stored_{self.name}"

    def get_attname_column(self) -> tuple[str, str]:
        return self.get_attname(), self.name


class Chain(ReadOnlyInstance, ChainPart[OutputT_co], models.Model):
    """A job and its continuations. It has the input of the first job, and the status and output of the last job.

    An instance is a snapshot. The chain that ``enqueue`` returns reads further fields, such as ``status``, from the
    database on first access, and ``refresh()`` reads all fields again. In async code, which cannot read fields in this
    way, use ``await chains.aget(chain.id)``. ``input`` is the JSON value as stored.
    """

    id: UUID = columns.UUIDField(primary_key=True, editable=False)
    type_name: str = columns.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    input: Any = PayloadField(_("input"), null=True)
    deduplication_key: str | None = columns.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)
    created_at: datetime = columns.DateTimeField(_("created at"))
    #: The last job of the chain so far.
    current_job: Job = columns.ForeignKey(Job, models.DO_NOTHING, related_name="+", verbose_name=_("current job"))
    current_job_id: UUID
    status: str = columns.CharField(_("status"), max_length=10, choices=Status)
    #: The queue of the current job.
    queue: str = columns.CharField(_("queue"), max_length=QUEUE_LENGTH)
    #: The output of the last job, as stored. None until the chain is completed.
    stored_output: Any = OutputField(_("output"), null=True)
    last_error: str | None = PayloadTextField(_("last error"), null=True)  # type: ignore[assignment]
    finished_at: datetime | None = columns.DateTimeField(_("finished at"), null=True)
    #: The name of the schedule that enqueued the chain, and the tick for which it did. None for other chains.
    schedule_name: str | None = columns.CharField(_("schedule"), max_length=SCHEDULE_NAME_LENGTH, null=True)
    scheduled_for: datetime | None = columns.DateTimeField(_("scheduled for"), null=True)
    #: When the current job expires, or None.
    expires_at: datetime | None = columns.DateTimeField(_("expires at"), null=True)
    cancel_requested_at: datetime | None = columns.DateTimeField(_("cancel requested at"), null=True)

    #: Whether ``enqueue`` returned an existing chain.
    deduplicated = False
    #: Whether ``enqueue`` replaced values of the existing chain, see ``Deduplicate``. False if the chain has started.
    replaced = False
    #: The JobType with which the caller enqueued the chain. It may be missing in the registry.
    job_type: Any = None

    objects: ClassVar[ChainQuerySet] = ChainQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        base_manager_name = "objects"
        managed = False  # a view, see chain_view
        db_table = NAME
        verbose_name = _("chain")
        verbose_name_plural = _("chains")
        default_permissions = ("view", "delete")

    def __str__(self) -> str:
        return f"{self.type_name} {self.id}"

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles contain: no JobType, whose processor may have middleware with locks."""
        state: dict[str, Any] = super().__getstate__()
        state.pop("job_type", None)
        return state

    @classmethod
    def partly_known(cls, using: str) -> Self:
        """Create a chain with all fields deferred, for the caller to set. Faster than ``from_db``."""
        chain = cls.__new__(cls)
        chain._state = ModelState()
        chain._state.adding, chain._state.db = False, using
        return chain

    @classmethod
    def load(cls, job_id: UUID, using: str) -> "Chain":
        """Read the chain of a job. Raises ``ChainNotFound``."""
        chain_id = models.Subquery(Job.objects.filter(pk=job_id).values("chain_id")[:1])
        try:
            return cls._of_last_job(cls.objects.using(using), chain_id).get()
        except cls.DoesNotExist as error:
            raise ChainNotFound(job_id) from error

    @staticmethod
    def _of_last_job(chains: ChainQuerySet, chain_id: UUID | models.Subquery) -> ChainQuerySet:
        """Find the chain by its last job, which is fast however many jobs it has, and read both at the same moment."""
        last = Job.objects.filter(chain_id=chain_id).order_by("-chain_index").values("id")[:1]
        return chains.filter(current_job__in=last).select_related("current_job")

    @classmethod
    def blockers_of(cls, job_ids: Iterable[UUID], using: str) -> "dict[UUID, list[Chain]]":
        """Return the blockers of each job, in the order in which they were passed.

        Each chain is found by its last job with one index probe: the view would scan every job of a long chain.
        """
        last = Job.objects.filter(chain_id=OuterRef("blocker_id")).order_by("-chain_index").values("id")[:1]
        links = JobBlocker.objects.using(using).filter(job_id__in=job_ids).order_by("job_id", "position")
        rows = list(links.values_list("job_id", "blocker_id", models.Subquery(last)))
        last_ids = list({last_id for _, _, last_id in rows})
        chains: dict[UUID, Chain] = {}
        for start in range(0, len(last_ids), MAX_IDS):
            found = cls.objects.using(using).filter(current_job__in=last_ids[start : start + MAX_IDS])
            chains |= found.select_related("current_job").defer(*_LARGE_OF_LAST_JOB).in_bulk()
        blockers: dict[UUID, list[Chain]] = {}
        for job_id, chain_id, _last in rows:  # a failed chain may have been retried and continued in between
            blockers.setdefault(job_id, []).append(chains.get(chain_id) or cls.load(chain_id, using))
        return blockers

    @property
    def output(self) -> OutputT_co:
        """The output of the last job, as a value of its type. None until the chain is completed.

        It is a JSON value if no app declares the type of the last job. Raises ``InvalidOutput`` if the stored value
        does not fit the type. For several chains, ``select_related("current_job")`` avoids a query for each of them.
        """
        output: OutputT_co = self.stored_output
        if isinstance(output, Unreadable):
            raise InvalidOutput(f"Chain {self.id}: {output.reason}")
        if self.status == Status.COMPLETED:
            output = output_codec(self.last_type_name, self.job_type).validate(output, InvalidOutput)
        return output

    @property
    def is_expired(self) -> bool:
        """Whether the chain was cancelled because its current job had not started when it expired."""
        return _is_expired(self)

    @property
    def last_type_name(self) -> str:
        """The type of the last job."""
        return self.type_name if self.current_job_id == self.id else self.current_job.type_name

    @property
    def chain_id(self) -> UUID:  # type: ignore[override]
        """The same as ``id``, so that chains and jobs can be passed in the same way."""
        return self.id

    @property
    def using(self) -> str:
        """The alias of the database from which the chain was read."""
        return self._state.db or current_database()

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs in the order of their steps."""
        return Job.objects.using(self.using).of_chain(self)

    @property
    def progress(self) -> "JobProgress | None":
        """The progress of the current job, or None before its first report."""
        return self.current_job.progress

    @property
    def blockers_progress(self) -> BlockersProgress:
        """The number of chains that the current job waits for, and how many of them have ended. Executes one query."""
        links = JobBlocker.objects.using(self.using).filter(job_id=self.current_job_id)
        counts = links.aggregate(total=Count("position"), ended=Count("position", filter=Q(is_open=False)))
        return BlockersProgress(counts["ended"], counts["total"])

    def refresh(self) -> Self:
        """Read the chain again. Raises ``ChainNotFound`` if it has been deleted."""
        self.refresh_from_db()
        return self

    @has_async_twin("chain")
    def result(self, timeout: DurationLike | None) -> OutputT_co:
        """Wait until the chain has ended, and return its output; see ``chains.wait``."""
        output: OutputT_co = wait(self, timeout, using=self.using)
        return output

    async def aresult(self, timeout: DurationLike | None) -> OutputT_co:  # noqa: ASYNC109
        """The async twin of ``result``; see ``chains.await_chain``."""
        output: OutputT_co = await await_chain(self, timeout, using=self.using)
        return output

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: "models.QuerySet[Chain] | None" = None,
    ) -> None:
        """Read all missing fields together, so that status, output and current job belong to the same moment."""
        if fields is None:
            names = {field.attname for field in self._meta.concrete_fields}
        else:
            names = {*self.get_deferred_fields(), *fields}
        if from_queryset is None:
            from_queryset = self._of_last_job(Chain.objects.using(using or self.using), self.id)
            if not names & {"current_job", "current_job_id"}:
                from_queryset = from_queryset.select_related(None)
        try:
            super().refresh_from_db(using=using, fields=names, from_queryset=from_queryset)
        except Chain.DoesNotExist as error:
            raise ChainNotFound(self.id) from error


class ShownStatus(models.TextChoices):
    """The status of a job as people see it, which also depends on other columns.

    As a filter, each stored status includes the rows that are shown with a more precise one.
    """

    BLOCKED = "blocked", _("blocked")
    #: Pending, but not due yet.
    SCHEDULED = "scheduled", _("scheduled")
    PENDING = "pending", _("pending")
    RUNNING = "running", _("running")
    #: Running, but asked to stop.
    STOPPING = "stopping", _("stopping")
    #: Completed, with a continuation.
    CONTINUED = "continued", _("continued")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")
    #: Cancelled, because it had not started when it expired.
    EXPIRED = "expired", _("expired")


def _is_expired(row: Job | Chain) -> bool:
    is_due = row.expires_at is not None and row.cancel_requested_at == row.expires_at
    return is_due and row.status == Status.CANCELLED


def shown_status(job: Job, times: Times, *, is_last: bool = True) -> ShownStatus:
    if job.status == Status.PENDING and times.seconds_since(job.run_at) < 0:
        return ShownStatus.SCHEDULED
    if job.status == Status.COMPLETED and not is_last:
        return ShownStatus.CONTINUED
    if job.status == Status.RUNNING and job.cancel_requested_at:
        return ShownStatus.STOPPING
    if job.is_expired:
        return ShownStatus.EXPIRED
    return ShownStatus(job.status)


#: The stored statuses of the rows that are shown with another one.
_STORED = {
    ShownStatus.SCHEDULED.value: Status.PENDING.value,
    ShownStatus.STOPPING.value: Status.RUNNING.value,
    ShownStatus.CONTINUED.value: Status.COMPLETED.value,
    ShownStatus.EXPIRED.value: Status.CANCELLED.value,
}


def _parts_of_statuses(run_at: str) -> dict[str, Q]:
    """Return what distinguishes the statuses that only people see. ``run_at``: the name of the column."""
    return {
        ShownStatus.SCHEDULED: Q(**{f"{run_at}__gt": Now()}),
        ShownStatus.STOPPING: Q(cancel_requested_at__isnull=False),
        ShownStatus.EXPIRED: Q(cancel_requested_at=F("expires_at")),
    }


def _with_status(rows: RowsT, statuses: tuple[str, ...], parts: dict[str, Q]) -> RowsT:
    """Return the rows with one of these statuses. The stored ones find an index. Raises ``ValueError``."""
    known = [status for status in ShownStatus.values if status in Status.values or status in parts]
    if unknown := [status for status in statuses if status not in known]:
        text = "is a status of jobs only" if unknown[0] == ShownStatus.CONTINUED else "is not a status"
        raise ValueError(f"{unknown[0]!r} {text}.{did_you_mean(str(unknown[0]), known)} Known: {', '.join(known)}.")
    found = rows._any_of("status", tuple(_STORED.get(status, status) for status in map(str, statuses)))
    if any(status in parts for status in statuses):
        either = Q(status__in=[status for status in statuses if status not in parts])
        for status in statuses:
            if status in parts:
                either |= Q(parts[status], status=_STORED[status])
        found = found.filter(either)
    return found
