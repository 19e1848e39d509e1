"""The store: the only place that changes a status. It holds an object for each group of methods.

Every write of an attempt checks its lease number: one of a stale attempt changes no row. Times that are compared are
the database's. A vendor provides a ``Database`` with its dialect, and its claim.
"""

from functools import lru_cache
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_jobchains.conf import bound_database, get_settings
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.chains import Chains
from django_jobchains.store.database import Database
from django_jobchains.store.deduplication import Keys
from django_jobchains.store.deferred import Deferred
from django_jobchains.store.job_logs import Logs
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.last_jobs import LastJobs
from django_jobchains.store.leases import Leases
from django_jobchains.store.limits import Limits
from django_jobchains.store.on_failure import FailureChains
from django_jobchains.store.queues import Queues
from django_jobchains.store.rates import Rates
from django_jobchains.store.record_limits import RecordLimits
from django_jobchains.store.record_operations import RecordOperations
from django_jobchains.store.records import Records
from django_jobchains.store.retention import Pruning
from django_jobchains.store.schedules import Schedules
from django_jobchains.store.stats import Stats
from django_jobchains.store.task_names import TaskNames
from django_jobchains.store.workers import Workers
from django_jobchains.store.writes import DeferredWrites, FencedWrites
from django_jobchains.text.humanize import sentence

__all__ = ("Store", "get_store")


class Store:
    """The jobs of a database alias."""

    #: The connection, the dialect and the transactions of the vendor.
    database_class: ClassVar[type[Database]]
    #: The claim of the vendor.
    jobs_class: ClassVar[type[Jobs]]
    #: The claim of limited types of the vendor.
    limits_class: ClassVar[type[Limits]]
    #: How deduplication keys are locked.
    keys_class: ClassVar[type[Keys]] = Keys

    def __init__(self, using: str) -> None:
        self.using = using
        self.db = db = self.database_class(using)
        deferred_writes = DeferredWrites(db)
        self.keys = self.keys_class(db)
        self.last_jobs = LastJobs(db)
        failures = FailureChains(db)
        self.blockers = Blockers(db, self.last_jobs, failures)
        fenced_writes = FencedWrites(db, self.blockers, failures)
        self.task_names = TaskNames(db)
        self.jobs = self.jobs_class(db, self.keys, self.blockers, self.task_names)
        self.rates = Rates(db)
        self.limits = self.limits_class(db, self.jobs, self.rates)
        self.attempts = Attempts(db, self.last_jobs, self.blockers, self.jobs, fenced_writes, self.rates)
        self.leases = Leases(db, deferred_writes, fenced_writes)
        self.chains = Chains(db, self.last_jobs, self.blockers, self.jobs, deferred_writes)
        self.records = Records(db)
        self.record_limits = RecordLimits(db, self.records, self.rates)
        self.record_operations = RecordOperations(db)
        self.deferred = Deferred(
            db,
            deferred_writes,
            self.last_jobs,
            self.attempts,
            self.leases,
            self.chains,
            self.records,
            self.record_operations,
        )
        self.retention = Pruning(db, self.chains)
        self.workers = Workers(db)
        self.queues = Queues(db)
        self.schedules = Schedules(db)
        self.logs = Logs(db)
        self.stats = Stats(db)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return self.db.connection


def get_store(using: str | None = None) -> Store:
    """Return the store of a database alias; None is ``current_database()``.

    The store is the one for the vendor, or an instance of the class that ``JOBCHAINS`` names for the alias. Raises
    ``ImproperlyConfigured``. Every public call validates its ``using`` here.
    """
    alias: Any = bound_database.get() if using is None else using
    if isinstance(alias, str | None) and (found := _stores.get(alias)):
        return found
    settings, given = get_settings(), alias
    alias = settings.DATABASE if given is None else given
    if not isinstance(alias, str) or alias not in connections.settings:
        known = ", ".join(connections.settings)
        argument = "JOBCHAINS['DATABASE']" if given is None else "using"
        raise ImproperlyConfigured(f"{argument}={alias!r:.100} is not an alias in DATABASES. Known: {known}.")
    store = _stores[given] = _store(alias, settings.of(alias, "STORE"))
    return store


#: The stores of the aliases, with the current settings. That of ``DATABASE`` is also the one of None.
_stores: dict[str | None, Store] = {}


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in ("JOBCHAINS", "DATABASES"):
        _stores.clear()


setting_changed.connect(_on_setting_changed)


@lru_cache(maxsize=32)
def _store(using: str, path: str | None) -> Store:
    return _of_vendor(using) if path is None else _given(path, using)


def _given(path: str, using: str) -> Store:
    try:
        store = import_string(path)(using)
    except (ImportError, AttributeError, TypeError) as error:
        raise ImproperlyConfigured(sentence(f"{_setting(using)}: {path} cannot be used: {error}")) from error
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
        f"Another database needs a custom store, {_setting(using)}."
    )


def _setting(using: str) -> str:
    return get_settings().name_of(using, "STORE")
