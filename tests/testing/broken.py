"""Stores and notifiers that are wrong, each in one way, and the part of the contract that is about it.

Not collected with the others: ``test_contracts_bite`` runs it, and wants it red.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from django.db import connection
from django.utils.module_loading import import_string

from django_jobchains.notifications import Hint, Listener, Notifier, Subscribers
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.store import AttemptKey, Effects, FinishedJob, Store
from django_jobchains.testing.contracts import actors, waiting
from django_jobchains.testing.contracts.blocking import Blocking
from django_jobchains.testing.contracts.budgets import SharingOut
from django_jobchains.testing.contracts.claiming import Claiming
from django_jobchains.testing.contracts.creating import Creating
from django_jobchains.testing.contracts.ending import Ending
from django_jobchains.testing.contracts.hearing import NotifierTests
from django_jobchains.testing.contracts.intervening import Intervening
from django_jobchains.testing.contracts.keeping import Keeping
from django_jobchains.testing.contracts.listening import Listening
from django_jobchains.testing.contracts.noting import Noting
from django_jobchains.testing.contracts.publishing import Publishing
from django_jobchains.testing.contracts.statements import CountingStatements
from django_jobchains.testing.contracts.storing import StoreTests

# Much of it waits for what never comes.
actors.DEADLINE_SECONDS = waiting.DEADLINE_SECONDS = 1.0
actors.SETTLED_SECONDS = 0.05

_SHIPPED = {
    "postgresql": "django_jobchains.store.postgresql.PostgreSQLStore",
    "sqlite": "django_jobchains.store.sqlite.SQLiteStore",
}
Shipped: Any = import_string(_SHIPPED[connection.vendor])


class Wrong(StoreTests):
    locks_rows = connection.vendor != "sqlite"
    store_class: ClassVar[Any] = Shipped

    def make(self) -> Store:
        store: Store = self.store_class("default")
        return store


class Unfenced(Shipped):  # type: ignore[misc]
    """Writes what an attempt says, whoever has the job by now."""

    def _update_sql(self, *args: Any) -> str:
        sql: str = super()._update_sql(*args)
        return sql.replace("AND job.lease_number = d.n AND job.status || '' = 'running'", "")


class TestUnfenced(Wrong, Ending):
    store_class = Unfenced


class GoesOnTwice(Shipped):  # type: ignore[misc]
    """Creates the continuation of an attempt that lost its lease."""

    def finish(self, jobs: Sequence[FinishedJob], effects: Effects | None = None, **options: Any) -> set[AttemptKey]:
        written: set[AttemptKey] = super().finish(jobs, effects, **options)
        late = [job.continuation for job in jobs if job.continuation and job.key not in written]
        for job in late:
            job.chain_index += 1
        self.create(late, effects)
        return written


class TestGoesOnTwice(Wrong, Ending):
    store_class = GoesOnTwice


class ReapsItsOwn(Shipped):  # type: ignore[misc]
    def reap(self, limit: int, backoff: Any, max_crashes: int, held: Any = (), effects: Any = None) -> Any:
        return super().reap(limit, backoff, max_crashes, (), effects)


class TestReapsItsOwn(Wrong, Ending):
    store_class = ReapsItsOwn


class ClaimsEarly(Shipped):  # type: ignore[misc]
    """Takes a job for due that is not."""

    ahead_seconds: float

    def _claim(self, *args: Any) -> Any:
        ahead, self.ahead_seconds = self.ahead_seconds, 10**6
        try:
            return super()._claim(*args)
        finally:
            self.ahead_seconds = ahead


class TestClaimsEarly(Wrong, Claiming):
    store_class = ClaimsEarly


class ClaimsPausedQueues(Shipped):  # type: ignore[misc]
    def _claim(self, worker: str, limit: int, leases: Any, queues: Any, excluded: Any) -> Any:
        return super()._claim(worker, limit, leases, queues, ())


class TestClaimsPausedQueues(Wrong, Claiming):
    store_class = ClaimsPausedQueues


class ClaimsUnordered(Shipped):  # type: ignore[misc]
    """Turns priorities round."""

    def _claim(self, worker: str, limit: int, *args: Any) -> Any:
        sql, turned = "ORDER BY rank, run_at, id", "ORDER BY rank DESC, run_at, id"
        self._turned = (sql, turned)
        try:
            return super()._claim(worker, limit, *args)
        finally:
            del self._turned

    def _fetch(self, sql: str, params: Any) -> Any:
        return super()._fetch(sql.replace(*getattr(self, "_turned", ("", ""))), params)


class TestClaimsUnordered(Wrong, Claiming):
    store_class = ClaimsUnordered


class RevivesCompleted(Shipped):  # type: ignore[misc]
    """Retries what was completed."""

    def _fetch(self, sql: str, params: Any) -> Any:
        return super()._fetch(sql.replace("job.status IN ('failed', 'cancelled')", "job.status <> 'running'"), params)


class TestRevivesCompleted(Wrong, Intervening):
    store_class = RevivesCompleted


class PrunesWhatIsNeeded(Shipped):  # type: ignore[misc]
    def _needed(self, chain_ids: Any) -> Any:
        return set()


class TestPrunesWhatIsNeeded(Wrong, Keeping):
    store_class = PrunesWhatIsNeeded


class HearsStaleAttempts(Shipped):  # type: ignore[misc]
    """Keeps what an attempt says, whoever has the job by now."""

    def _write(self, sql: str, *args: Any) -> Any:
        return super()._write(sql.replace("AND job.lease_number = d.n", ""), *args)


class TestHearsStaleAttempts(Wrong, Noting):
    store_class = HearsStaleAttempts


class DeletesJobsLast(Shipped):  # type: ignore[misc]
    """Leaves a moment in which somebody adds a line to a job that is about to be deleted."""

    def _erase(self, doomed: str) -> None:
        jobs = f"SELECT id FROM {self.job} WHERE chain_id {self._any(self._ids_sql)}"
        self._execute(f"DELETE FROM {self.log_line} WHERE job_id {self._any(jobs)}", [doomed])
        self._execute(f"DELETE FROM {self.progress} WHERE job_id {self._any(jobs)}", [doomed])
        self._execute(f"DELETE FROM {self.job} WHERE chain_id {self._any(self._ids_sql)}", [doomed])


@pytest.mark.postgresql
class TestDeletesJobsLast(Wrong, Noting):
    store_class = DeletesJobsLast


class WaitsForJobs(Shipped):  # type: ignore[misc]
    """Locks the jobs of which something is said, as if to change them."""

    def _kept(self, alias: str) -> str:
        return str(self._held(alias))


@pytest.mark.postgresql
class TestWaitsForJobs(Wrong, Noting):
    store_class = WaitsForJobs


class CountsAgain(Shipped):  # type: ignore[misc]
    """Puts what is told in the place of what was told before."""

    def _fetch(self, sql: str, params: Any) -> Any:
        return super()._fetch(sql.replace(f"{self.attempt_count}.completed + ", ""), params)


class TestCountsAgain(Wrong, Keeping):
    store_class = CountsAgain


class OneByOne(Shipped):  # type: ignore[misc]
    def reschedule(self, tries: Any, effects: Any = None) -> Any:
        ended = [super(OneByOne, self).reschedule([one], effects) for one in tries]
        return {key: status for statuses in ended for key, status in statuses.items()}


class TestOneByOne(Wrong, CountingStatements):
    store_class = OneByOne


class LooksWithoutLock(Shipped):  # type: ignore[misc]
    """Looks whether a job may start without having locked it."""

    def _settle_jobs(self, *args: Any) -> Any:
        self._is_looking = True
        try:
            return super()._settle_jobs(*args)
        finally:
            self._is_looking = False

    def _held(self, alias: str) -> str:
        return "" if getattr(self, "_is_looking", False) else str(super()._held(alias))


@pytest.mark.postgresql
class TestLooksWithoutLock(Wrong, Blocking):
    store_class = LooksWithoutLock


class WaitsForLocked(Shipped):  # type: ignore[misc]
    def _fetch(self, sql: str, params: Any) -> Any:
        return super()._fetch(sql.replace("SKIP LOCKED", ""), params)


@pytest.mark.postgresql
class TestWaitsForLocked(Wrong, Claiming):
    store_class = WaitsForLocked


class LooksForKeysWithoutLock(Shipped):  # type: ignore[misc]
    def _lock_keys(self, keys: Any) -> None:
        pass


@pytest.mark.postgresql
class TestLooksForKeysWithoutLock(Wrong, Creating):
    store_class = LooksForKeysWithoutLock


class Silent(InProcessNotifier):
    """Subscribes, and lets nobody look."""

    def connect(self, subscribers: Subscribers) -> Listener:
        look, subscribers.look = subscribers.look, lambda kinds: None  # type: ignore[method-assign]
        try:
            return super().connect(subscribers)
        finally:
            subscribers.look = look  # type: ignore[method-assign]


class Generous(InProcessNotifier):
    """Gives all jobs of a hint to each who asks."""

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return None if hint.count is None or not hint.id else min(most, hint.count)


class Ungrouped(InProcessNotifier):
    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return super().take(hint, most, "all")


class Uncounted(InProcessNotifier):
    def send(self, hints: Collection[Hint]) -> None:
        super().send([replace(hint, count=None, id="") for hint in hints])


class Deafening(InProcessNotifier):
    """Hears what it is told once, and no more after it was closed."""

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


class TestSilent(WrongNotifier, Listening):
    notifier_class = Silent


class TestGenerous(WrongNotifier, SharingOut):
    notifier_class = Generous


class TestUngrouped(WrongNotifier, SharingOut):
    notifier_class = Ungrouped


class TestUncounted(WrongNotifier, Publishing):
    notifier_class = Uncounted


class TestDeafening(WrongNotifier, Publishing):
    notifier_class = Deafening


class TestTouchy(WrongNotifier, SharingOut):
    notifier_class = Touchy
