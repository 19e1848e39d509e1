"""Running workers, the attempts they have counted, the tasks they serve, and the state of queues, limits and keys."""

from datetime import datetime
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobchains.models.jobs import QUEUE_LENGTH, TYPE_NAME_LENGTH, Job, JobTable, columns

#: The length of ``declare.schedules.digest_of`` and ``store.workers.digest_of``.
DIGEST_LENGTH = 32


class WorkerPresence(JobTable):
    """A running worker, which updates its row at each heartbeat. Jobs have no foreign key to it."""

    #: ``name:pid:…``, as in ``Job.leased_by``; different for each start of a worker.
    id: str = columns.CharField(primary_key=True, max_length=200)
    host: str = columns.CharField(_("host"), max_length=255)
    pid: int = columns.PositiveIntegerField(_("process"))
    version: str = columns.CharField(_("version"), max_length=50)
    slots: int = columns.PositiveIntegerField(_("slots"))
    busy: int = columns.PositiveIntegerField(_("busy"))
    #: Slots that are occupied by handlers that do not stop.
    stuck: int = columns.PositiveIntegerField(_("stuck"))
    #: NULL for all queues.
    queues: Any = columns.JSONField(_("queues"), null=True)
    type_names: Any = columns.JSONField(_("types"))
    #: Identifies these types, because other workers read a long list only once.
    types_digest: str = columns.CharField(max_length=DIGEST_LENGTH, default="")
    is_stopping: bool = columns.BooleanField(_("stopping"))
    #: Its pools of child processes, as ``PoolState``; NULL or an empty list if it has none.
    pools: Any = columns.JSONField(_("pools"), null=True)
    started_at: datetime = columns.DateTimeField(_("started at"))
    heartbeat_at: datetime = columns.DateTimeField(_("heartbeat at"))
    #: The interval of its heartbeats. After several missed heartbeats, the worker counts as dead.
    heartbeat_seconds: float = columns.FloatField(_("seconds between heartbeats"))
    #: Identifies the schedules that its code declares; "" for none.
    schedules: str = columns.CharField(max_length=DIGEST_LENGTH, default="")

    class Meta(JobTable.Meta):
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)


class AttemptCount(JobTable):
    """How many attempts ended in a minute, or in an hour for one type or one queue, as counted by the workers."""

    class Span(models.IntegerChoices):
        """The length of a span in seconds."""

        MINUTE = 60, _("minute")
        HOUR = 3600, _("hour")

    pk = models.CompositePrimaryKey("span", "starts_at", "type_name", "queue")
    span: int = columns.PositiveIntegerField(_("span"), choices=Span)
    starts_at: datetime = columns.DateTimeField(_("starts at"))
    #: "" in rows of a minute and of a queue, which count all types.
    type_name: str = columns.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    #: "" in rows of a minute and of a type, which count all queues.
    queue: str = columns.CharField(_("queue"), max_length=QUEUE_LENGTH, default="")
    #: Attempts that completed their job.
    completed: int = columns.PositiveIntegerField(_("completed"))
    #: Attempts that failed, whether or not the job is retried.
    failed: int = columns.PositiveIntegerField(_("failed"))
    #: Attempts whose lease ran out.
    crashed: int = columns.PositiveIntegerField(_("crashed"), default=0)
    #: Attempts after which the job ended as failed.
    jobs_failed: int = columns.PositiveIntegerField(_("failed jobs"), default=0)
    #: The total duration of the attempts, from the claim to the stored outcome, except crashed attempts.
    seconds: float = columns.FloatField(_("seconds"))
    #: The longest duration of these attempts.
    longest_seconds: float = columns.FloatField(_("longest"))

    class Meta(JobTable.Meta):
        verbose_name = _("attempt count")
        verbose_name_plural = _("attempt counts")

    def __str__(self) -> str:
        return f"{self.type_name or self.queue} from {self.starts_at}"


class Dashboard(Job):
    """A model without a table, so that the admin's index lists the dashboard."""

    class Meta:
        proxy = True
        verbose_name = verbose_name_plural = _("dashboard")
        default_permissions = ()


class QueueState(JobTable):
    """A queue that is, or was, paused or limited. A queue without a row is open and has no limit."""

    name: str = columns.CharField(_("name"), primary_key=True, max_length=QUEUE_LENGTH)
    paused_at: datetime | None = columns.DateTimeField(_("paused at"), null=True)
    #: How many of its jobs and records may run at once, in all workers together. NULL for no limit.
    slot_limit: int | None = columns.PositiveIntegerField(_("limit of jobs at once"), null=True)

    class Meta(JobTable.Meta):
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view", "change")


class LimitOverride(JobTable):
    """Numbers that replace the declared numbers of a limit. NULL keeps the declared number."""

    name: str = columns.CharField(_("name"), primary_key=True, max_length=TYPE_NAME_LENGTH)
    concurrency: int | None = columns.PositiveIntegerField(_("concurrency"), null=True)
    rate: int | None = columns.PositiveIntegerField(_("rate"), null=True)

    class Meta(JobTable.Meta):
        verbose_name = _("limit of all workers")
        verbose_name_plural = _("limits")
        default_permissions = ("view", "change")


class TaskName(JobTable):
    """The job type of a task of Django's framework that has been enqueued. Workers find tasks by these names.

    A name may have several rows. With a unique constraint, transactions that enqueue the same new task would wait for
    each other. See docs/decisions/0089-tasks-backend.md.
    """

    name = models.CharField(_("name"), max_length=TYPE_NAME_LENGTH)

    class Meta(JobTable.Meta):
        verbose_name = _("task name")
        verbose_name_plural = _("task names")
        indexes = (models.Index(fields=["name"], name="jobchains_task_name"),)

    def __str__(self) -> str:
        return self.name


class KeyLock(JobTable):
    """A lock for a deduplication key on PostgreSQL. A row has no other meaning, and may be deleted unless it is locked.

    A transaction that enqueues with a key inserts or locks its row. SQLite has one writer at a time, and no rows here.
    See docs/decisions/0027-key-rows.md.
    """

    #: ``store.keys.lock_id`` of the chain type and the key.
    id = models.BigIntegerField(primary_key=True)
    #: When a chain was last created for the key. A transaction with an older snapshot fails when it locks the row.
    used_at = models.DateTimeField()

    class Meta(JobTable.Meta):
        indexes = (models.Index(fields=["used_at"], name="jobchains_key_used"),)


class RateState(JobTable):
    """When jobs with a rate key may start again. If a key has no row, as many jobs may start as the burst allows.

    Times are microseconds since 1970 by the database's clock. See docs/decisions/0102-rates.md.
    """

    key = models.TextField(primary_key=True)
    #: When the key will have had a pause long enough for a full burst, unless more jobs start: each start adds the
    #: interval of the rate.
    full_at = models.BigIntegerField()
    #: When jobs last started, and the interval of the rate then.
    started_at = models.BigIntegerField()
    interval_microseconds = models.BigIntegerField()
    #: Starts since then can be refunded: before, the bucket was full, or the rate was another one.
    refundable_since = models.BigIntegerField()
    #: How far from full, in microseconds, the bucket was at least before each of the later starts. No more than this is
    #: refunded, because the passing of time has returned the rest.
    slack = models.BigIntegerField()
