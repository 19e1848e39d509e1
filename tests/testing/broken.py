"""Stores and notifiers with one defect each, and the part of the contract that must notice it.

pytest does not collect this file. ``test_contracts_bite`` runs it and expects the tests to fail.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar

import pytest
from django.db import connection
from django.utils.module_loading import import_string

from django_jobchains.notifications import Hint, Listener, Notifier, Subscribers
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.store import AttemptKey, Effects, FinishedJob, Store
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.chains import Chains
from django_jobchains.store.database import Tables
from django_jobchains.store.fenced_writes import FencedWrites
from django_jobchains.store.job_logs import Logs
from django_jobchains.store.leases import Leases
from django_jobchains.store.on_failure import FailureChains
from django_jobchains.store.retention import Pruning
from django_jobchains.testing.contracts import concurrency
from django_jobchains.testing.contracts.blockers import BlockerTests
from django_jobchains.testing.contracts.claims import ClaimTests
from django_jobchains.testing.contracts.creation import CreationTests
from django_jobchains.testing.contracts.delivery import DeliveryTests
from django_jobchains.testing.contracts.interventions import InterventionTests
from django_jobchains.testing.contracts.job_logs import JobLogTests
from django_jobchains.testing.contracts.leases import LeaseTests
from django_jobchains.testing.contracts.maintenance import MaintenanceTests
from django_jobchains.testing.contracts.notifier_tests import NotifierTests
from django_jobchains.testing.contracts.on_failure import FailureTests
from django_jobchains.testing.contracts.outcomes import OutcomeTests
from django_jobchains.testing.contracts.publication import PublicationTests
from django_jobchains.testing.contracts.statement_counts import StatementCountTests
from django_jobchains.testing.contracts.store_tests import StoreTests
from django_jobchains.testing.contracts.wake_budgets import WakeBudgetTests

# Many of these tests wait for something that never happens.
concurrency.DEADLINE_SECONDS = 1.0

_SHIPPED = {
    "postgresql": "django_jobchains.store.postgresql.PostgreSQLStore",
    "sqlite": "django_jobchains.store.sqlite.SQLiteStore",
}
Shipped: Any = import_string(_SHIPPED[connection.vendor])


class Wrong(StoreTests):
    """``wrong`` maps groups of the store to the classes that replace them. ``database`` is a mixin for the database."""

    locks_rows = connection.vendor != "sqlite"
    wrong: ClassVar[dict[str, Any]] = {}
    database: ClassVar[type] = object

    def make(self) -> Store:
        bases = (self.database, Shipped.database_class) if self.database is not object else (Shipped.database_class,)
        database_class = type("WrongDatabase", bases, {})
        store: Store = type("WrongStore", (Shipped,), {"database_class": database_class})("default")
        for group, wrong_class in self.wrong.items():
            part = attrgetter(group)(store)
            part.__class__ = type(wrong_class.__name__, (wrong_class, type(part)), {})
        return store


class WrongDatabase:
    """Replaces a part of each statement."""

    turned: ClassVar[tuple[str, str]]

    def fetch(self, sql: str, params: Any) -> Any:
        return super().fetch(sql.replace(*self.turned), params)  # type: ignore[misc]


class Unfenced(FencedWrites):
    """Writes the outcome of an attempt that has lost its lease."""

    def _update(self, *args: Any) -> str:
        sql: str = super()._update(*args)
        return sql.replace("AND job.lease_number = d.n AND job.status || '' = 'running'", "")


class TestUnfenced(Wrong, OutcomeTests):
    wrong: ClassVar[dict[str, Any]] = {"attempts._writes": Unfenced}


class ContinuesTwice(Attempts):
    """Creates the continuation of an attempt that has lost its lease."""

    def finish(self, jobs: Sequence[FinishedJob], effects: Effects | None = None, **options: Any) -> set[AttemptKey]:
        written = super().finish(jobs, effects, **options)
        late = [job.continuation for job in jobs if job.continuation and job.key not in written]
        for job in late:
            job.chain_index += 1
        self._jobs.create(late, effects)
        return written


class TestContinuesTwice(Wrong, OutcomeTests):
    wrong: ClassVar[dict[str, Any]] = {"attempts": ContinuesTwice}


class ReapsItsOwn(Leases):
    def reap(  # type: ignore[override]
        self, limit: int, backoff: Any, max_crashes: int, held: Any = (), effects: Any = None
    ) -> Any:
        return super().reap(limit, backoff, max_crashes, (), effects)


class TestReapsItsOwn(Wrong, LeaseTests):
    wrong: ClassVar[dict[str, Any]] = {"leases": ReapsItsOwn}


class ForgetsFailures(FailureChains):
    def enqueue(self, failed: Any, effects: Effects) -> None:
        pass


class TestForgetsFailures(Wrong, FailureTests):
    wrong: ClassVar[dict[str, Any]] = {"blockers._failures": ForgetsFailures}


class ClaimsEarly:
    """Claims jobs that are not due."""

    db: Any

    def _claim(self, *args: Any) -> Any:
        ahead, self.db.ahead_seconds = self.db.ahead_seconds, 10**6
        try:
            return super()._claim(*args)  # type: ignore[misc]
        finally:
            self.db.ahead_seconds = ahead


class TestClaimsEarly(Wrong, ClaimTests):
    wrong: ClassVar[dict[str, Any]] = {"jobs": ClaimsEarly}


class ClaimsPausedQueues:
    def _claim(self, worker: str, limit: int, leases: Any, queues: Any, excluded: Any) -> Any:
        return super()._claim(worker, limit, leases, queues, ())  # type: ignore[misc]


class TestClaimsPausedQueues(Wrong, ClaimTests):
    wrong: ClassVar[dict[str, Any]] = {"jobs": ClaimsPausedQueues}


class ClaimsUnordered(WrongDatabase):
    """Reverses priorities."""

    turned = ("ORDER BY rank, run_at, id", "ORDER BY rank DESC, run_at, id")


class TestClaimsUnordered(Wrong, ClaimTests):
    database = ClaimsUnordered


class RevivesCompleted(WrongDatabase):
    """Retries completed jobs."""

    turned = ("job.status IN ('failed', 'cancelled')", "job.status <> 'running'")


class TestRevivesCompleted(Wrong, InterventionTests):
    database = RevivesCompleted


class PrunesWhatIsNeeded(Pruning):
    def _needed(self, chain_ids: Any) -> Any:
        return set()


class TestPrunesWhatIsNeeded(Wrong, MaintenanceTests):
    wrong: ClassVar[dict[str, Any]] = {"retention": PrunesWhatIsNeeded}


class LogsStaleAttempts(Logs):
    """Writes the log of an attempt that has lost its lease."""

    def _insert(self, sql: str, *args: Any) -> Any:
        return super()._insert(sql.replace("AND job.lease_number = d.n", ""), *args)


class TestLogsStaleAttempts(Wrong, JobLogTests):
    wrong: ClassVar[dict[str, Any]] = {"logs": LogsStaleAttempts}


class DeletesJobsLast(Chains):
    """Deletes the log before the jobs, so that a line can be added in between."""

    def erase(self, doomed: str) -> None:
        jobs = self.db.any_of(f"SELECT id FROM {self.tables.job} WHERE chain_id {self.db.any_id}")
        self.db.execute(f"DELETE FROM {self.tables.log_line} WHERE job_id {jobs}", [doomed])
        self.db.execute(f"DELETE FROM {self.tables.progress} WHERE job_id {jobs}", [doomed])
        self.db.execute(f"DELETE FROM {self.tables.job} WHERE chain_id {self.db.any_id}", [doomed])


@pytest.mark.postgresql
class TestDeletesJobsLast(Wrong, JobLogTests):
    wrong: ClassVar[dict[str, Any]] = {"chains": DeletesJobsLast}


class WaitsForJobs:
    """Locks jobs exclusively to write their logs."""

    def keep_lock(self, alias: str) -> str:
        return str(self.wait_lock(alias))  # type: ignore[attr-defined]


@pytest.mark.postgresql
class TestWaitsForJobs(Wrong, JobLogTests):
    database = WaitsForJobs


class CountsAgain(WrongDatabase):
    """Replaces earlier counts instead of adding to them."""

    turned = (f"{Tables.attempt_count}.completed + ", "")


class TestCountsAgain(Wrong, MaintenanceTests):
    database = CountsAgain


class OneByOne(Attempts):
    def reschedule(self, tries: Any, effects: Any = None) -> Any:
        ended = [Attempts.reschedule(self, [one], effects) for one in tries]
        return {key: status for statuses in ended for key, status in statuses.items()}


class TestOneByOne(Wrong, StatementCountTests):
    wrong: ClassVar[dict[str, Any]] = {"attempts": OneByOne}


class ChecksWithoutLock(Blockers):
    """Checks whether a job may start without locking it."""

    def _resolve_jobs(self, job_ids: Any, *args: Any) -> Any:
        lock = self._last_jobs.lock_rows
        self._last_jobs.lock_rows = lambda column, *rest: dict.fromkeys(job_ids, "fail")  # type: ignore[method-assign]
        try:
            return super()._resolve_jobs(job_ids, *args)
        finally:
            self._last_jobs.lock_rows = lock  # type: ignore[method-assign]


@pytest.mark.postgresql
class TestChecksWithoutLock(Wrong, BlockerTests):
    wrong: ClassVar[dict[str, Any]] = {"blockers": ChecksWithoutLock}


class WaitsForLocked(WrongDatabase):
    turned = ("SKIP LOCKED", "")


@pytest.mark.postgresql
class TestWaitsForLocked(Wrong, ClaimTests):
    database = WaitsForLocked


class FindsKeysWithoutLock:
    def lock(self, lock_ids: Any) -> Any:
        return lock_ids


@pytest.mark.postgresql
class TestFindsKeysWithoutLock(Wrong, CreationTests):
    wrong: ClassVar[dict[str, Any]] = {"keys": FindsKeysWithoutLock}


class Silent(InProcessNotifier):
    """Never asks listeners to query the database."""

    def connect(self, subscribers: Subscribers) -> Listener:
        resync, subscribers.resync = subscribers.resync, lambda kinds: None  # type: ignore[method-assign]
        try:
            return super().connect(subscribers)
        finally:
            subscribers.resync = resync  # type: ignore[method-assign]


class Generous(InProcessNotifier):
    """Gives all jobs of a hint to everyone who asks."""

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return None if hint.count is None or not hint.id else min(most, hint.count)


class Ungrouped(InProcessNotifier):
    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return super().take(hint, most, "all")


class Uncounted(InProcessNotifier):
    def send(self, hints: Collection[Hint]) -> None:
        super().send([replace(hint, count=None, id="") for hint in hints])


class Deafening(InProcessNotifier):
    """Sends nothing after it was closed, even if it is used again."""

    is_closed = False

    def send(self, hints: Collection[Hint]) -> None:
        if not self.is_closed:
            super().send(hints)

    def close(self) -> None:
        self.is_closed = True


class Touchy(InProcessNotifier):
    def take(self, hint: Hint, most: int, group: str) -> int | None:
        int(hint.id, 16)
        return super().take(hint, most, group)


class WrongNotifier(NotifierTests):
    has_budgets = True
    notifier_class: ClassVar[type[Notifier]] = InProcessNotifier

    def make(self) -> Notifier:
        return self.notifier_class("default")


class TestSilent(WrongNotifier, DeliveryTests):
    notifier_class = Silent


class TestGenerous(WrongNotifier, WakeBudgetTests):
    notifier_class = Generous


class TestUngrouped(WrongNotifier, WakeBudgetTests):
    notifier_class = Ungrouped


class TestUncounted(WrongNotifier, PublicationTests):
    notifier_class = Uncounted


class TestDeafening(WrongNotifier, PublicationTests):
    notifier_class = Deafening


class TestTouchy(WrongNotifier, WakeBudgetTests):
    notifier_class = Touchy
