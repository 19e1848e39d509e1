"""What is stored. Rows are written by ``store`` alone; the models are for asking, the admin and migrations."""

from collections.abc import Iterable
from typing import Any, NoReturn
from uuid import UUID

from django.db import models
from django.db.models import F, Q
from django.db.models.base import ModelState
from django.utils.translation import gettext_lazy as _

from django_jobchains.chain_view import NAME
from django_jobchains.deduplication import KEY_LENGTH
from django_jobchains.exceptions import ChainNotFound
from django_jobchains.ids import new_id
from django_jobchains.pages import Orders, PagedQuerySet
from django_jobchains.statuses import OPEN, Status

TYPE_NAME_LENGTH = 200
QUEUE_LENGTH = 100

#: The last job of its chain: one that the chain went on from has no output, not even a JSON null.
LAST = ~Q(status=Status.COMPLETED) | Q(output__isnull=False)


class _Among(models.Func):
    """``id IN (…)``, for which PostgreSQL would rather walk through all rows in the order of the page."""

    template = "%(expressions)s"
    arg_joiner = " IN "
    output_field = models.BooleanField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(ARRAY", **extra)


class JobQuerySet(PagedQuerySet["Job"]):
    page_orders: Orders = (("-chain_id", "-chain_index"), ("chain_id", "chain_index"))

    def with_status(self, *statuses: str) -> "JobQuerySet":
        return self._any_of("status", _known(statuses))

    def of_type(self, *type_names: str) -> "JobQuerySet":
        return self._any_of("type_name", type_names)

    def of_chain(self, chain: "Chain | UUID") -> "JobQuerySet":
        """The jobs of a chain, in the order of its steps."""
        jobs = self.filter(chain_id=_id_of(chain)).order_by("chain_index")
        jobs.page_orders = (("chain_index",), ("-chain_index",))
        return jobs

    def incomplete(self) -> "JobQuerySet":
        """Jobs that may still run: blocked, pending or running."""
        return self._any_of("status", OPEN)

    def blocked_by(self, chain: "Chain | UUID") -> "JobQuerySet":
        """Jobs that have this chain as a blocker, also when they no longer wait for it."""
        links = JobBlocker.objects.filter(blocker=_id_of(chain))
        return self.filter(_Among(F("id"), models.Subquery(links.values("job_id"))))


class Job(models.Model):
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
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        constraints = (models.UniqueConstraint(fields=["chain_id", "chain_index"], name="jobchains_one_job_per_step"),)
        indexes = (
            models.Index(
                "queue",
                "type_name",
                -F("priority"),
                "run_at",
                "id",
                condition=Q(status=Status.PENDING),
                name="jobchains_claimable",
            ),
            models.Index(fields=["leased_until"], condition=Q(status=Status.RUNNING), name="jobchains_leased"),
            # Pages by status and by type, and the sweeper.
            models.Index(fields=["status", "chain_id", "chain_index"], name="jobchains_status"),
            models.Index(fields=["type_name", "chain_id", "chain_index"], name="jobchains_type"),
            # Pages of chains of a type; the condition is the view's.
            models.Index(fields=["chain_type_name", "chain_id"], condition=LAST, name="jobchains_chain_type"),
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

    class Meta:
        verbose_name = _("blocker")
        verbose_name_plural = _("blockers")
        indexes = (
            models.Index(fields=["blocker", "job"], name="jobchains_blocks"),
            models.Index(fields=["job"], condition=Q(is_open=True), name="jobchains_open_blocker"),
        )

    def __str__(self) -> str:
        return f"job {self.job_id} waits for chain {self.blocker_id}"


class FailedAttempt(models.Model):
    """One attempt that did not complete its job. Attempts that succeed cost no row."""

    class Kind(models.TextChoices):
        ERROR = "error", _("error")
        CRASH = "crash", _("crash")

    #: Without an index of its own: the constraint below starts with it.
    job = models.ForeignKey(Job, models.CASCADE, related_name="failed_attempts", db_index=False, verbose_name=_("job"))
    attempt = models.PositiveIntegerField(_("attempt"))
    lease_number = models.PositiveIntegerField()
    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    error = models.TextField(_("error"))
    traceback = models.TextField(_("traceback"))
    worker = models.CharField(_("worker"), max_length=200)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"))

    class Meta:
        verbose_name = _("failed attempt")
        verbose_name_plural = _("failed attempts")
        constraints = (models.UniqueConstraint(fields=["job", "lease_number"], name="jobchains_one_row_per_attempt"),)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}"


class WorkerPresence(models.Model):
    """A worker that runs, or did until a moment ago: it renews its row. No job refers to it."""

    #: New for each start of a worker: ``name:pid:…``, as in ``Job.leased_by``.
    id = models.CharField(primary_key=True, max_length=200)
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process"))
    version = models.CharField(_("version"), max_length=50)
    slots = models.PositiveIntegerField(_("slots"))
    busy = models.PositiveIntegerField(_("busy"))
    #: Slots held by handlers that do not stop.
    stuck = models.PositiveIntegerField(_("stuck"))
    #: NULL: every queue.
    queues = models.JSONField(_("queues"), null=True)
    type_names = models.JSONField(_("types"))
    is_stopping = models.BooleanField(_("stopping"))
    started_at = models.DateTimeField(_("started at"))
    heartbeat_at = models.DateTimeField(_("heartbeat at"))
    #: Between two of its heartbeats: after some that did not come it is taken for dead.
    heartbeat_seconds = models.FloatField(_("seconds between heartbeats"))

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return self.id


class QueueState(models.Model):
    """What was said about a queue while workers run. A queue without a row is open and has no limit."""

    name = models.CharField(_("name"), primary_key=True, max_length=QUEUE_LENGTH)
    paused_at = models.DateTimeField(_("paused at"), null=True)
    #: Attempts of this queue that run at once in one worker; NULL: as many as it has slots.
    slot_limit = models.PositiveIntegerField(_("slot limit"), null=True)

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return self.name


class ChainQuerySet(PagedQuerySet["Chain"]):
    page_orders: Orders = (("-id",), ("id",))

    def with_status(self, *statuses: str) -> "ChainQuerySet":
        return self._any_of("status", _known(statuses))

    def of_type(self, *type_names: str) -> "ChainQuerySet":
        return self._any_of("type_name", type_names)

    def incomplete(self) -> "ChainQuerySet":
        """Chains that may still run: their last job is blocked, pending or running."""
        return self._any_of("status", OPEN)

    def blocked_by(self, chain: "Chain | UUID") -> "ChainQuerySet":
        """Chains with a job that has this chain as a blocker, also when it no longer waits for it."""
        links = JobBlocker.objects.filter(blocker=_id_of(chain))
        return self.filter(_Among(F("id"), models.Subquery(links.values("job__chain_id"))))

    def update(self, **values: Any) -> NoReturn:
        raise TypeError("Chains are changed by the functions of django_jobchains.chains.")

    def delete(self) -> NoReturn:
        raise TypeError("Use django_jobchains.chains.delete(ids).")

    update.alters_data = delete.alters_data = True  # type: ignore[attr-defined]


class Chain(models.Model):
    """A job and its continuations, seen as one: the input of its first job, the status and output of its last.

    A snapshot: what enqueueing does not know is read when it is first asked for, and ``refresh()`` reads it again.
    ``input`` and ``output`` are the JSON values as stored.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    type_name = models.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    input = models.JSONField(_("input"), null=True)
    deduplication_key = models.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)  # noqa: DJ001
    created_at = models.DateTimeField(_("created at"))
    #: The last job so far.
    current_job = models.ForeignKey(Job, models.DO_NOTHING, related_name="+", verbose_name=_("current job"))
    status = models.CharField(_("status"), max_length=10, choices=Status)
    #: The last job's; None until the chain is completed.
    output = models.JSONField(_("output"), null=True)
    last_error = models.TextField(_("last error"), null=True)  # noqa: DJ001
    finished_at = models.DateTimeField(_("finished at"), null=True)

    #: True when enqueueing returned a chain that existed already.
    deduplicated = False

    objects = ChainQuerySet.as_manager()

    class Meta:
        managed = False  # a view, see chain_view
        db_table = NAME
        verbose_name = _("chain")
        verbose_name_plural = _("chains")

    def __str__(self) -> str:
        return f"{self.type_name} {self.id}"

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A chain is changed by the functions of django_jobchains.chains.")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Use django_jobchains.chains.delete(chain.id).")

    @classmethod
    def partly_known(cls, using: str, **known: Any) -> "Chain":
        """As ``from_db`` with the other fields deferred, which takes its time over each of them."""
        chain = cls.__new__(cls)
        chain._state = ModelState()
        chain._state.adding, chain._state.db = False, using
        chain.__dict__.update(known)
        return chain

    @classmethod
    def load(cls, chain_id: UUID, using: str) -> "Chain":
        """Reads a chain; raises ``ChainNotFound``."""
        try:
            return cls._of_last_job(cls.objects.using(using).filter(pk=chain_id), chain_id).get()
        except cls.DoesNotExist as error:
            raise ChainNotFound(chain_id) from error

    @staticmethod
    def _of_last_job(chains: ChainQuerySet, chain_id: UUID) -> ChainQuerySet:
        """Found by its last job, and so as fast however many there are; and with it, as it is at the same moment."""
        last = Job.objects.filter(chain_id=chain_id).order_by("-chain_index").values("id")[:1]
        return chains.filter(current_job__in=last).select_related("current_job")

    @property
    def using(self) -> str:
        """The alias of the database it was read from."""
        return self._state.db or "default"

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs in the order of their steps."""
        return Job.objects.using(self.using).of_chain(self)

    def refresh(self) -> "Chain":
        """Reads it again; raises ``ChainNotFound`` when it was deleted meanwhile."""
        self.refresh_from_db()
        return self

    def result(self, timeout: float | None) -> Any:
        """Waits until it has ended, and returns its output; see ``chains.wait``."""
        from django_jobchains.waiting import wait

        return wait(self.id, timeout, using=self.using)

    async def aresult(self, timeout: float | None) -> Any:  # noqa: ASYNC109
        """``result`` for async code; see ``chains.await_chain``."""
        from django_jobchains.waiting import await_chain

        return await await_chain(self.id, timeout, using=self.using)

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: "models.QuerySet[Chain] | None" = None,
    ) -> None:
        """What was not read yet is read together, so that status, output and current job belong to one moment."""
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


def _id_of(chain: Chain | UUID) -> UUID:
    return chain.id if isinstance(chain, Chain) else chain


def _known(statuses: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [status for status in statuses if status not in Status.values]:
        raise ValueError(f"{unknown[0]!r} is no status. Known: {', '.join(Status.values)}.")
    return statuses
