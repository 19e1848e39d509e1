"""Schedules: when chains of a type are enqueued again and again."""

from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from django_jobchains.db.keyset import Orders, PagedQuerySet
from django_jobchains.models.jobs import QUEUE_LENGTH, SCHEDULE_NAME_LENGTH, TYPE_NAME_LENGTH, columns
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.models.workers import DIGEST_LENGTH, WorkerPresence


class ScheduleQuerySet(PagedQuerySet["Schedule"]):
    page_orders: Orders = (("-name",), ("name",))

    def with_orphans(self) -> "ScheduleQuerySet":
        """Read with each schedule whether it is orphaned."""
        declaring = WorkerPresence.objects.filter(schedules=OuterRef("declarations"))
        is_unknown = Q(source=Schedule.Source.CODE) & ~Exists(declaring)
        return self.annotate(orphaned=models.ExpressionWrapper(is_unknown, models.BooleanField()))

    def in_state(self, *states: str) -> "ScheduleQuerySet":
        """Schedules in one of these states, see ``Schedule.state``. Includes ``with_orphans``."""
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
    """A schedule and its state. Each tick fires once, because the worker that fires it locks this row."""

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

    name: str = columns.CharField(_("name"), primary_key=True, max_length=SCHEDULE_NAME_LENGTH)
    type_name: str = columns.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    input: Any = PayloadField(_("input"), null=True)
    #: The rule: ``cron`` in ``timezone``, or ``every_seconds`` after ``anchor_at``. The columns of the other rule are
    #: NULL.
    cron: str | None = columns.CharField(_("cron expression"), max_length=200, null=True)
    every_seconds: float | None = columns.FloatField(_("seconds between ticks"), null=True)
    timezone: str = columns.CharField(_("time zone"), max_length=64)
    overlap: str = columns.CharField(_("overlap"), max_length=5, choices=Overlap)
    on_missed: str = columns.CharField(_("on missed"), max_length=8, choices=OnMissed)
    max_catch_up: int = columns.PositiveIntegerField(_("maximum catch-up"))
    jitter_seconds: float | None = columns.FloatField(_("seconds of jitter"), null=True)
    #: NULL for the queue and the priority of the processor.
    queue: str | None = columns.CharField(_("queue"), max_length=QUEUE_LENGTH, null=True)
    priority: int | None = columns.SmallIntegerField(_("priority"), null=True)
    source: str = columns.CharField(_("source"), max_length=5, choices=Source)
    #: Identifies the declared schedules of the version of the code that last stored it, as in the rows of its workers.
    #: NULL if the schedule is not declared in code.
    declarations: str | None = columns.CharField(max_length=DIGEST_LENGTH, null=True)
    created_at: datetime = columns.DateTimeField(_("created at"))
    anchor_at: datetime = columns.DateTimeField(_("anchor"))
    paused_at: datetime | None = columns.DateTimeField(_("paused at"), null=True)
    #: The first tick that has not been handled yet. NULL if there is none in the next fifty years.
    next_tick_at: datetime | None = columns.DateTimeField(_("next tick"), null=True)
    #: The tick that fired last, and its chain, which may have been pruned.
    last_tick_at: datetime | None = columns.DateTimeField(_("last tick"), null=True)
    last_chain_id: UUID | None = columns.UUIDField(_("last chain"), null=True)
    #: Why the next tick could not be fired, or NULL.
    last_error: str | None = PayloadTextField(_("last error"), null=True)  # type: ignore[assignment]
    last_error_at: datetime | None = columns.DateTimeField(_("last error at"), null=True)

    objects: ClassVar[ScheduleQuerySet] = ScheduleQuerySet.as_manager()  # type: ignore[assignment]

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
        """Whether no worker's code declares it any more. Requires ``with_orphans`` or ``in_state``."""
        return bool(self.__dict__.get("orphaned"))

    @property
    def state(self) -> "Schedule.State":
        """``"paused"``, ``"orphaned"``, ``"failing"`` or ``"active"``. ``in_state`` filters by the same rules."""
        if self.is_paused:
            return self.State.PAUSED
        if self.is_orphaned:
            return self.State.ORPHANED
        return self.State.FAILING if self.last_error_at else self.State.ACTIVE

    @property
    def due_at(self) -> datetime | None:
        """The next tick, or None if the schedule does not fire, for example because it is paused."""
        return None if self.is_paused or self.is_orphaned else self.next_tick_at
