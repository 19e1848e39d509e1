"""Workers that run, and what was said about queues meanwhile."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobchains.models.jobs import QUEUE_LENGTH
from django_jobchains.pages import JobTablesQuerySet


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

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.id


class QueueState(models.Model):
    """What was said about a queue while workers run. A queue without a row is open and has no limit."""

    name = models.CharField(_("name"), primary_key=True, max_length=QUEUE_LENGTH)
    paused_at = models.DateTimeField(_("paused at"), null=True)
    #: Attempts of this queue that run at once in one worker; NULL: as many as it has slots.
    slot_limit = models.PositiveIntegerField(_("slot limit"), null=True)

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return self.name
