"""Locked jobs do not delay others, and writes to them are applied later."""

from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.exceptions import JobLocked
from django_jobchains.models import DeferredWrite, Job
from django_jobchains.store import ClaimedJob, Effects, EndedAttempt, Store
from tests.store.contract.jobs import (
    AT_ONCE,
    LEASE_SECONDS,
    MAX_CRASHES,
    claim,
    create,
    failed_try,
    finished,
    history,
    lease,
    let_leases_end,
    new_job,
    next_job,
    running,
    running_job,
    statuses,
    stored,
    tables,
    taken_over,
)
from tests.store.contract.store_tests import StoreTests, committing
from tests.store.contract.test_outcomes import ENDS, End, ends

#: Calls that lock jobs and do not wait for locked ones.
UNLOCKED_ENDS = {name: end for name, end in ENDS.items() if name != "finish_locked"}
#: The rows that are stored for ended attempts, by how they ended.
DEFERRED: dict[str, Callable[[ClaimedJob], Any]] = {
    "completed": lambda job: finished(job, {"parcels": 2}),
    "rescheduled": lambda job: failed_try(job, delay_seconds=600),
    "failed": failed_try,
    "handed_back": lambda job: job.key,
}


class TestLocks(StoreTests):
    @committing
    @pytest.mark.usefixtures("_locks_rows")
    @pytest.mark.parametrize("end", UNLOCKED_ENDS.values(), ids=UNLOCKED_ENDS)
    def test_a_locked_job_does_not_delay_other_ends_of_the_same_call(self, store: Store, end: End) -> None:
        jobs = running(store, 3)
        self.holding(store, lambda: store.attempts.lock(jobs[1].id))
        ended = self.elsewhere(store, lambda: end(store, jobs))
        assert set(ended) == {jobs[0].key, jobs[2].key}
        assert statuses(store, jobs[1]) == ["running"]
        assert not self.elsewhere(store, lambda: store.leases.check([jobs[1].key])).lost

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_lock_that_skips_raises_instead_of_waiting(self, store: Store) -> None:
        locked, free = running(store, 2)
        gone = new_job().id
        holder = self.holding(store, lambda: store.attempts.lock(locked.id))
        for lock in (
            lambda: store.attempts.lock(locked.id, skips=True),
            lambda: store.attempts.lock_all([free.id, locked.id], skips=True),
        ):
            with pytest.raises(JobLocked):
                self.elsewhere(store, lock)
        assert self.elsewhere(store, lambda: store.attempts.lock_all([free.id, gone], skips=True)) == {
            free.id: ("running", 1)
        }
        holder.result()
        assert self.elsewhere(store, lambda: store.attempts.lock(locked.id, skips=True)) == ("running", 1)
        assert self.elsewhere(store, lambda: store.attempts.lock(gone, skips=True)) is None

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_the_lease_of_a_locked_job_is_prolonged(self, store: Store) -> None:
        """Otherwise, it would be reaped as soon as the lock is released."""
        locked, free = running(store, 2)
        holder = self.holding(store, lambda: store.attempts.lock(locked.id))
        store.db.ahead_seconds = LEASE_SECONDS / 2
        renewal = self.elsewhere(store, lambda: store.leases.renew([lease(locked), lease(free)]))
        assert (renewal.lost, renewal.cancelled) == ({}, set())
        holder.go_on()
        holder.result()
        store.db.ahead_seconds = LEASE_SECONDS * 1.25
        assert store.leases.reap(10, AT_ONCE, MAX_CRASHES) == []
        store.deferred.apply(10, 0, Effects())
        assert DeferredWrite.objects.using(store.using).count() == 1
        store.db.ahead_seconds = LEASE_SECONDS * 2
        assert {reaped.id for reaped in store.leases.reap(10, AT_ONCE, MAX_CRASHES)} == {locked.id, free.id}
        store.deferred.apply(10, 0, Effects())
        assert not DeferredWrite.objects.using(store.using).exists()

    def test_a_lost_lease_is_not_prolonged_by_a_stale_attempt(self, store: Store) -> None:
        stale = running_job(store)
        fresh = taken_over(store, stale)
        assert store.leases.renew([lease(stale)]).lost
        let_leases_end(store)
        assert [reaped.id for reaped in store.leases.reap(10, AT_ONCE, MAX_CRASHES)] == [fresh.id]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    @pytest.mark.parametrize("ending", DEFERRED)
    def test_the_outcome_of_a_locked_job_is_stored_and_applied_when_it_is_free(self, store: Store, ending: str) -> None:
        job = running_job(store)
        holder = self.holding(store, lambda: store.attempts.lock(job.id))
        self.elsewhere(store, lambda: store.deferred.defer([EndedAttempt(ending, DEFERRED[ending](job))]))  # type: ignore[arg-type]
        self.elsewhere(store, lambda: store.deferred.apply(10, 0, Effects()))
        let_leases_end(store)
        holder.go_on()
        holder.result()
        assert store.leases.reap(10, AT_ONCE, MAX_CRASHES) == []  # It does not run again.
        effects = Effects()
        store.deferred.apply(10, 0, effects)
        status = {"completed": "completed", "failed": "failed"}.get(ending, "pending")
        assert (statuses(store, job), len(history(store))) == ([status], ending in ("rescheduled", "failed"))
        assert bool(effects.finished_chains) == (status != "pending")
        assert not DeferredWrite.objects.using(store.using).exists()

    def test_a_stored_outcome_keeps_the_continuation_as_it_was(self, store: Store) -> None:
        (blocker,) = create(store)
        job = running_job(store)
        step = next_job(job, input='{"a": [1, null]}', priority=3, delay_seconds=30.0, blockers=(blocker,))
        store.deferred.defer([EndedAttempt("completed", finished(job, None, step))])
        store.deferred.apply(10, 0, Effects())
        saved = Job.objects.using(store.using).get(id=step.id)
        assert (saved.chain_id, saved.chain_index, saved.input) == (job.chain_id, 1, {"a": [1, None]})
        assert (saved.priority, saved.status, saved.type_name) == (3, "blocked", step.type_name)

    def test_a_stored_outcome_of_a_stale_attempt_changes_nothing(self, store: Store) -> None:
        stale = running_job(store)
        store.deferred.defer([EndedAttempt("completed", finished(stale))])
        store.attempts.hand_back([stale.key])
        fresh = claim(store)[0]
        before = tables(store)
        store.deferred.apply(10, 0, Effects())
        assert tables(store) == before
        assert not store.leases.check([fresh.key]).lost

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_running_job_that_is_locked_is_cancelled_without_waiting(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        holder = self.holding(store, lambda: store.attempts.lock(job.id))
        assert self.elsewhere(store, lambda: store.chains.cancel([job.chain_id], effects)) == {job.chain_id}
        assert effects.stopped_jobs == {job.id}
        assert self.elsewhere(store, lambda: store.leases.check([job.key])).cancelled == {job.key}
        assert self.elsewhere(store, lambda: store.leases.renew([lease(job)])).cancelled == {job.key}
        self.elsewhere(store, lambda: store.deferred.apply(10, 0, Effects()))
        holder.go_on()
        holder.result()
        store.deferred.apply(10, 0, Effects())
        assert stored(store, job).cancel_requested_at is not None
        assert store.attempts.hand_back([job.key]) == {job.key}
        assert statuses(store, job) == ["cancelled"]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_chain_that_is_retried_is_not_cancelled_by_an_earlier_request(self, store: Store) -> None:
        job = running_job(store)
        holder = self.holding(store, lambda: store.attempts.lock(job.id))
        self.elsewhere(store, lambda: store.chains.cancel([job.chain_id], Effects()))
        holder.go_on()
        holder.result()
        store.attempts.hand_back([job.key])
        assert statuses(store, job) == ["cancelled"]
        assert store.chains.retry([job.id], Effects()) == {job.id}
        store.deferred.apply(10, 0, Effects())
        assert statuses(store, job) == ["pending"]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    @ends
    def test_an_attempt_that_was_asked_to_stop_while_it_was_locked_ends_cancelled(self, store: Store, end: End) -> None:
        job = running_job(store)
        holder = self.holding(store, lambda: store.attempts.lock(job.id))
        self.elsewhere(store, lambda: store.chains.cancel([job.chain_id], Effects()))
        holder.go_on()
        holder.result()
        assert end(store, [job])
        last = Job.objects.using(store.using).filter(chain_id=job.chain_id).order_by("-chain_index")[0]
        is_completed = end in (ENDS["finish"], ENDS["finish_locked"])
        assert last.status == ("completed" if is_completed else "cancelled")
        store.deferred.apply(10, 0, Effects())  # There is nothing left to do.
        assert not DeferredWrite.objects.using(store.using).exists()
