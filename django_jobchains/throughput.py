"""What was done lately: attempts that ended in each minute and hour, and how long those of each type took.

Workers count what they end and tell it about once per heartbeat (``HEARTBEAT_SECONDS``), so no job is read for it. The
newest minute is still to come in part, and a worker that was killed never told its last counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from asgiref.sync import sync_to_async

from django_jobchains.store import HOUR, MINUTE, SHOWN, SpanCount, get_store

__all__ = ("Ended", "Throughput", "TypeRuns", "athroughput", "throughput")

#: Types that are told of: the slowest.
MOST_TYPES = 100


@dataclass(frozen=True)
class Ended:
    """Attempts that ended in a time from ``starts_at``: those that completed their job, and those that failed, whether
    the job is tried again or not; crashes too."""

    starts_at: datetime
    completed: int
    failed: int


@dataclass(frozen=True)
class TypeRuns:
    """Attempts of a type in the ``hours`` of a ``Throughput``. What crashed ones took is not known, and left out of the
    mean."""

    name: str
    completed: int
    failed: int
    mean_seconds: float
    longest_seconds: float


@dataclass(frozen=True)
class Throughput:
    """The last 60 minutes and 24 hours, the oldest first; the last of each is not over at ``now``, the database's time.

    ``types``: those of the last day, slowest first, 100 at most.
    """

    minutes: tuple[Ended, ...]
    hours: tuple[Ended, ...]
    types: tuple[TypeRuns, ...]
    now: datetime

    @property
    def last_minute(self) -> Ended:
        """The newest that is over."""
        return self.minutes[-2]

    @property
    def last_hour(self) -> Ended:
        """All of the minutes."""
        return _together(self.minutes)

    @property
    def last_day(self) -> Ended:
        """All of the hours."""
        return _together(self.hours)


def throughput(using: str | None = None) -> Throughput:
    """What workers told of the last hour and day, in three statements."""
    store = get_store(using)
    now = store.time_ago(0)
    found = store.counts_by_time(now)
    types = tuple(TypeRuns(*count) for count in store.counts_by_type(now, MOST_TYPES))
    return Throughput(_filled(found, MINUTE, now), _filled(found, HOUR, now), types, now)


athroughput = sync_to_async(throughput)


def _filled(found: Sequence[SpanCount], span: int, now: datetime) -> tuple[Ended, ...]:
    """Also those in which nothing ended."""
    counts = {count.starts_at: (count.completed, count.failed) for count in found if count.span == span}
    last = datetime.fromtimestamp(now.timestamp() // span * span, UTC)
    starts = (last - timedelta(seconds=span * back) for back in reversed(range(SHOWN[span])))
    return tuple(Ended(start, *counts.get(start, (0, 0))) for start in starts)


def _together(parts: Sequence[Ended]) -> Ended:
    return Ended(parts[0].starts_at, sum(part.completed for part in parts), sum(part.failed for part in parts))
