"""The store: the only place that changes a status. It holds an object for each group of methods.

Every write of an attempt checks its lease number: one of a stale attempt changes no row. Times that are compared are
the database's. A vendor provides a ``Database`` with its dialect, and its claim.
"""

from typing import ClassVar

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.store.attempts import Attempts
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.chains import Chains
from django_jobchains.store.database import Database
from django_jobchains.store.deferred import Deferred
from django_jobchains.store.deferred_writes import DeferredWrites
from django_jobchains.store.fenced_writes import FencedWrites
from django_jobchains.store.job_logs import Logs
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.keys import Keys
from django_jobchains.store.last_jobs import LastJobs
from django_jobchains.store.leases import Leases
from django_jobchains.store.on_failure import FailureChains
from django_jobchains.store.queues import Queues
from django_jobchains.store.record_operations import RecordOperations
from django_jobchains.store.records import Records
from django_jobchains.store.retention import Pruning
from django_jobchains.store.stats import Stats
from django_jobchains.store.workers import Workers


class Store:
    """The jobs of a database alias."""

    #: The connection, the dialect and the transactions of the vendor.
    database_class: ClassVar[type[Database]]
    #: The claim of the vendor.
    jobs_class: ClassVar[type[Jobs]]
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
        self.jobs = self.jobs_class(db, self.keys, self.blockers)
        self.attempts = Attempts(db, self.last_jobs, self.blockers, self.jobs, fenced_writes)
        self.leases = Leases(db, deferred_writes, fenced_writes)
        self.chains = Chains(db, self.last_jobs, self.blockers, self.jobs, deferred_writes)
        self.records = Records(db)
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
        self.logs = Logs(db)
        self.stats = Stats(db)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return self.db.connection
