"""The clock that decides what is due, moved forward by a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django_jobchains.schedules import MOST_SECONDS, seconds_of
from django_jobchains.store import Store, get_store


class Clock:
    """The database's clock, as this process' chains see it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def advance(self, by: timedelta | float) -> None:
        """Moves it forward by a timedelta or seconds; it goes on from there."""
        seconds = seconds_of(by, "by")
        if not 0 <= seconds <= MOST_SECONDS:
            raise ValueError(f"The clock moves forward, not by {by!r}.")
        self._store.ahead_seconds += seconds


@contextmanager
def clock(*, using: str | None = None) -> Iterator[Clock]:
    """A clock to move forward; it is right again after the block."""
    store = get_store(using)
    try:
        yield Clock(store)
    finally:
        store.ahead_seconds = 0
