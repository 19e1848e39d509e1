"""Times as a database returns them, how long ago they are, and times for which jobs are scheduled."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils import timezone

from django_jobchains.values import Duration, DurationLike

_DELAY = Duration(least=0)
_EXPIRES = Duration()


class Times:
    """Interprets the times of one database, relative to one moment. Without ``USE_TZ`` they are naive."""

    def __init__(self, using: str) -> None:
        is_sqlite = connections[using].vendor == "sqlite"
        self._zone: tzinfo = UTC if is_sqlite else timezone.get_default_timezone()
        self._now = datetime.now(UTC)

    def aware(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=self._zone) if timezone.is_naive(moment) else moment

    def naive(self, moment: datetime) -> datetime:
        """Return an aware time as Django reads it from this database without ``USE_TZ``."""
        return moment.astimezone(self._zone).replace(tzinfo=None)

    def seconds_since(self, moment: datetime) -> float:
        return (self._now - self.aware(moment)).total_seconds()

    def between(self, begin: datetime | None, end: datetime | None) -> float | None:
        """Return the seconds between two times, or until now without an end."""
        if begin is None:
            return None
        return ((self.aware(end) if end else self._now) - self.aware(begin)).total_seconds()


def as_stored(moment: datetime, using: str) -> datetime:
    """Return an aware time as Django reads it from this database: naive without ``USE_TZ``."""
    return moment if settings.USE_TZ else Times(using).naive(moment)


def as_compared(moment: datetime, using: str) -> datetime:
    """Return an aware time as Django compares it with times of this database.

    PostgreSQL takes aware times also without ``USE_TZ``. It would misread naive ones of the hour that is repeated when
    daylight saving time ends.
    """
    return as_stored(moment, using) if connections[using].vendor == "sqlite" else moment


def checked_time(time: datetime, name: str) -> datetime:
    """Return an aware time that exists in UTC, as databases store it. Raise ``ValueError``, with its name, for others.

    PostgreSQL would store a time in the year 10000, and then no row of its table could be read.
    """
    given: Any = time
    if not isinstance(given, datetime):
        raise TypeError(f"{name} is a datetime with a time zone, not {type(given).__name__}.")
    if time.utcoffset() is None:
        raise ValueError(f"{name}={time!r} has no time zone: use django.utils.timezone, or datetime(…, tzinfo=UTC).")
    try:
        time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{name}={time!r} is before the year 1 or after the year 9999 in UTC: use another.") from error
    return time


def resolve_schedule(run_at: datetime | None, delay: DurationLike | None) -> tuple[datetime | None, float | None]:
    """Return ``(run_at, delay_seconds)``, with at most one of them set.

    Raise ``TypeError`` or ``ValueError`` if both are given, or if one is not valid.
    """
    if run_at is not None and delay is not None:
        raise TypeError("Give run_at= or delay=, not both.")
    given: Any = run_at
    if given is not None and not isinstance(given, datetime):
        remedy = " Use delay= for a duration." if isinstance(given, timedelta | int | float) else ""
        raise TypeError(f"run_at is a datetime with a time zone, not {type(given).__name__}.{remedy}")
    if delay is None:
        return run_at and checked_time(run_at, "run_at"), None
    return None, _DELAY.check("delay", delay)


def resolve_expiry(
    expires: DurationLike | datetime | None, run_at: datetime | None
) -> tuple[datetime | None, float | None]:
    """Return ``(expires_at, expires_seconds)``, with at most one of them set. The seconds count from the due time.

    Raise ``TypeError`` or ``ValueError`` if ``expires`` is not valid, or too long after ``run_at`` to be stored.
    """
    given: Any = expires
    if given is None:
        return None, None
    if isinstance(given, datetime):
        return checked_time(given, "expires"), None
    try:
        seconds = _EXPIRES.check("expires", given)
    except TypeError:
        remedy = "seconds, a timedelta, a text such as '5m', or a datetime with a time zone"
        raise TypeError(f"expires={given!r:.100} is not a duration or a time: pass {remedy}.") from None
    if run_at is not None:
        try:
            checked_time(run_at + timedelta(seconds=seconds), "expires")
        except OverflowError as error:
            raise ValueError(f"expires={given!r} after run_at={run_at!r} is after the year 9999.") from error
    return None, seconds
