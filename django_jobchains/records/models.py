"""``JobRecord``, an abstract model with the columns and indexes that record workers need."""

from typing import Any

from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_jobchains.models.payload_fields import PayloadField, PayloadTextField


class RecordIndex(models.Index):  # noqa: PLW1641 - Django's is not hashable either
    """A partial index in an abstract model, which is named after the model that inherits it.

    Migrations contain a plain ``Index`` with the name.
    """

    def __init__(self, *, fields: Any, condition: Q, name: str = "", suffix: str = "idx") -> None:
        super().__init__(fields=fields, condition=condition, name=name or "unnamed")
        self.name = name
        #: The suffix of the name, up to three letters, which distinguishes indexes on the same columns.
        self.suffix = suffix

    def deconstruct(self) -> Any:
        _, args, kwargs = super().deconstruct()
        return "django.db.models.Index", args, kwargs

    def clone(self) -> "RecordIndex":
        return RecordIndex(fields=self.fields, condition=self.condition, name=self.name, suffix=self.suffix)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, models.Index):
            return NotImplemented
        return bool(self.deconstruct() == other.deconstruct())


class JobRecord(models.Model):
    """An abstract model whose rows are the jobs. Register a handler for a subclass with ``processors.records(Model)``.

    If your model has a ``class Meta``, let it inherit ``JobRecord.Meta``, which has the indexes. The columns have
    database defaults, so plain SQL can insert rows. Workers ignore rows whose state is not in ``State``, such as
    "uploading".
    """

    class State(models.TextChoices):
        QUEUED = "queued", _("queued")
        PROCESSING = "processing", _("processing")
        COMPLETED = "completed", _("completed")
        ERRORED = "errored", _("errored")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    state = models.CharField(_("state"), max_length=50, default="queued", db_default="queued", editable=False)
    failure_message = PayloadTextField(_("failure message"), null=True, blank=True, editable=False)
    queued_at = models.DateTimeField(_("queued at"), db_default=Now(), editable=False)
    started_at = models.DateTimeField(_("started at"), null=True, editable=False)
    last_heartbeat_at = models.DateTimeField(_("last heartbeat at"), null=True, editable=False)
    finished_at = models.DateTimeField(_("finished at"), null=True, editable=False)
    #: A worker does not start the record before this time.
    process_after = models.DateTimeField(_("process after"), null=True, blank=True)
    #: How often the record was taken back from a worker that sent no heartbeats.
    num_resets = models.PositiveIntegerField(_("resets"), default=0, db_default=0, editable=False)
    num_failures = models.PositiveIntegerField(_("failures"), default=0, db_default=0, editable=False)
    #: The log entries of the last attempt: see ``RecordRun.add_log``.
    execution_logs = PayloadField(
        _("execution logs"), default=list, db_default=Value([], models.JSONField()), editable=False
    )
    worker_hostname = models.CharField(_("worker"), max_length=255, default="", db_default="", editable=False)
    #: Asks workers not to start the record, or its handler to stop: see ``records.cancel``.
    cancel = models.BooleanField(_("cancel"), default=False, db_default=False, editable=False)
    #: Incremented for every attempt, and checked by each of its writes.
    lease_number = models.PositiveBigIntegerField(_("lease number"), default=0, db_default=0, editable=False)

    class Meta:
        abstract = True
        indexes = [
            RecordIndex(fields=["state", "process_after", "queued_at"], condition=Q(state="queued")),
            RecordIndex(fields=["state", "finished_at"], condition=Q(state="errored")),
            RecordIndex(fields=["state", "finished_at"], condition=Q(state="failed"), suffix="bad"),
            RecordIndex(fields=["state", "started_at"], condition=Q(state="processing")),
            RecordIndex(fields=["state", "cancel"], condition=Q(cancel=True)),
        ]
