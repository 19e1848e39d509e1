"""What attempts leave: failures, log lines and deferred writes. Their progress is in ``jobs``."""

from datetime import datetime
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Any
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobchains.models.jobs import Job, JobTable, columns
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.statuses import LEASE_RAN_OUT

#: The limit of characters of a progress text. Its column has none, because an encoded text is longer.
PROGRESS_TEXT_LENGTH = 200


class FailedAttempt(JobTable):
    """An attempt that did not complete its job. Successful attempts have no row."""

    class Kind(models.TextChoices):
        ERROR = "error", _("error")
        TIMEOUT = "timeout", _("timeout")
        CRASH = "crash", _("crash")

    #: Needs no index, because the index of the constraint below starts with this column.
    job: Job = columns.ForeignKey(
        Job, models.CASCADE, related_name="failed_attempts", db_index=False, verbose_name=_("job")
    )
    job_id: UUID
    attempt: int = columns.PositiveIntegerField(_("attempt"))
    lease_number: int = columns.PositiveIntegerField()
    kind: str = columns.CharField(_("kind"), max_length=10, choices=Kind)
    error: str = PayloadTextField(_("error"))  # type: ignore[assignment]
    traceback: str = PayloadTextField(_("traceback"))  # type: ignore[assignment]
    worker: str = columns.CharField(_("worker"), max_length=200)
    started_at: datetime = columns.DateTimeField(_("started at"))
    finished_at: datetime = columns.DateTimeField(_("finished at"))

    class Meta(JobTable.Meta):
        verbose_name = _("failed attempt")
        verbose_name_plural = _("failed attempts")
        constraints = (models.UniqueConstraint(fields=["job", "lease_number"], name="jobchains_one_row_per_attempt"),)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}"

    @property
    def duration_seconds(self) -> float | None:
        """The time from the claim until the failure was stored, by the database's clock.

        None if the lease expired, because it is not known when the handler stopped.
        """
        # Pages read only the beginning of the error.
        if self.kind == self.Kind.CRASH and (getattr(self, "error_text", "") or self.error).startswith(LEASE_RAN_OUT):
            return None
        return (self.finished_at - self.started_at).total_seconds()


class LogLine(JobTable):
    """A call of ``job.log`` by a handler. At most ``job_log.MAX_LINES`` lines of each attempt are kept."""

    class Level(models.IntegerChoices):
        """The levels of ``logging``."""

        DEBUG = DEBUG, _("debug")
        INFO = INFO, _("info")
        WARNING = WARNING, _("warning")
        ERROR = ERROR, _("error")
        CRITICAL = CRITICAL, _("critical")

    pk = models.CompositePrimaryKey("job_id", "lease_number", "position")
    job: Job = columns.ForeignKey(Job, models.CASCADE, related_name="log_lines", db_index=False, verbose_name=_("job"))
    job_id: UUID
    #: The lease number of the attempt that wrote it.
    lease_number: int = columns.PositiveIntegerField()
    #: From 0 within the attempt, with gaps where lines were omitted.
    position: int = columns.PositiveIntegerField(_("position"))
    attempt: int = columns.PositiveIntegerField(_("attempt"))
    logged_at: datetime = columns.DateTimeField(_("logged at"))
    level: int = columns.SmallIntegerField(_("level"), choices=Level)
    text: str = PayloadTextField(_("text"))  # type: ignore[assignment]
    #: The keyword arguments, or NULL.
    fields: Any = PayloadField(_("fields"), null=True)

    class Meta(JobTable.Meta):
        verbose_name = _("log line")
        verbose_name_plural = _("log lines")

    def __str__(self) -> str:
        return str(self.text)


class DeferredWrite(JobTable):
    """A write to a job or record that was stored here because another transaction had locked the row.

    Rows are only inserted and deleted, and have no foreign key in the database, so an INSERT never waits for a lock.
    """

    class Kind(models.TextChoices):
        #: The lease of an attempt is extended until ``leased_until``.
        LEASE = "lease"
        #: An attempt has ended with ``outcome``. Workers apply it when the row is unlocked.
        OUTCOME = "outcome"
        #: A request to cancel the chain. ``job`` is its first job. Workers apply it when the row is unlocked.
        CANCEL = "cancel"
        #: An attempt of a record has ended with ``outcome``, which names the record. ``job`` is empty.
        RECORD = "record"

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="+", null=True, db_index=False, db_constraint=False)
    kind = models.CharField(max_length=10, choices=Kind)
    lease_number = models.PositiveIntegerField(default=0)
    leased_until = models.DateTimeField(null=True)
    outcome = models.JSONField(null=True)

    class Meta(JobTable.Meta):
        indexes = (models.Index(fields=["job"], name="jobchains_deferred"),)

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_id}" if self.job_id else self.kind
