"""Locked jobs do not delay others, and writes to them are applied later."""

import pytest

from django_jobchains.exceptions import JobLocked
from django_jobchains.models import DeferredWrite, Job
from django_jobchains.store.rows import Effects, EndedAttempt
from tests.store.conftest import locks_rows
from tests.store.contract.ends import ENDS, ends
from tests.support.connections import committing, elsewhere, holding
from tests.support.jobs import (
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

pytestmark = pytest.mark.django_db

#: Calls that lock jobs and do not wait for locked ones.
UNLOCKED_ENDS = {name: end for name, end in ENDS.items() if name != "finish_locked"}
#: The rows that are stored for ended attempts, by how they ended.
DEFERRED = {
    "completed": lambda job: finished(job, '{"parcels": 2}'),
    "rescheduled": lambda job: failed_try(job, delay_seconds=600),
    "failed": failed_try,
    "handed_back": lambda job: job.key,
}


@committing
@locks_rows
@pytest.mark.parametrize("end", UNLOCKED_ENDS.values(), ids=UNLOCKED_ENDS)
def test_a_locked_job_does_not_delay_other_ends_of_the_same_call(store, end):
    jobs = running(store, 3)
    holding(lambda store: store.attempts.lock(jobs[1].id))
    ended = elsewhere(lambda store: end(store, jobs))
    assert set(ended) == {jobs[0].key, jobs[2].key}
    assert statuses(jobs[1]) == ["running"]
    assert not elsewhere(lambda store: store.leases.check([jobs[1].key])).lost


@committing
@locks_rows
def test_a_lock_that_skips_raises_instead_of_waiting(store):
    locked, free = running(store, 2)
    gone = new_job().id
    holder = holding(lambda store: store.attempts.lock(locked.id))
    for lock in (
        lambda store: store.attempts.lock(locked.id, skips=True),
        lambda store: store.attempts.lock_all([free.id, locked.id], skips=True),
    ):
        with pytest.raises(JobLocked):
            elsewhere(lock)
    assert elsewhere(lambda store: store.attempts.lock_all([free.id, gone], skips=True)) == {free.id: ("running", 1)}
    holder.result()
    assert elsewhere(lambda store: store.attempts.lock(locked.id, skips=True)) == ("running", 1)
    assert elsewhere(lambda store: store.attempts.lock(gone, skips=True)) is None


@committing
@locks_rows
def test_the_lease_of_a_locked_job_is_prolonged(store):
    """Otherwise, it would be reaped as soon as the lock is released."""
    locked, free = running(store, 2)
    holder = holding(lambda store: store.attempts.lock(locked.id))
    store.db.ahead_seconds = LEASE_SECONDS / 2
    renewal = elsewhere(lambda store: store.leases.renew([lease(locked), lease(free)]))
    assert (renewal.lost, renewal.cancelled) == ({}, set())
    holder.go_on()
    holder.result()
    store.db.ahead_seconds = LEASE_SECONDS * 1.25
    assert store.leases.reap(10, AT_ONCE, MAX_CRASHES) == []
    store.deferred.apply(10, 0, Effects())
    assert DeferredWrite.objects.count() == 1
    store.db.ahead_seconds = LEASE_SECONDS * 2
    assert {reaped.id for reaped in store.leases.reap(10, AT_ONCE, MAX_CRASHES)} == {locked.id, free.id}
    store.deferred.apply(10, 0, Effects())
    assert not DeferredWrite.objects.exists()


def test_a_lost_lease_is_not_prolonged_by_a_stale_attempt(store):
    stale = running_job(store)
    fresh = taken_over(store, stale)
    assert store.leases.renew([lease(stale)]).lost
    let_leases_end(store)
    assert [reaped.id for reaped in store.leases.reap(10, AT_ONCE, MAX_CRASHES)] == [fresh.id]


@committing
@locks_rows
@pytest.mark.parametrize("ending", DEFERRED)
def test_the_outcome_of_a_locked_job_is_stored_and_applied_when_it_is_free(store, ending):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    elsewhere(lambda store: store.deferred.defer([EndedAttempt(ending, DEFERRED[ending](job))]))
    elsewhere(lambda store: store.deferred.apply(10, 0, Effects()))
    let_leases_end(store)
    holder.go_on()
    holder.result()
    assert store.leases.reap(10, AT_ONCE, MAX_CRASHES) == []  # It does not run again.
    effects = Effects()
    store.deferred.apply(10, 0, effects)
    status = {"completed": "completed", "failed": "failed"}.get(ending, "pending")
    assert (statuses(job), len(history())) == ([status], ending in ("rescheduled", "failed"))
    assert bool(effects.finished_chains) == (status != "pending")
    assert not DeferredWrite.objects.exists()


def test_a_stored_outcome_keeps_the_continuation_as_it_was(store):
    (blocker,) = create(store)
    job = running_job(store)
    step = next_job(job, input='{"a": [1, null]}', priority=3, delay_seconds=30.0, blockers=(blocker,))
    store.deferred.defer([EndedAttempt("completed", finished(job, None, step))])
    store.deferred.apply(10, 0, Effects())
    saved = Job.objects.get(id=step.id)
    assert (saved.chain_id, saved.chain_index, saved.input) == (job.chain_id, 1, {"a": [1, None]})
    assert (saved.priority, saved.status, saved.type_name) == (3, "blocked", step.type_name)


def test_a_stored_outcome_of_a_stale_attempt_changes_nothing(store):
    stale = running_job(store)
    store.deferred.defer([EndedAttempt("completed", finished(stale))])
    store.attempts.hand_back([stale.key])
    fresh = claim(store)[0]
    before = tables()
    store.deferred.apply(10, 0, Effects())
    assert tables() == before
    assert not store.leases.check([fresh.key]).lost


@committing
@locks_rows
def test_a_running_job_that_is_locked_is_cancelled_without_waiting(store):
    job, effects = running_job(store), Effects()
    holder = holding(lambda store: store.attempts.lock(job.id))
    assert elsewhere(lambda store: store.chains.cancel([job.chain_id], effects)) == {job.chain_id}
    assert effects.stopped_jobs == {job.id}
    assert elsewhere(lambda store: store.leases.check([job.key])).cancelled == {job.key}
    assert elsewhere(lambda store: store.leases.renew([lease(job)])).cancelled == {job.key}
    elsewhere(lambda store: store.deferred.apply(10, 0, Effects()))
    holder.go_on()
    holder.result()
    store.deferred.apply(10, 0, Effects())
    assert stored(job).cancel_requested_at is not None
    assert store.attempts.hand_back([job.key]) == {job.key}
    assert statuses(job) == ["cancelled"]


@committing
@locks_rows
def test_a_chain_that_is_retried_is_not_cancelled_by_an_earlier_request(store):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    elsewhere(lambda store: store.chains.cancel([job.chain_id], Effects()))
    holder.go_on()
    holder.result()
    store.attempts.hand_back([job.key])
    assert statuses(job) == ["cancelled"]
    assert store.chains.retry([job.id], Effects()) == {job.id}
    store.deferred.apply(10, 0, Effects())
    assert statuses(job) == ["pending"]


@committing
@locks_rows
@ends
def test_an_attempt_that_was_asked_to_stop_while_it_was_locked_ends_cancelled(store, end):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    elsewhere(lambda store: store.chains.cancel([job.chain_id], Effects()))
    holder.go_on()
    holder.result()
    assert end(store, [job])
    last = Job.objects.filter(chain_id=job.chain_id).order_by("-chain_index")[0]
    is_completed = end in (ENDS["finish"], ENDS["finish_locked"])
    assert last.status == ("completed" if is_completed else "cancelled")
    store.deferred.apply(10, 0, Effects())  # There is nothing left to do.
    assert not DeferredWrite.objects.exists()
