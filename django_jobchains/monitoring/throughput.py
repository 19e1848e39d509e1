"""Attempts that ended in each minute and hour, and their durations by type.

Workers count their attempts and store the counts about once per heartbeat (``HEARTBEAT_SECONDS``), so jobs are not
read. The latest minute is therefore incomplete, and the last counts of a killed worker are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from asgiref.sync import sync_to_async

from django_jobchains.store import get_store
from django_jobchains.store.stats import HOUR, MINUTE, SHOWN, SpanCount, TypeRuns

#: How many types are returned, slowest first.
MAX_TYPES = 100


@dataclass(frozen=True)
class AttemptTotals:
    """Attempts that ended in a span of time from ``starts_at``. ``failed`` includes retried attempts and crashes."""

    starts_at: datetime
    completed: int
    failed: int


@dataclass(frozen=True)
class Throughput:
    """The last 60 minutes and 24 hours, oldest first. The last of each is incomplete at ``now``, the database's time.

    ``types``: the 100 slowest types of these hours, slowest first.
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
        return _sum(self.minutes)

    @property
    def last_day(self) -> AttemptTotals:
        """The sum of the hours."""
        return _sum(self.hours)


def throughput(using: str | None = None) -> Throughput:
    """Return the counts of the last hour and day. Executes three statements."""
    store = get_store(using)
    now = store.stats.time_ago(0)
    found = store.stats.counts_by_time(now)
    types = tuple(store.stats.counts_by_type(now, MAX_TYPES))
    return Throughput(_filled(found, MINUTE, now), _filled(found, HOUR, now), types, now)


athroughput = sync_to_async(throughput)


def _filled(found: Sequence[SpanCount], span: int, now: datetime) -> tuple[AttemptTotals, ...]:
    """Return the totals of every span, including those without attempts."""
    counts = {count.starts_at: (count.completed, count.failed) for count in found if count.span == span}
    last = datetime.fromtimestamp(now.timestamp() // span * span, UTC)
    starts = (last - timedelta(seconds=span * back) for back in reversed(range(SHOWN[span])))
    return tuple(AttemptTotals(start, *counts.get(start, (0, 0))) for start in starts)


def _sum(parts: Sequence[AttemptTotals]) -> AttemptTotals:
    return AttemptTotals(parts[0].starts_at, sum(part.completed for part in parts), sum(part.failed for part in parts))
