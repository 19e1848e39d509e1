"""Jobs, and the chains that they wait for."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import models
from django.db.models import Case, F, OuterRef, Q, Value, When
from django.db.models.lookups import IsNull
from django.utils.translation import gettext_lazy as _

from django_jobchains.conf import get_settings
from django_jobchains.db.ids import ChainPart, ChainRef, chain_id_of, new_id
from django_jobchains.db.keyset import InArray, JobTablesQuerySet, Orders, PagedQuerySet
from django_jobchains.db.times import Times
from django_jobchains.enqueue_options import KEY_LENGTH
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.policies import ATTEMPTS_LIMIT
from django_jobchains.statuses import OPEN, Status

if TYPE_CHECKING:
    from django_jobchains.models.chains import Chain

TYPE_NAME_LENGTH = 200
QUEUE_LENGTH = 100

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


class JobQuerySet(PagedQuerySet["Job"]):
    page_orders: Orders = (("-chain_id", "-chain_index"), ("chain_id", "chain_index"))

    def with_status(self, *statuses: str) -> "JobQuerySet":
        return self._any_of("status", check_statuses(statuses))

    def of_type(self, *type_names: str) -> "JobQuerySet":
        return self._any_of("type_name", type_names)

    def of_chain_type(self, *type_names: str) -> "JobQuerySet":
        """Jobs of chains that start with one of these types."""
        return self._any_of("chain_type_name", type_names)

    def roots(self) -> "JobQuerySet":
        """Jobs of chains that no job has as a blocker."""
        return self.filter(not_a_blocker("chain_id"))

    def created_between(self, start: datetime | None, end: datetime | None) -> "JobQuerySet":
        """See ``PagedQuerySet.created_between``. Pages are in the order of the jobs' own ids."""
        jobs = super().created_between(start, end)
        if jobs.page_orders == JobQuerySet.page_orders:
            jobs.page_orders = (("-id",), ("id",))
        return jobs

    def of_chain(self, chain: ChainRef) -> "JobQuerySet":
        """The jobs of a chain, in the order of its steps."""
        jobs = self.filter(chain_id=chain_id_of(chain)).order_by("chain_index")
        jobs.page_orders = (("chain_index",), ("-chain_index",))
        return jobs

    def incomplete(self) -> "JobQuerySet":
        """Jobs that may still run: blocked, pending or running."""
        return self._any_of("status", OPEN)

    def blocked_by(self, chain: ChainRef) -> "JobQuerySet":
        """Jobs that have this chain as a blocker, even if they no longer wait for it."""
        links = JobBlocker.objects.filter(blocker=chain_id_of(chain))
        return self.filter(InArray(F("id"), models.Subquery(links.values("job_id"))))


