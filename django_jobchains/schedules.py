"""When a job is to run: a date, or a delay that the database's clock counts."""

import math
from datetime import datetime, timedelta

#: A thousand years: beyond it databases and calendars have no dates.
MOST_SECONDS = 1000 * 365 * 86400.0


def when(run_at: datetime | None, delay: timedelta | float | None) -> tuple[datetime | None, float | None]:
    """``(run_at, delay_seconds)``, at most one of them set; raises for both, and for a date without a time zone."""
    if run_at is not None and delay is not None:
        raise TypeError("Give run_at= or delay=, not both.")
    if run_at is not None and not isinstance(run_at, datetime):
        raise TypeError(f"run_at is a datetime with a time zone, not {type(run_at).__name__}.")
    if run_at is not None and run_at.tzinfo is None:
        raise ValueError(f"run_at={run_at!r} has no time zone: use django.utils.timezone, or datetime(…, tzinfo=UTC).")
    if delay is None:
        return run_at, None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not (math.isfinite(seconds) and seconds <= MOST_SECONDS):
        raise ValueError(f"delay={delay!r} is no length of time.")
    return None, max(seconds, 0.0)
