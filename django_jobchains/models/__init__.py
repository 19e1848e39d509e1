"""The database tables, for queries, the admin and migrations. Only ``store`` writes their rows."""

from django_jobchains.models.attempts import (
    PROGRESS_TEXT_LENGTH,
    AttemptCount,
    DeferredWrite,
    FailedAttempt,
    JobProgress,
    LogLine,
)
from django_jobchains.models.chains import Chain, ChainQuerySet, KeyLock
from django_jobchains.models.jobs import LAST, QUEUE_LENGTH, TYPE_NAME_LENGTH, Job, JobBlocker, JobQuerySet
from django_jobchains.models.workers import QueueState, WorkerPresence

__all__ = (
    "LAST",
    "PROGRESS_TEXT_LENGTH",
    "QUEUE_LENGTH",
    "TYPE_NAME_LENGTH",
    "AttemptCount",
    "Chain",
    "ChainQuerySet",
    "DeferredWrite",
    "FailedAttempt",
    "Job",
    "JobBlocker",
    "JobProgress",
    "JobQuerySet",
    "KeyLock",
    "LogLine",
    "QueueState",
    "WorkerPresence",
)
