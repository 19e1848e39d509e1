"""The only place that changes a status, and the only place with SQL."""

from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.store.attempt_counts import HOUR, MINUTE, SHOWN, SpanCount, TypeCount, TypeTally
from django_jobchains.store.base import Store
from django_jobchains.store.counting import MOST_FAILED, MOST_GROUPS, Activity, FailingGroup, HeldGroup, PendingGroup
from django_jobchains.store.presence import Beat, PresentWorker
from django_jobchains.store.pruning import Ended, Place
from django_jobchains.store.queue_states import QueueRule
from django_jobchains.store.rows import (
    AttemptKey,
    ClaimedJob,
    CreatedJob,
    Effects,
    EndedAttempt,
    FailedTry,
    FinishedJob,
    HeldLease,
    NewJob,
    OpenTransaction,
    ReapedJob,
    Renewal,
    Said,
    SaidLine,
    SaidProgress,
)
from django_jobchains.store.tails import Tail

__all__ = (
    "HOUR",
    "MINUTE",
    "MOST_FAILED",
    "MOST_GROUPS",
    "SHOWN",
    "Activity",
    "AttemptKey",
    "Beat",
    "ClaimedJob",
    "CreatedJob",
    "Effects",
    "Ended",
    "EndedAttempt",
    "FailedTry",
    "FailingGroup",
    "FinishedJob",
    "HeldGroup",
    "HeldLease",
    "NewJob",
    "OpenTransaction",
    "PendingGroup",
    "Place",
    "PresentWorker",
    "QueueRule",
    "ReapedJob",
    "Renewal",
    "Said",
    "SaidLine",
    "SaidProgress",
    "SpanCount",
    "Store",
    "Tail",
    "TypeCount",
    "TypeTally",
    "get_store",
)


def get_store(using: str | None = None) -> Store:
    """The store of a database alias; None is ``JOBCHAINS["DATABASE"]``.

    It is made for the vendor, or the class that ``JOBCHAINS`` names for the alias. Raises ``ImproperlyConfigured``.
    Every public call passes its ``using`` through here before it is used.
    """
    settings = get_settings()
    alias: Any = settings.DATABASE if using is None else using
    if not isinstance(alias, str) or alias not in connections.settings:
        known = ", ".join(connections.settings)
        argument = "JOBCHAINS['DATABASE']" if using is None else "using"
        raise ImproperlyConfigured(f"{argument}={alias!r:.100} is not an alias in DATABASES. Known: {known}.")
    return _store(alias, settings.of(alias, "STORE"))


@lru_cache(maxsize=32)
def _store(using: str, path: str | None) -> Store:
    return _of_vendor(using) if path is None else _given(path, using)


def _given(path: str, using: str) -> Store:
    try:
        store = import_string(path)(using)
    except (ImportError, AttributeError, TypeError) as error:
        raise ImproperlyConfigured(f"{_setting(using)}: {path} cannot be used: {error}") from error
    if not isinstance(store, Store):
        raise ImproperlyConfigured(f"{_setting(using)}: {path} is not a subclass of django_jobchains.store.Store.")
    return store


def _of_vendor(using: str) -> Store:
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
    raise ImproperlyConfigured(
        f"django_jobchains keeps jobs in PostgreSQL or SQLite; {using!r} is {vendor}. "
        f"Another database needs a store of its own, {_setting(using)}."
    )


def _setting(using: str) -> str:
    return get_settings().name_of(using, "STORE")