class Job(ChainPart, models.Model):
    """One unit of work. A chain has the id of its first job, and continues with further jobs."""

    class OnBlockerFailure(models.TextChoices):
        WAIT = "wait", _("wait")
        FAIL = "fail", _("fail")
        RUN = "run", _("run")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    chain_id = models.UUIDField(_("chain"))
    chain_index = models.PositiveIntegerField(_("step"))
    chain_type_name = models.CharField(_("chain type"), max_length=TYPE_NAME_LENGTH)
    type_name = models.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    queue = models.CharField(_("queue"), max_length=QUEUE_LENGTH)
    #: A higher number runs first, as in ``django.tasks``.
    priority = models.SmallIntegerField(_("priority"), default=0)
    status = models.CharField(_("status"), max_length=10, choices=Status)
    run_at = models.DateTimeField(_("run at"))
    attempt = models.PositiveIntegerField(_("attempt"), default=0)
    #: Incremented by every claim, and checked by every write of an attempt.
    lease_number = models.PositiveIntegerField(default=0)
    leased_by = models.CharField(_("leased by"), max_length=200, null=True)  # noqa: DJ001 - NULL is "nobody"
    leased_until = models.DateTimeField(_("leased until"), null=True)
    #: Leases that ran out, which are counted separately from failures.
    crashes = models.PositiveIntegerField(_("crashes"), default=0)
    #: Attempts that ended with ``RescheduleJob``, which are not failures either. NULL is 0, as in most jobs.
    reschedules = models.IntegerField(_("reschedules"), null=True)
    max_attempts = models.PositiveIntegerField(_("maximum attempts"), null=True)
    input = PayloadField(_("input"), null=True)
    output = PayloadField(_("output"), null=True)
    last_error = PayloadTextField(_("last error"), null=True)
    created_at = models.DateTimeField(_("created at"))
    last_attempt_at = models.DateTimeField(_("last attempt at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    #: The worker that completed it. NULL if it was completed without a worker.
    completed_by = models.CharField(_("completed by"), max_length=200, null=True)  # noqa: DJ001
    #: The key of the chain. Each job of the chain has it, so that the unfinished one can be found by it.
    deduplication_key = models.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)  # noqa: DJ001
    #: Until when the first job of a chain keeps its key after the chain has ended. NULL with a key means forever.
    deduplicates_until = models.DateTimeField(_("deduplicates until"), null=True)
    #: The values that were bound where the chain was enqueued (see ``context``), such as a tenant or an actor.
    context = PayloadField(_("context"), null=True)
    #: When a running job was asked to stop. It is cancelled, unless its attempt completes it.
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True)
    #: NULL for a job without blockers.
    on_blocker_failure = models.CharField(  # noqa: DJ001
        _("on blocker failure"), max_length=4, choices=OnBlockerFailure, null=True
    )

    objects = JobQuerySet.as_manager()

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
            # For pages by status and by type, and for the sweeper.
            models.Index(fields=["status", "chain_id", "chain_index"], name="jobchains_status"),
            models.Index(fields=["type_name", "chain_id", "chain_index"], name="jobchains_type"),
            # For pages of chains of a type, and of their jobs.
            models.Index(fields=["chain_type_name", "chain_id", "chain_index"], name="jobchains_chain_type"),
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
            models.Index(fields=["queue", "chain_id", "chain_index"], name="jobchains_queue"),
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
        )

    def __str__(self) -> str:
        return f"{self.type_name} {self.id}"

    @property
    def blockers(self) -> "list[Chain[Any]]":
        """The chains that the job waits for or has waited for, in their declared order, read from the database."""
        chain: Any = apps.get_model("django_jobchains", "Chain")  # that module imports this one
        by_job: dict[Any, list[Chain[Any]]] = chain.blockers_of([self.id], self._state.db or get_settings().DATABASE)
        return by_job.get(self.id, [])

    @property
    def finite_max_attempts(self) -> int | None:
        """The limit that was passed when the job was enqueued, or None if there is none."""
        return None if self.max_attempts == ATTEMPTS_LIMIT else self.max_attempts

    @property
    def counted_attempts(self) -> int:
        """The attempts that count towards the limit: failed ones, and one that is running."""
        return self.attempt - self.crashes - (self.reschedules or 0)


class JobBlocker(models.Model):
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

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("blocker")
        verbose_name_plural = _("blockers")
        default_permissions = ()
        indexes = (
            models.Index(fields=["blocker", "job"], name="jobchains_blocks"),
            models.Index(fields=["job"], condition=Q(is_open=True), name="jobchains_open_blocker"),
        )

    def __str__(self) -> str:
        return f"job {self.job_id} waits for chain {self.blocker_id}"


class ShownStatus(models.TextChoices):
    """The status of a job as people see it, which also depends on other columns."""

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


def shown_status(job: Job, times: Times, *, is_last: bool = True) -> ShownStatus:
    if job.status == Status.PENDING and times.seconds_since(job.run_at) < 0:
        return ShownStatus.SCHEDULED
    if job.status == Status.COMPLETED and not is_last:
        return ShownStatus.CONTINUED
    if job.status == Status.RUNNING and job.cancel_requested_at:
        return ShownStatus.STOPPING
    return ShownStatus(job.status)


def check_statuses(statuses: tuple[str, ...]) -> tuple[str, ...]:
    """Return the statuses. Raises ``ValueError`` for one that does not exist."""
    if unknown := [status for status in statuses if status not in Status.values]:
        raise ValueError(f"{unknown[0]!r} is not a status. Known: {', '.join(Status.values)}.")
    return statuses
