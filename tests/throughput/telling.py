"""Counts as workers tell them, and where the database's clock stands."""

from datetime import timedelta

from django_jobchains.store import Store, TypeTally
from tests.store.jobs import SHIP


def tally(type_name: str = SHIP, age_seconds: float = 0.0, **counts: float) -> TypeTally:
    """``completed`` 1 unless something else is said."""
    numbers = {"completed": 0 if counts else 1, "failed": 0, "crashed": 0, "seconds": 0.0, "longest_seconds": 0.0}
    return TypeTally(type_name, age_seconds, **{**numbers, **counts})  # type: ignore[arg-type]


def put_clock(store: Store, minute: int, second: float) -> None:
    """Lets the database's clock stand at this minute and second of the hour after the next."""
    store.ahead_seconds = 0
    now = store.time_ago(0)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    store.ahead_seconds = (hour + timedelta(minutes=minute, seconds=second) - now).total_seconds()
