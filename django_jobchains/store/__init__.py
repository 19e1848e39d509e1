"""The only place that changes a status, and the only place with SQL."""

from functools import lru_cache

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.conf import get_settings
from django_jobchains.store.base import Store
from django_jobchains.store.counting import MOST_GROUPS, Activity, FailingGroup, HeldGroup, PendingGroup
from django_jobchains.store.presence import Beat, PresentWorker
from django_jobchains.store.pruning import Ended, Place
from django_jobchains.store.queue_states import QueueRule
from django_jobchains.store.rows import (
    AttemptKey,
    ClaimedJob,
    CreatedJob,
    Effects,
    FailedTry,
    FinishedJob,
    HeldLease,
    NewJob,
    ReapedJob,
    Renewal,
)
from django_jobchains.store.tails import Tail

__all__ = (
    "MOST_GROUPS",
    "Activity",
    "AttemptKey",
    "Beat",
    "ClaimedJob",
    "CreatedJob",
    "Effects",
    "Ended",
    "FailedTry",
    "FailingGroup",
    "FinishedJob",
    "HeldGroup",
    "HeldLease",
    "NewJob",
    "PendingGroup",
    "Place",
    "PresentWorker",
    "QueueRule",
    "ReapedJob",
    "Renewal",
    "Store",
    "Tail",
    "get_store",
)


def get_store(using: str | None = None) -> Store:
    """The store of a database alias; None is ``JOBCHAINS["DATABASE"]``."""
    return _store(using or get_settings().DATABASE)


@lru_cache(maxsize=32)
def _store(using: str) -> Store:
    vendor = connections[using].vendor
    if vendor == "postgresql":
        try:
            from django_jobchains.store.postgresql import PostgreSQLStore
        except ImportError as error:
            raise ImproperlyConfigured("PostgreSQL needs psycopg 3: install django_jobchains[postgres].") from error
        return PostgreSQLStore(using)
    if vendor == "sqlite":
        from django_jobchains.store.sqlite import SQLiteStore

        return SQLiteStore(using)
    raise ImproperlyConfigured(f"django_jobchains keeps jobs in PostgreSQL or SQLite; {using!r} is {vendor}.")
