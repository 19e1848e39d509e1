"""What attempts leave behind: why they failed, what they said, how far they are."""

from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobchains.models.jobs import TYPE_NAME_LENGTH, Job
from django_jobchains.pages import JobTablesQuerySet

PROGRESS_TEXT_LENGTH = 200


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

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("failed attempt")
        verbose_name_plural = _("failed attempts")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["job", "lease_number"], name="jobchains_one_row_per_attempt"),)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}"


class LogLine(models.Model):
    """What a handler said by ``job.log``. Of each attempt ``notes.MOST_LINES`` are kept at the most."""

    class Level(models.IntegerChoices):
        """As in ``logging``."""

        DEBUG = DEBUG, _("debug")
        INFO = INFO, _("info")
        WARNING = WARNING, _("warning")
        ERROR = ERROR, _("error")
        CRITICAL = CRITICAL, _("critical")

    pk = models.CompositePrimaryKey("job_id", "lease_number", "position")
    job = models.ForeignKey(Job, models.CASCADE, related_name="log_lines", db_index=False, verbose_name=_("job"))
    #: Of the attempt that said it.
    lease_number = models.PositiveIntegerField()
    #: Counts from 0 within the attempt; where lines were left out it leaps.
    position = models.PositiveIntegerField(_("position"))
    attempt = models.PositiveIntegerField(_("attempt"))
    said_at = models.DateTimeField(_("said at"))
    level = models.SmallIntegerField(_("level"), choices=Level)
    text = models.TextField(_("text"))
    #: The keyword arguments; NULL without any.
    fields = models.JSONField(_("fields"), null=True)

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("log line")
        verbose_name_plural = _("log lines")
        default_permissions = ()

    def __str__(self) -> str:
        return self.text


class JobProgress(models.Model):
    """How far a job is, as the handler last said by ``job.set_progress``.

    It stays when another attempt begins: it is over when its ``lease_number`` is not the job's any more.
    """

    job = models.OneToOneField(
        Job, models.CASCADE, primary_key=True, related_name="progress", db_index=False, verbose_name=_("job")
    )
    #: Of the attempt that said it.
    lease_number = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField(_("attempt"))
    #: 0 to 1.
    fraction = models.FloatField(_("fraction"))
    text = models.CharField(_("text"), max_length=PROGRESS_TEXT_LENGTH)
    said_at = models.DateTimeField(_("said at"))

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("progress")
        verbose_name_plural = _("progress")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.fraction:.0%} {self.text}".rstrip()


class DeferredWrite(models.Model):
    """A write to a job whose row someone else had locked. It takes effect, or is applied, without waiting for that row.

    Rows are only added and deleted, and there is no foreign key in the database: whoever adds one waits for no lock.
    """

    class Kind(models.TextChoices):
        #: The lease of an attempt lasts until ``leased_until``.
        LEASE = "lease"
        #: An attempt has ended as ``outcome`` says. Workers apply it when the row is free.
        OUTCOME = "outcome"
        #: The chain is to be cancelled; ``job`` is its first job. Workers apply it when the row is free.
        CANCEL = "cancel"

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    kind = models.CharField(max_length=10, choices=Kind)
    lease_number = models.PositiveIntegerField(default=0)
    leased_until = models.DateTimeField(null=True)
    outcome = models.JSONField(null=True)

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["job"], name="jobchains_deferred"),)

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_id}"


class AttemptCount(models.Model):
    """How many attempts ended in a minute, and how many of a type in an hour, as the workers told: no job is counted
    for it."""

    class Span(models.IntegerChoices):
        """Seconds."""

        MINUTE = 60, _("minute")
        HOUR = 3600, _("hour")

    pk = models.CompositePrimaryKey("span", "starts_at", "type_name")
    span = models.PositiveIntegerField(_("span"), choices=Span)
    starts_at = models.DateTimeField(_("starts at"))
    #: "" of a minute: all types.
    type_name = models.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    #: Jobs that were completed.
    completed = models.PositiveIntegerField(_("completed"))
    #: Attempts that failed, whether the job is tried again or not,
    failed = models.PositiveIntegerField(_("failed"))
    #: and those whose lease ran out.
    crashed = models.PositiveIntegerField(_("crashed"), default=0)
    #: What the attempts took together, without the crashed ones,
    seconds = models.FloatField(_("seconds"))
    #: and the longest of them.
    longest_seconds = models.FloatField(_("longest"))

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("attempt count")
        verbose_name_plural = _("attempt counts")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.type_name} from {self.starts_at}"
