"""Reads of the admin come to an end: a page that would take minutes gives up, and says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError

from django_jobchains.store import get_store

#: A statement of a page may take so long.
READ_SECONDS = 5.0


class TookTooLong(Exception):
    """The database did not find what a page is to show within its time."""


@contextmanager
def bounded(using: str, seconds: float | None = None) -> Iterator[None]:
    """Raises ``TookTooLong`` for a read inside that takes longer. What is lazy has to be read inside.

    Not one inside another: on SQLite the inner one ends the outer one's watch.
    """
    store = get_store(using)
    try:
        with store.reads_within(READ_SECONDS if seconds is None else seconds):
            yield
    except OperationalError as error:
        if not store.is_out_of_time(error):
            raise
        raise TookTooLong from error
