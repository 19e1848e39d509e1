"""Jobs, and the chains they wait for."""

from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from django_jobchains.deduplication import KEY_LENGTH
from django_jobchains.ids import ChainPart, ChainRef, chain_id_of, new_id
from django_jobchains.pages import JobTablesQuerySet, Orders, PagedQuerySet
from django_jobchains.statuses import OPEN, Status

TYPE_NAME_LENGTH = 200
QUEUE_LENGTH = 100

#: The last job of its chain: one that the chain went on from has no output, not even a JSON null.
LAST = ~Q(status=Status.COMPLETED) | Q(output__isnull=False)


class Among(models.Func):
    """``id IN (…)``, for which PostgreSQL would rather walk through all rows in the order of the page."""

    template = "%(expressions)s"
    arg_joiner = " IN "
    output_field = models.BooleanField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(ARRAY", **extra)


class JobQuerySet(PagedQuerySet["Job"]):
    page_orders: Orders = (("-chain_id", "-chain_index"), ("chain_id", "chain_index"))

    def with_status(self, *statuses: str) -> "JobQuerySet":
        return self._any_of("status", known(statuses))

    def of_type(self, *type_names: str) -> "JobQuerySet":
        return self._any_of("type_name", type_names)

    def of_chain(self, chain: ChainRef) -> "JobQuerySet":
        """The jobs of a chain, in the order of its steps."""
        jobs = self.filter(chain_id=chain_id_of(chain)).order_by("chain_index")
        jobs.page_orders = (("chain_index",), ("-chain_index",))
        return jobs

    def incomplete(self) -> "JobQuerySet":
        """Jobs that may still run: blocked, pending or running."""
        return self._any_of("status", OPEN)

    def blocked_by(self, chain: ChainRef) -> "JobQuerySet":
        """Jobs that have this chain as a blocker, also when they no longer wait for it."""
        links = JobBlocker.objects.filter(blocker=chain_id_of(chain))
        return self.filter(Among(F("id"), models.Subquery(links.values("job_id"))))


class Job(ChainPart, models.Model):
    """One unit of work. A chain is its first job: ``chain_id == id`` there, and continuations carry it on."""

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
    #: Rises at every claim; every write of an attempt asks for it.
    lease_number = models.PositiveIntegerField(default=0)
    leased_by = models.CharField(_("leased by"), max_length=200, null=True)  # noqa: DJ001 - NULL is "nobody"
    leased_until = models.DateTimeField(_("leased until"), null=True)
    #: Leases that ran out, counted apart from failures.
    crashes = models.PositiveIntegerField(_("crashes"), default=0)
    max_attempts = models.PositiveIntegerField(_("maximum attempts"), null=True)
    input = models.JSONField(_("input"), null=True)
    output = models.JSONField(_("output"), null=True)
    last_error = models.TextField(_("last error"), null=True)  # noqa: DJ001 - NULL is "none"
    created_at = models.DateTimeField(_("created at"))
    last_attempt_at = models.DateTimeField(_("last attempt at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    #: The worker that completed it; NULL when it was completed without one.
    completed_by = models.CharField(_("completed by"), max_length=200, null=True)  # noqa: DJ001
    #: Of the chain: each of its jobs carries it, so that the one that is not final can be found by it.
    deduplication_key = models.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)  # noqa: DJ001
    #: What was bound where the chain was enqueued (see ``context``): a tenant, an actor; NULL when nothing was.
    context = models.JSONField(_("context"), null=True)
    #: A running job was asked to stop; whichever way its attempt ends, but by completing, it is cancelled.
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True)
    #: Of a job with blockers; NULL for one without.
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
                # Once more, as itself: PostgreSQL counts by the index alone only if it has each column that is named.
                "priority",
                condition=Q(status=Status.PENDING),
                name="jobchains_claimable",
            ),
            models.Index(fields=["leased_until"], condition=Q(status=Status.RUNNING), name="jobchains_leased"),
            # Pages by status and by type, and the sweeper.
            models.Index(fields=["status", "chain_id", "chain_index"], name="jobchains_status"),
            models.Index(fields=["type_name", "chain_id", "chain_index"], name="jobchains_type"),
            # Pages of chains of a type; the condition is the view's.
            models.Index(fields=["chain_type_name", "chain_id"], condition=LAST, name="jobchains_chain_type"),
            # What failed of a type, few among many of both. A job that completes is in neither.
            models.Index(
                fields=["type_name", "chain_id", "chain_index"],
                condition=Q(status=Status.FAILED),
                name="jobchains_failed_type",
            ),
            models.Index(
                fields=["chain_type_name", "chain_id"], condition=Q(status=Status.FAILED), name="jobchains_failed_chain"
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


class JobBlocker(models.Model):
    """One chain a job waits for. The row stays when the chain has ended: the job reads its output by it."""

    pk = models.CompositePrimaryKey("job_id", "position")
    job = models.ForeignKey(Job, models.CASCADE, related_name="blocker_links", db_index=False, verbose_name=_("job"))
    #: Counts from 0, in the order the blockers were given.
    position = models.PositiveIntegerField(_("position"))
    #: The first job of the chain.
    blocker = models.ForeignKey(
        Job, models.PROTECT, related_name="dependent_links", db_index=False, verbose_name=_("blocker")
    )
    #: Until the chain has ended so that the job may run.
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


def known(statuses: tuple[str, ...]) -> tuple[str, ...]:
    """The statuses; raises ``ValueError`` for one that there is not."""
    if unknown := [status for status in statuses if status not in Status.values]:
        raise ValueError(f"{unknown[0]!r} is no status. Known: {', '.join(Status.values)}.")
    return statuses
