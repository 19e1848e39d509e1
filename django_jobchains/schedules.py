"""When a job is to run: a date, or a delay that the database's clock counts."""

import math
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

#: A thousand years: beyond it databases and calendars have no dates.
MOST_SECONDS = 1000 * 365 * 86400.0


def seconds_of(duration: timedelta | float, argument: str) -> float:
    """Return the seconds of a timedelta or a number. Raises ``TypeError``, which names the argument, for others."""
    given: Any = duration
    if isinstance(given, timedelta):
        return given.total_seconds()
    if not isinstance(given, str | bytes | bool):  # which float() would take
        with suppress(TypeError, ValueError):
            return given if isinstance(given, float) else _as_float(given)
    raise TypeError(
        f"{argument}={given!r:.50} is not a length of time: pass seconds, or a timedelta, as in timedelta(minutes=5)."
    )


def _as_float(given: Any) -> float:
    try:
        return float(given)
    except OverflowError:  # a whole number or a fraction with more than 308 digits
        return math.inf if given > 0 else -math.inf


def when(run_at: datetime | None, delay: timedelta | float | None) -> tuple[datetime | None, float | None]:
    """``(run_at, delay_seconds)``, at most one of them set; raises for both, and for a date without a time zone."""
    if run_at is not None and delay is not None:
        raise TypeError("Give run_at= or delay=, not both.")
    given: Any = run_at
    if given is not None and not isinstance(given, datetime):
        remedy = " Use delay= for a length of time." if isinstance(given, timedelta | int | float) else ""
        raise TypeError(f"run_at is a datetime with a time zone, not {type(given).__name__}.{remedy}")
    if run_at is not None and run_at.utcoffset() is None:
        raise ValueError(f"run_at={run_at!r} has no time zone: use django.utils.timezone, or datetime(…, tzinfo=UTC).")
    if delay is None:
        return run_at, None
    seconds = seconds_of(delay, "delay")
    if not (math.isfinite(seconds) and seconds <= MOST_SECONDS):
        raise ValueError(f"delay={delay!r} is not a length of time below a thousand years.")
    return None, max(seconds, 0.0)
