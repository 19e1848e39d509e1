"""Attempts that ended in each minute and hour, and their durations by type.

Workers count their attempts and store the counts about once per heartbeat (``HEARTBEAT_SECONDS``), so jobs are not
read. The latest minute is therefore incomplete, and the last counts of a killed worker are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from asgiref.sync import sync_to_async

from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.store import get_store
from django_jobchains.store.stats import HOUR, MINUTE, SHOWN_HOURS, SHOWN_MINUTES, SpanCount, TypeRuns
from django_jobchains.values import Count

#: How many types are returned, slowest first.
MAX_TYPES = 100
#: Hours are kept a little longer than a week.
WEEK_HOURS = 7 * 24
VALID_HOURS = Count(SHOWN_HOURS, WEEK_HOURS)


@dataclass(frozen=True)
class AttemptTotals:
    """The attempts that ended in a minute or an hour, which begins at ``starts_at``.

    ``completed``: attempts that completed their job. ``failed``: failed and crashed attempts, whether or not the job is
    retried. ``jobs_failed``: failed attempts after which the job ended as failed.
    """

    starts_at: datetime
    completed: int
    failed: int
    jobs_failed: int


@dataclass(frozen=True)
class Throughput:
    """The last 60 minutes and the last hours, oldest first. The last minute and hour are incomplete at ``now``.

    ``types``: the 100 slowest types of these hours, slowest first. ``now`` is the database's time.
    """

    minutes: tuple[AttemptTotals, ...]
    hours: tuple[AttemptTotals, ...]
    types: tuple[TypeRuns, ...]
    now: datetime

    @property
    def last_minute(self) -> AttemptTotals:
        """The latest complete minute."""
        return self.minutes[-2]

    @property
    def last_hour(self) -> AttemptTotals:
        """The sum of the minutes."""
        return sum_totals(self.minutes)

    @property
    def last_day(self) -> AttemptTotals:
        """The sum of the last 24 hours."""
        return sum_totals(self.hours[-SHOWN_HOURS:])


@has_async_twin("monitoring")
def throughput(using: str | None = None, *, hours: int = SHOWN_HOURS) -> Throughput:
    """Return the counts of the last 60 minutes and of the last ``hours``, 24 to 168. Executes three statements."""
    VALID_HOURS.check("hours", hours)
    store = get_store(using)
    now = store.stats.time_ago(0)
    found = store.stats.counts_by_time(now, hours)
    types = tuple(store.stats.counts_by_type(now, MAX_TYPES, hours))
    return Throughput(_filled(found, MINUTE, SHOWN_MINUTES, now), _filled(found, HOUR, hours, now), types, now)


def hourly_totals(
    using: str, hours: int, *, type_name: str = "", queue: str = ""
) -> tuple[tuple[AttemptTotals, ...], datetime]:
    """Return the counts of a type, or of a queue, in each of the last hours, and the database's time."""
    stats = get_store(using).stats
    now = stats.time_ago(0)
    return _filled(stats.counts_of(now, hours, type_name=type_name, queue=queue), HOUR, hours, now), now


athroughput = sync_to_async(throughput)


def _filled(found: Sequence[SpanCount], span: int, shown: int, now: datetime) -> tuple[AttemptTotals, ...]:
    """Return the totals of every span, including those without attempts."""
    counts = {starts_at: sums for each, starts_at, *sums in found if each == span}
    last = datetime.fromtimestamp(now.timestamp() // span * span, UTC)
    starts = (last - timedelta(seconds=span * back) for back in reversed(range(shown)))
    return tuple(AttemptTotals(start, *counts.get(start, (0, 0, 0))) for start in starts)


def sum_totals(parts: Sequence[AttemptTotals]) -> AttemptTotals:
    """Return the totals of consecutive spans."""
    sums = [sum(getattr(part, name) for part in parts) for name in ("completed", "failed", "jobs_failed")]
    return AttemptTotals(parts[0].starts_at, *sums)
