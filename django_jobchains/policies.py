"""How a job type is tried, and how long its chains are kept: waits, leases, errors worth another attempt, retention."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta

from django_jobchains.conf import get_settings, is_set


@dataclass(frozen=True)
class Backoff:
    """The wait before the next attempt: ``initial_seconds * multiplier ** (attempt - 1)``, at most the maximum.

    ``jitter`` is the share of it that is random (0 to 1), so that jobs that failed together do not come back together.
    """

    initial_seconds: float = 10
    multiplier: float = 2
    maximum_seconds: float = 300
    jitter: float = 0.1

    def __post_init__(self) -> None:
        seconds = (self.initial_seconds, self.maximum_seconds)
        if not (all(0 <= value < math.inf for value in seconds) and self.multiplier >= 1 and 0 <= self.jitter <= 1):
            raise ValueError(f"{self}: seconds from 0, multiplier from 1, jitter from 0 to 1.")

    def seconds(self, attempt: int, share: float | None = None) -> float:
        """The wait after try number ``attempt`` (1, 2, 3 …); ``share`` (0 to 1) stands in for chance in tests."""
        try:
            wait = min(self.initial_seconds * self.multiplier ** (attempt - 1), self.maximum_seconds)
        except OverflowError:
            wait = self.maximum_seconds
        return wait * (1 - self.jitter * (random.random() if share is None else share))  # noqa: S311 - no secret


@dataclass(frozen=True)
class Lease:
    """How long a claimed job belongs to its worker without a renewal. Workers renew at a third of it."""

    seconds: float = 60

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError("A lease lasts more than 0 seconds.")


#: How long something is kept: a timedelta, or seconds; None: for ever.
Duration = timedelta | float | None

MONTH = timedelta(days=30)


@dataclass(frozen=True)
class Retention:
    """How long workers keep chains after they ended so: timedeltas, or seconds; None: for ever.

    ``keeps_keyed``: chains with a deduplication key are kept for ever, whatever their age, as their keys would be free
    again without them. False where every key's window is shorter, or its scope "incomplete".
    """

    completed: Duration = MONTH
    cancelled: Duration = MONTH
    failed: Duration = None
    keeps_keyed: bool = True

    def __post_init__(self) -> None:
        for status in ("completed", "cancelled", "failed"):
            seconds: object = self.seconds(status)
            if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
                raise ValueError(f"{self}: {status} is more than 0 seconds, or None for ever.")

    def seconds(self, status: str) -> float | None:
        duration: Duration = getattr(self, status)
        return duration.total_seconds() if isinstance(duration, timedelta) else duration


@dataclass(frozen=True)
class Policy:
    """What a processor, a slice or a worker says about attempts and chains; None: the next of them decides."""

    backoff: Backoff | None = None
    lease: Lease | None = None
    max_attempts: int | None = None
    #: A timedelta or seconds; ``math.inf``: for ever, whatever the next of them says.
    timeout: timedelta | float | None = None
    #: Of chains that start with the type.
    retention: Retention | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not (self.timeout_seconds or 0) > 0:
            raise ValueError("A timeout is more than 0 seconds; leave it out for none.")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError("max_attempts is 1 or more; leave it out for no limit.")

    @property
    def timeout_seconds(self) -> float | None:
        timeout = self.timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return None if seconds is None else max(seconds, 0)


@dataclass(frozen=True)
class AttemptPolicy:
    """What holds for an attempt once everybody was asked. None: it is tried for ever, it may take for ever."""

    backoff: Backoff
    lease: Lease
    max_attempts: int | None
    timeout_seconds: float | None = None


def resolve(*policies: Policy) -> AttemptPolicy:
    """The first of the policies that says something, or else ``JOBCHAINS``: processor, slice, worker, settings."""
    settings = get_settings()
    backoff = Backoff(
        settings.BACKOFF_INITIAL_SECONDS,
        settings.BACKOFF_MULTIPLIER,
        settings.BACKOFF_MAXIMUM_SECONDS,
        settings.BACKOFF_JITTER,
    )
    return AttemptPolicy(
        backoff=next((policy.backoff for policy in policies if policy.backoff), backoff),
        lease=next((policy.lease for policy in policies if policy.lease), Lease(settings.LEASE_SECONDS)),
        max_attempts=next((policy.max_attempts for policy in policies if policy.max_attempts), settings.MAX_ATTEMPTS),
        timeout_seconds=next(
            (policy.timeout_seconds for policy in policies if policy.timeout), settings.TIMEOUT_SECONDS
        ),
    )


def retention_of(*policies: Policy) -> Retention:
    """What the first of the policies says that says something, or else ``JOBCHAINS``: processor, slice, settings."""
    settings = get_settings()
    otherwise = Retention(
        settings.RETENTION_COMPLETED_SECONDS,
        settings.RETENTION_CANCELLED_SECONDS,
        settings.RETENTION_FAILED_SECONDS,
        settings.RETENTION_KEEPS_KEYED,
    )
    return next((policy.retention for policy in policies if policy.retention), otherwise)


def sources(*policies: tuple[str, Policy]) -> dict[str, str]:
    """Who decided each field of what ``resolve`` says of these named policies: one of them, settings or library."""
    return {field.name: source(field.name, *policies) for field in fields(AttemptPolicy)}


def source(name: str, *policies: tuple[str, Policy]) -> str:
    """Who decided one field of a policy."""
    own = next((said_by for said_by, policy in policies if getattr(policy, name) is not None), None)
    return own or ("settings" if is_set(name) else "library")


@dataclass(frozen=True)
class RetryRule:
    """Which errors are worth another attempt: none of ``fail_on``, and those ``retry_if`` says yes to."""

    fail_on: tuple[type[BaseException], ...] = ()
    retry_if: Callable[[BaseException], bool] | None = None

    def allows(self, error: BaseException) -> bool:
        if isinstance(error, self.fail_on):
            return False
        return self.retry_if is None or self.retry_if(error)
