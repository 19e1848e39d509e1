"""The database tables, for queries, the admin and migrations. Only ``store`` writes their rows."""

from django_jobchains.models.attempts import (
    PROGRESS_TEXT_LENGTH,
    DeferredWrite,
    FailedAttempt,
    LogLine,
)
from django_jobchains.models.jobs import (
    LAST,
    QUEUE_LENGTH,
    SCHEDULE_NAME_LENGTH,
    TYPE_NAME_LENGTH,
    Chain,
    ChainQuerySet,
    Job,
    JobBlocker,
    JobProgress,
    JobQuerySet,
)
from django_jobchains.models.schedules import Schedule, ScheduleQuerySet
from django_jobchains.models.workers import (
    AttemptCount,
    Dashboard,
    KeyLock,
    LimitOverride,
    QueueState,
    RateState,
    TaskName,
    WorkerPresence,
)

__all__ = (
    "LAST",
    "PROGRESS_TEXT_LENGTH",
    "QUEUE_LENGTH",
    "SCHEDULE_NAME_LENGTH",
    "TYPE_NAME_LENGTH",
    "AttemptCount",
    "Chain",
    "ChainQuerySet",
    "Dashboard",
    "DeferredWrite",
    "FailedAttempt",
    "Job",
    "JobBlocker",
    "JobProgress",
    "JobQuerySet",
    "KeyLock",
    "LimitOverride",
    "LogLine",
    "QueueState",
    "RateState",
    "Schedule",
    "ScheduleQuerySet",
    "TaskName",
    "WorkerPresence",
)
