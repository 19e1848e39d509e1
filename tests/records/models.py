"""Record models: one that inherits the columns, one with its own primary key, and one with other column names."""

import uuid

from django.db import models
from django.db.models import Q

from django_jobchains.records import JobRecord


class Repository(models.Model):
    name = models.CharField(max_length=50)
    priority = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class Upload(JobRecord):
    repository = models.ForeignKey(Repository, null=True, on_delete=models.CASCADE)
    size = models.IntegerField(default=0)
    result = models.CharField(max_length=50, default="")


class UploadDetails(models.Model):
    """A view of uploads and their repositories, which the tests that use it create."""

    upload = models.OneToOneField(Upload, models.DO_NOTHING, primary_key=True, db_column="id", related_name="details")
    repository_name = models.CharField(max_length=50)
    priority = models.IntegerField()
    uploads = models.IntegerField()

    class Meta:
        managed = False

    def __str__(self) -> str:
        return self.repository_name


class Export(JobRecord):
    """A model whose keys are not numbers."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=50, default="")

    class Meta(JobRecord.Meta):
        ordering = ["name"]


class Parcel(JobRecord):
    """A model with columns of more types, for conditions."""

    size = models.IntegerField(default=0)
    label = models.JSONField(default=dict)
    content = models.BinaryField(default=b"")


class Letter(models.Model):
    """An existing table whose columns have other names, and whose keys are texts."""

    code = models.CharField(primary_key=True, max_length=20)
    status = models.CharField(max_length=20, default="queued")
    error = models.CharField(max_length=255, default="")
    created = models.DateTimeField(db_default=models.functions.Now())
    began = models.DateTimeField(null=True)
    beat = models.DateTimeField(null=True)
    ended = models.DateTimeField(null=True)
    not_before = models.DateTimeField(null=True)
    resets = models.IntegerField(default=0)
    failures = models.IntegerField(default=0)
    logs = models.JSONField(default=list)
    host = models.CharField(max_length=20, default="")
    stop = models.BooleanField(default=False)
    attempt_number = models.BigIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["status", "not_before", "created"], name="letter_due", condition=Q(status="queued")),
        ]

    def __str__(self) -> str:
        return self.code


#: The columns of ``Letter`` by our names.
LETTER_COLUMNS = {
    "state": "status",
    "failure_message": "error",
    "queued_at": "created",
    "started_at": "began",
    "last_heartbeat_at": "beat",
    "finished_at": "ended",
    "process_after": "not_before",
    "num_resets": "resets",
    "num_failures": "failures",
    "execution_logs": "logs",
    "worker_hostname": "host",
    "cancel": "stop",
    "lease_number": "attempt_number",
}
