"""The errors of records, and which errors of handlers are retried.

JobchainsError
├── RegistryError
│   └── RecordTypeNotFound       no app handles records of a model
└── LeaseLost
    └── RecordLost               the record does not exist, or belongs to another attempt
"""

from datetime import datetime
from typing import Any

from django_jobchains.db.times import checked_time
from django_jobchains.exceptions import FailJob, JobchainsError, LeaseLost, RegistryError
from django_jobchains.text.errors import with_causes


class NonRetryable(Exception):
    """Raise this in a handler, directly or as a ``__cause__``, to fail the record without another attempt."""


class Requeue(Exception):
    """Raise this in a handler to queue the record again, now or after the time ``after``. It is not a failure."""

    def __init__(self, *, after: datetime | None = None) -> None:
        self.after = checked_after(after)
        super().__init__("The record is to be queued again.")

    __reduce__ = JobchainsError.__reduce__


class RecordTypeNotFound(RegistryError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"No app handles records of {name}: register it with @processors.records({name}), in a jobs module."
        )


class RecordLost(LeaseLost):
    """The attempt no longer holds its record, so nothing was written. ``reason`` is an abort reason."""

    def __init__(self, id: Any, reason: str) -> None:
        self.id = id
        self.reason = reason
        JobchainsError.__init__(self, f"This attempt may no longer write to record {id}: {reason.replace('_', ' ')}.")


class RecordHidden(LookupError):
    """The queryset of a registration does not return a record that it returned when the record was dequeued."""

    def __init__(self, type_name: str) -> None:
        super().__init__(
            f"The queryset of {type_name!r} does not return this record, which was dequeued a moment ago. Either the "
            "row has changed since then, or the queryset depends on columns that workers change, such as the state: "
            "leave them out of it."
        )


def checked_after(after: object) -> datetime | None:
    """Return an aware datetime, or None; raise ``TypeError`` or ``ValueError`` for other values."""
    if after is not None and not isinstance(after, datetime):
        raise TypeError(f"after={after!r:.50} is not a datetime: add a timedelta to django.utils.timezone.now().")
    return after and checked_time(after, "after")


def is_retryable(error: BaseException) -> bool:
    """Return whether an error neither is nor wraps ``NonRetryable``, or ``FailJob``, which middleware may raise."""
    return not any(isinstance(part, NonRetryable | FailJob) for part in with_causes(error))
