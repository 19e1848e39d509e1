"""Schedules: when chains of a type are enqueued again and again."""

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from django_jobchains.db.keyset import Orders, PagedQuerySet
from django_jobchains.models.jobs import QUEUE_LENGTH, SCHEDULE_NAME_LENGTH, TYPE_NAME_LENGTH
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.models.workers import DIGEST_LENGTH, WorkerPresence


class ScheduleQuerySet(PagedQuerySet["Schedule"]):
    page_orders: Orders = (("-name",), ("name",))

    def with_orphans(self) -> "ScheduleQuerySet":
        """Let each schedule know whether it is orphaned."""
        declaring = WorkerPresence.objects.filter(schedules=OuterRef("declarations"))
        is_unknown = Q(source=Schedule.Source.CODE) & ~Exists(declaring)
        return self.annotate(orphaned=models.ExpressionWrapper(is_unknown, models.BooleanField()))

    def in_state(self, *states: str) -> "ScheduleQuerySet":
        """Schedules in one of these states (see ``Schedule.state``). Each knows whether it is orphaned."""
        is_paused, is_orphaned = Q(paused_at__isnull=False), Q(orphaned=True)
        has_failed = Q(last_error_at__isnull=False)
        conditions = {
            Schedule.State.PAUSED: is_paused,
            Schedule.State.ORPHANED: ~is_paused & is_orphaned,
            Schedule.State.FAILING: ~is_paused & ~is_orphaned & has_failed,
            Schedule.State.ACTIVE: ~is_paused & ~is_orphaned & ~has_failed,
        }
        wanted = Q()
        for state in states:
            wanted |= conditions[Schedule.State(state)]
        return self.with_orphans().filter(wanted)


class Schedule(models.Model):
    """A schedule and its state. A tick fires once, because it locks this row and moves ``next_tick_at``."""

    class Source(models.TextChoices):
        CODE = "code", _("code")
        ADMIN = "admin", _("admin")

    class State(models.TextChoices):
        ACTIVE = "active", _("active")
        PAUSED = "paused", _("paused")
        ORPHANED = "orphaned", _("orphaned")
        FAILING = "failing", _("failing")

    class Overlap(models.TextChoices):
        ALLOW = "allow", _("allow")
        SKIP = "skip", _("skip")
        QUEUE = "queue", _("queue")

    class OnMissed(models.TextChoices):
        RUN_ONCE = "run_once", _("run once")
        SKIP = "skip", _("skip")
        RUN_ALL = "run_all", _("run all")

    name = models.CharField(_("name"), primary_key=True, max_length=SCHEDULE_NAME_LENGTH)
    type_name = models.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    input = PayloadField(_("input"), null=True)
    #: The rule: ``cron`` in ``timezone``, or ``every_seconds`` after ``anchor_at``. The other one is NULL.
    cron = models.CharField(_("cron expression"), max_length=200, null=True)  # noqa: DJ001
    every_seconds = models.FloatField(_("seconds between ticks"), null=True)
    timezone = models.CharField(_("time zone"), max_length=64)
    overlap = models.CharField(_("overlap"), max_length=5, choices=Overlap)
    on_missed = models.CharField(_("on missed"), max_length=8, choices=OnMissed)
    max_catch_up = models.PositiveIntegerField(_("maximum catch-up"))
    jitter_seconds = models.FloatField(_("seconds of jitter"), null=True)
    #: NULL: the processor's.
    queue = models.CharField(_("queue"), max_length=QUEUE_LENGTH, null=True)  # noqa: DJ001
    priority = models.SmallIntegerField(_("priority"), null=True)
    source = models.CharField(_("source"), max_length=5, choices=Source)
    #: Identifies the schedules of the version that stored it last, as in the rows of its workers. NULL in the admin's.
    declarations = models.CharField(max_length=DIGEST_LENGTH, null=True)  # noqa: DJ001
    created_at = models.DateTimeField(_("created at"))
    anchor_at = models.DateTimeField(_("anchor"))
    paused_at = models.DateTimeField(_("paused at"), null=True)
    #: The first tick that has not been handled yet. NULL: there is none in the next fifty years.
    next_tick_at = models.DateTimeField(_("next tick"), null=True)
    #: The tick that fired last, and the last chain, which may have been pruned since.
    last_tick_at = models.DateTimeField(_("last tick"), null=True)
    last_chain_id = models.UUIDField(_("last chain"), null=True)
    #: Why the next tick could not be fired so far.
    last_error = PayloadTextField(_("last error"), null=True)
    last_error_at = models.DateTimeField(_("last error at"), null=True)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = (
            ("pause_schedule", "Can pause and resume schedules"),
            ("run_schedule", "Can run schedules now"),
        )
        indexes = (
            models.Index(
                fields=["next_tick_at"],
                condition=Q(paused_at__isnull=True, next_tick_at__isnull=False),
                name="jobchains_next_tick",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def every(self) -> timedelta | None:
        return None if self.every_seconds is None else timedelta(seconds=self.every_seconds)

    @property
    def jitter(self) -> timedelta | None:
        return None if self.jitter_seconds is None else timedelta(seconds=self.jitter_seconds)

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def is_orphaned(self) -> bool:
        """Whether no worker's code declares it any more. Only ``with_orphans`` and ``in_state`` read that."""
        return bool(self.__dict__.get("orphaned"))

    @property
    def state(self) -> "Schedule.State":
        """``paused``, ``orphaned``, ``failing`` or ``active``, as a text. ``in_state`` has the same rules."""
        if self.is_paused:
            return self.State.PAUSED
        if self.is_orphaned:
            return self.State.ORPHANED
        return self.State.FAILING if self.last_error_at else self.State.ACTIVE

    @property
    def due_at(self) -> datetime | None:
        """The next tick, or None while the schedule does not fire."""
        return None if self.is_paused or self.is_orphaned else self.next_tick_at
