"""The policies of job types: backoff, lease, limits of attempts, errors that are retried, and retention."""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings, is_set
from django_jobchains.isolation import Isolation, to_isolation
from django_jobchains.text.humanize import sentence
from django_jobchains.values import (
    LONG_DURATION,
    MAX_ATTEMPTS,
    TIMEOUT,
    Duration,
    DurationLike,
    Number,
    Or,
    check_fields,
)


@dataclass(frozen=True)
class Backoff:
    """The wait before a retry: ``initial_seconds * multiplier ** (failures - 1)``, at most ``maximum_seconds``.

    ``jitter`` is the random part of the wait (0 to 1), so that jobs that failed together are not retried together.
    """

    initial_seconds: Annotated[float, Duration(least=0)] = 10
    multiplier: Annotated[float, Number(1)] = 2
    maximum_seconds: Annotated[float, Duration(least=0)] = 3600
    jitter: Annotated[float, Number(0, 1)] = 0.1

    if TYPE_CHECKING:  # The durations are converted to seconds.

        def __init__(
            self,
            initial_seconds: DurationLike = 10,
            multiplier: float = 2,
            maximum_seconds: DurationLike = 3600,
            jitter: float = 0.1,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_fields(self)

    def seconds(self, failures: int, share: float | None = None) -> float:
        """Return the wait after this number of failures, from 1. ``share`` (0 to 1) replaces the random number."""
        try:
            wait = min(self.initial_seconds * self.multiplier ** (failures - 1), self.maximum_seconds)
        except OverflowError:
            wait = self.maximum_seconds
        return wait * (1 - self.jitter * (random.random() if share is None else share))  # noqa: S311 - no secret


#: Returns the time until the next try, from the number of failures and the error. After a crash, it gets the number
#: of crashes and None.
BackoffFunction = Callable[[int, BaseException | None], DurationLike]


def checked_backoff_seconds(backoff: "Backoff | BackoffFunction", failures: int, error: BaseException | None) -> float:
    """Return the wait after this number of failures; raise ``ValueError`` if a function returns something else."""
    seconds = backoff.seconds(failures) if isinstance(backoff, Backoff) else backoff(failures, error)
    return Duration(least=0).check("backoff", seconds)


@dataclass(frozen=True)
class Lease:
    """How long a claimed job belongs to its worker without a renewal. Leases are renewed after a third of this time."""

    seconds: Annotated[float, Duration()] = 60

    if TYPE_CHECKING:

        def __init__(self, seconds: DurationLike = 60) -> None: ...

    def __post_init__(self) -> None:
        check_fields(self, "lease")


def to_lease(given: Lease | DurationLike | None) -> Lease | None:
    """Return a ``Lease``, if need be from a duration; raise ``TypeError`` or ``ValueError`` for other values."""
    return given if given is None or isinstance(given, Lease) else Lease(Duration().check("lease", given))


#: How long chains are kept: a duration, or None for no limit.
Kept = Annotated[DurationLike | None, Or(LONG_DURATION, None)]

MONTH = timedelta(days=30)


@dataclass(frozen=True)
class Retention:
    """How long workers keep chains, by the status with which they ended: a duration, or None for no limit.

    ``keeps_keyed``: whether to keep a chain longer if its deduplication key can still match it, so that the key is not
    used again too early. With the scope "any" and without a window, the chain is kept forever.
    """

    completed: Kept = MONTH
    cancelled: Kept = MONTH
    failed: Kept = None
    keeps_keyed: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def seconds(self, status: str) -> float | None:
        seconds: float | None = getattr(self, status)
        return seconds


@dataclass(frozen=True)
class Policy:
    """The policy of a processor, a slice or a worker. None means that the next of them decides."""

    backoff: Backoff | BackoffFunction | None = None
    lease: Lease | None = None
    #: A whole number, or ``math.inf``: never give up.
    max_attempts: float | None = None
    #: A duration, or ``math.inf`` for no limit.
    timeout: DurationLike | None = None
    #: For chains that start with the type.
    retention: Retention | None = None
    isolation: Isolation | None = None

    def __post_init__(self) -> None:
        _check_backoff(self.backoff)
        checked_kind("lease", self.lease, Lease, "Lease(seconds=…), or the seconds")
        checked_kind("isolation", self.isolation, Isolation, "a level such as 'process', or Isolation(level, …)")
        checked_kind("retention", self.retention, Retention, "Retention(completed=…, cancelled=…, failed=…)")
        TIMEOUT.check_or("timeout", self.timeout, None)
        MAX_ATTEMPTS.check_or("max_attempts", self.max_attempts, None)

    @property
    def timeout_seconds(self) -> float | None:
        return TIMEOUT.check_or("timeout", self.timeout, None)


def checked_kind(argument: str, given: Any, kind: type, remedy: str) -> Any:
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{argument}={given!r:.100} is not a {kind.__name__}: pass {remedy}.")
    return given


def _check_backoff(given: object) -> None:
    if given is None or isinstance(given, Backoff):
        return
    if not callable(given) or isinstance(given, type):
        raise TypeError(
            f"backoff={given!r:.100} is not a Backoff: pass Backoff(initial_seconds=…, multiplier=…, "
            "maximum_seconds=…), or a function that returns the seconds."
        )
    check_function("backoff", given, 2, "the number of failures and the error")


#: How error messages name a number of arguments.
_COUNTS = {1: "one argument", 2: "two arguments"}


def check_function(argument: str, given: object, count: int, meaning: str) -> None:
    """Raise ``TypeError`` unless the value is a plain function that takes this number of positional arguments."""
    # Calling a class or a coroutine function returns an object, whatever the arguments are.
    if not callable(given) or isinstance(given, type) or iscoroutinefunction(given):
        raise TypeError(f"{argument}={given!r:.100}: pass a plain function that takes {_COUNTS[count]}, {meaning}.")
    with suppress(ValueError):  # some callables have no signature
        try:
            signature(given).bind(*[None] * count)
        except TypeError:
            raise TypeError(f"{argument}={given!r:.100} must take {_COUNTS[count]}, {meaning}.") from None


@dataclass(frozen=True)
class AttemptPolicy:
    """The policy of an attempt, resolved from the policies of its processor, slice and worker, and the settings."""

    backoff: Backoff | BackoffFunction
    lease: Lease
    #: A whole number, or ``math.inf`` for no limit.
    max_attempts: float
    #: ``math.inf`` for no limit.
    timeout_seconds: float
    isolation: Isolation


def resolve(*policies: Policy) -> AttemptPolicy:
    """Return for each field the value of the first policy that sets it, or else the one in ``JOBCHAINS``."""
    settings = get_settings()

    def first(name: str) -> Any:
        return next((value for policy in policies if (value := getattr(policy, name))), None)

    return AttemptPolicy(
        backoff=first("backoff") or backoff_of_settings(),
        lease=first("lease") or Lease(settings.LEASE_SECONDS),
        max_attempts=first("max_attempts") or settings.MAX_ATTEMPTS,
        timeout_seconds=first("timeout_seconds") or settings.TIMEOUT_SECONDS,
        isolation=first("isolation") or isolation_of_settings(),
    )


def default_backoff() -> Backoff:
    """Return the backoff of the settings ``BACKOFF_…``, which also replaces a backoff function that fails."""
    settings = get_settings()
    return Backoff(
        settings.BACKOFF_INITIAL_SECONDS,
        settings.BACKOFF_MULTIPLIER,
        settings.BACKOFF_MAXIMUM_SECONDS,
        settings.BACKOFF_JITTER,
    )


def isolation_of_settings() -> Isolation:
    """Return ``JOBCHAINS["ISOLATION"]``."""
    return to_isolation(get_settings().ISOLATION) or Isolation("thread")


def backoff_of_settings() -> Backoff | BackoffFunction:
    """Return the function that ``JOBCHAINS["BACKOFF"]`` names, or else the default backoff.

    Raises ``ImproperlyConfigured`` if there is no such function.
    """
    path = get_settings().BACKOFF
    return default_backoff() if path is None else _imported_backoff(path)


@lru_cache(maxsize=4)
def _imported_backoff(path: str) -> Backoff | BackoffFunction:
    try:
        backoff: Backoff | BackoffFunction = import_string(path)
        _check_backoff(backoff)
    except (ImportError, TypeError) as error:
        raise ImproperlyConfigured(sentence(f"JOBCHAINS['BACKOFF']={path!r} cannot be used: {error}")) from error
    return backoff


def resolve_retention(*policies: Policy) -> Retention:
    """Return the retention of the first policy that sets one, or else of ``JOBCHAINS``."""
    settings = get_settings()
    default = Retention(
        settings.RETENTION_COMPLETED_SECONDS,
        settings.RETENTION_CANCELLED_SECONDS,
        settings.RETENTION_FAILED_SECONDS,
        settings.RETENTION_KEEPS_KEYED,
    )
    return next((policy.retention for policy in policies if policy.retention), default)


def sources(*policies: tuple[str, Policy]) -> dict[str, str]:
    """Return for each field which of the named policies sets it, or else "settings" or "library"."""
    return {field.name: source(field.name, *policies) for field in fields(AttemptPolicy)}


def source(name: str, *policies: tuple[str, Policy]) -> str:
    """Return which of the named policies sets a field, or else "settings" or "library"."""
    owner = next((owner for owner, policy in policies if getattr(policy, name) is not None), None)
    return owner or ("settings" if is_set(name) else "library")


#: The errors after which a job is not retried: an exception class, or a collection of them.
FailOn = Iterable[type[BaseException]] | type[BaseException]


def to_exception_classes(given: FailOn) -> tuple[type[BaseException], ...]:
    """Return the classes as a tuple; raise ``TypeError`` for anything that is not an exception class."""
    kinds: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"fail_on={given!r:.100}: pass exception classes, as in fail_on=[KeyError, OSError].")
    return kinds


@dataclass(frozen=True)
class RetryRule:
    """The errors that are retried: errors that are not in ``fail_on``, if ``retry_if`` returns true for them."""

    fail_on: tuple[type[BaseException], ...] = ()
    retry_if: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        if self.retry_if is not None:
            check_function("retry_if", self.retry_if, 1, "the error")

    def allows(self, error: BaseException) -> bool:
        if isinstance(error, self.fail_on):
            return False
        return self.retry_if is None or self.retry_if(error)
