"""Record workers, for which a model of the project is the job table.

A model inherits ``JobRecord``, and a ``jobs`` module registers the handler of its rows with ``processors.records``.
"""

from django_jobchains.http_retries import retryable_http_status
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.records.errors import NonRetryable, RecordLost, RecordTypeNotFound, Requeue
from django_jobchains.records.models import JobRecord
from django_jobchains.records.operations import (
    acancel,
    anotify,
    arequeue,
    aretry,
    cancel,
    notify,
    queryset,
    requeue,
    retry,
)
from django_jobchains.records.processor import ExecutionLog, RecordProcessor, RecordRun

__all__ = (
    "ExecutionLog",
    "JobRecord",
    "NonRetryable",
    "PayloadField",
    "PayloadTextField",
    "RecordLost",
    "RecordProcessor",
    "RecordRun",
    "RecordTypeNotFound",
    "Requeue",
    "acancel",
    "anotify",
    "arequeue",
    "aretry",
    "cancel",
    "notify",
    "queryset",
    "requeue",
    "retry",
    "retryable_http_status",
)
