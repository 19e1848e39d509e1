"""How a job type is tried, and how long its chains are kept: waits, leases, errors worth another attempt, retention."""

import math
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from inspect import signature
from typing import TypeGuard

from asgiref.sync import iscoroutinefunction

from django_jobchains.conf import get_settings, is_set
from django_jobchains.schedules import MOST_SECONDS, seconds_of

#: The largest number that the column of a job holds.
MOST_ATTEMPTS = 2**31 - 1


def is_number(given: object) -> TypeGuard[float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _check_between(field: str, given: object, least: float, most: float, remedy: str) -> None:
    if not (is_number(given) and least <= given <= most):
        raise ValueError(f"{field}={given!r:.100} is not valid: use {remedy}.")


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
        for name in ("initial_seconds", "maximum_seconds"):
            _check_between(name, getattr(self, name), 0, MOST_SECONDS, "a number of seconds from 0 to a thousand years")
        _check_between("multiplier", self.multiplier, 1, math.inf, "a number that is 1 or more")
        _check_between("jitter", self.jitter, 0, 1, "a number from 0 to 1")

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
        if not (is_number(self.seconds) and 0 < self.seconds <= MOST_SECONDS):
            raise ValueError(
                f"A lease lasts more than 0 seconds, and less than a thousand years, not {self.seconds!r}."
            )


def lease_of(given: Lease | timedelta | float | None) -> Lease | None:
    """Return a ``Lease``, also for a length of time; raises ``TypeError`` or ``ValueError`` for anything else."""
    return given if given is None or isinstance(given, Lease) else Lease(seconds_of(given, "lease"))


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
            if seconds is not None and not (is_number(seconds) and 0 < seconds < math.inf):
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
        _check_kind("backoff", self.backoff, Backoff, "Backoff(initial_seconds=…, multiplier=…, maximum_seconds=…)")
        _check_kind("lease", self.lease, Lease, "Lease(seconds=…), or the seconds")
        _check_kind("retention", self.retention, Retention, "Retention(completed=…, cancelled=…, failed=…)")
        if self.timeout is not None and not seconds_of(self.timeout, "timeout") > 0:
            raise ValueError(f"timeout={self.timeout!r}: a timeout is more than 0 seconds; leave it out for none.")
        if self.max_attempts != math.inf:
            check_max_attempts(self.max_attempts)

    @property
    def timeout_seconds(self) -> float | None:
        return None if self.timeout is None else seconds_of(self.timeout, "timeout")


def _check_kind(argument: str, given: object, kind: type, remedy: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{argument}={given!r:.100} is not a {kind.__name__}: pass {remedy}.")


def check_max_attempts(given: object) -> None:
    """Raises ``TypeError`` or ``ValueError`` for what is neither None nor a whole number from 1."""
    if given is None:
        return
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"max_attempts={given!r:.50} is not a whole number.")
    if not 1 <= given <= MOST_ATTEMPTS:
        raise ValueError(f"max_attempts={given}: it is 1 or more, at most {MOST_ATTEMPTS}; leave it out for no limit.")


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


#: The kinds of errors after which a job is not tried again: one class, or several in any collection.
FailOn = Iterable[type[BaseException]] | type[BaseException] | None


def fail_on_of(given: FailOn) -> tuple[type[BaseException], ...]:
    """Return the classes as a tuple; raises ``TypeError`` for what is not an exception class."""
    kinds = () if given is None else tuple(given) if isinstance(given, Iterable) else (given,)
    for kind in kinds:
        if not _is_exception_class(kind):
            raise TypeError(f"fail_on={given!r:.100}: pass exception classes, as in fail_on=[KeyError, OSError].")
    return kinds


def _is_exception_class(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, BaseException)


@dataclass(frozen=True)
class RetryRule:
    """Which errors are worth another attempt: none of ``fail_on``, and those ``retry_if`` says yes to."""

    fail_on: tuple[type[BaseException], ...] = ()
    retry_if: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        given: object = self.retry_if
        if given is None:
            return
        # A class of errors and a coroutine are true: every error would be retried.
        if not callable(given) or _is_exception_class(given) or iscoroutinefunction(given):
            raise TypeError(
                f"retry_if={given!r:.100}: pass a plain function that takes the error and returns whether to try "
                "again, as in retry_if=lambda error: isinstance(error, TimeoutError)."
            )
        with suppress(ValueError):  # some callables have no signature
            try:
                signature(given).bind(None)
            except TypeError:
                raise TypeError(f"retry_if={given!r:.100} must take one argument, the error.") from None

    def allows(self, error: BaseException) -> bool:
        if isinstance(error, self.fail_on):
            return False
        return self.retry_if is None or self.retry_if(error)
