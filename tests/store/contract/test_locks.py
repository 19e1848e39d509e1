"""Locked jobs do not delay others, and writes to them are applied later."""

import pytest
from django.db import IntegrityError

from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import JobLocked
from django_jobchains.models import DeferredWrite, FailedAttempt, Job
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.chains import Chains
from django_jobchains.store.rows import Effects, EndedAttempt
from tests.store.conftest import with_locks
from tests.store.contract.ends import ENDS, ends
from tests.support.connections import Actor, elsewhere, holding
from tests.support.jobs import (
    AT_ONCE,
    LEASE_SECONDS,
    MAX_CRASHES,
    claim,
    create,
    expire,
    failed_try,
    finished,
    history,
    lease,
    let_leases_end,
    lost,
    new_job,
    next_job,
    running,
    running_job,
    statuses,
    stored,
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


@with_locks
@pytest.mark.parametrize("end", UNLOCKED_ENDS.values(), ids=UNLOCKED_ENDS)
def test_a_locked_job_does_not_delay_other_ends_of_the_same_call(store, end):
    jobs = running(store, 3)
    holding(lambda store: store.attempts.lock(jobs[1].id))
    ended = elsewhere(lambda store: end(store, jobs))
    assert set(ended) == {jobs[0].key, jobs[2].key}
    assert statuses(jobs[1]) == ["running"]
    assert not elsewhere(lambda store: store.leases.check([jobs[1].key])).lost


@with_locks
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


@with_locks
def test_the_lease_of_a_locked_job_is_prolonged(store):
    """Otherwise, it would be reaped as soon as the lock is released."""
    locked, free = running(store, 2)
    holder = holding(lambda store: store.attempts.lock(locked.id))
    store.db.ahead_seconds = LEASE_SECONDS / 2
    renewal = elsewhere(lambda store: store.leases.renew([lease(locked), lease(free)]))
    assert (renewal.lost, renewal.cancelled) == ({}, set())
    holder.result()
    store.db.ahead_seconds = LEASE_SECONDS * 1.25
    assert store.leases.reap(10, AT_ONCE, MAX_CRASHES) == []
    store.deferred.apply(10, 0, Effects())
    assert DeferredWrite.objects.count() == 1
    store.db.ahead_seconds = LEASE_SECONDS * 2
    assert {reaped.id for reaped in store.leases.reap(10, AT_ONCE, MAX_CRASHES)} == {locked.id, free.id}
    store.deferred.apply(10, 0, Effects())
    assert not DeferredWrite.objects.exists()


@with_locks
@pytest.mark.parametrize("ending", DEFERRED)
def test_the_outcome_of_a_locked_job_is_stored_and_applied_when_it_is_free(store, ending):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    elsewhere(lambda store: store.deferred.defer([EndedAttempt(ending, DEFERRED[ending](job))]))
    elsewhere(lambda store: store.deferred.apply(10, 0, Effects()))
    let_leases_end(store)
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


@with_locks
def test_a_running_job_that_is_locked_is_cancelled_without_waiting(store):
    job, effects = running_job(store), Effects()
    holder = holding(lambda store: store.attempts.lock(job.id))
    assert elsewhere(lambda store: store.chains.cancel([job.chain_id], effects)) == {job.chain_id}
    assert effects.stopped_jobs == {job.id}
    assert elsewhere(lambda store: store.leases.check([job.key])).cancelled == {job.key}
    assert elsewhere(lambda store: store.leases.renew([lease(job)])).cancelled == {job.key}
    elsewhere(lambda store: store.deferred.apply(10, 0, Effects()))
    holder.result()
    store.deferred.apply(10, 0, Effects())
    assert stored(job).cancel_requested_at is not None
    assert store.attempts.hand_back([job.key]) == {job.key}
    assert statuses(job) == ["cancelled"]


@with_locks
def test_a_chain_that_is_retried_is_not_cancelled_by_an_earlier_request(store):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    elsewhere(lambda store: store.chains.cancel([job.chain_id], Effects()))
    holder.result()
    store.attempts.hand_back([job.key])
    assert statuses(job) == ["cancelled"]
    assert store.chains.retry([job.id], Effects()) == {job.id}
    store.deferred.apply(10, 0, Effects())
    assert statuses(job) == ["pending"]


@with_locks
@ends
def test_an_attempt_that_was_asked_to_stop_while_it_was_locked_ends_cancelled(store, end):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    elsewhere(lambda store: store.chains.cancel([job.chain_id], Effects()))
    holder.result()
    assert end(store, [job])
    last = Job.objects.filter(chain_id=job.chain_id).order_by("-chain_index")[0]
    is_completed = end in (ENDS["finish"], ENDS["finish_locked"])
    assert last.status == ("completed" if is_completed else "cancelled")
    store.deferred.apply(10, 0, Effects())  # There is nothing left to do.
    assert not DeferredWrite.objects.exists()


# Deferred writes wait for no other lock, delay nothing else, and leave no rows behind


def lock(job):
    return holding(lambda store: store.attempts.lock(job.id))


def defer_cancelling(store, job):
    """Request a cancellation that is deferred, and return the actor that has locked the job."""
    locking = lock(job)
    assert store.chains.cancel([job.chain_id], Effects()) == {job.chain_id}
    assert DeferredWrite.objects.filter(kind="cancel").count() == 1
    return locking


def apply(store, after=0, limit=10, effects=None):
    with store.db.waits_at_most(0.02):
        return store.deferred.apply(limit, after, Effects() if effects is None else effects)


@with_locks
def test_renewals_do_not_wait_for_a_chain_that_is_being_deleted(store):
    job, other = running(store, 2)
    locking = lock(job)
    store.leases.renew([lease(job)])
    locking.result()
    deleting = holding(lambda store: store.chains.delete([job.chain_id], cascade=False, effects=Effects()))
    expire(other)
    assert store.leases.renew([lease(job), lease(other)]) == lost({})
    deleting.result()
    assert store.leases.renew([lease(job)]) == lost({job.key: "not_found"})


@with_locks
def test_only_the_locked_one_of_several_chains_is_cancelled_later(store):
    job, other = running(store, 2)
    [waits] = create(store, delay_seconds=60)
    locking = lock(job)
    chain_ids = {job.chain_id, other.chain_id, waits}
    assert store.chains.cancel(chain_ids, Effects()) == chain_ids
    assert list(DeferredWrite.objects.values_list("kind", "job_id")) == [("cancel", job.chain_id)]
    assert stored(other).cancel_requested_at is not None
    assert stored(waits).status == "cancelled"
    locking.result()


@with_locks
def test_request_to_cancel_does_not_wait_for_another_one(store):
    job = running_job(store)
    locking = lock(job)
    first = holding(lambda store: store.chains.cancel([job.chain_id], Effects()))
    assert store.chains.cancel([job.chain_id], Effects()) == {job.chain_id}
    first.result()
    locking.result()
    assert store.attempts.reschedule([failed_try(job)]) == {job.key: "cancelled"}
    apply(store)
    assert not DeferredWrite.objects.exists()


@with_locks
def test_request_whose_chain_is_locked_does_not_delay_others(store):
    """The job may no longer run."""
    stuck, free = running(store, 2)
    defer_cancelling(store, stuck).result()
    store.attempts.hand_back([stuck.key])
    store.deferred.defer([EndedAttempt("completed", finished(free))])
    locking = lock(stuck)
    apply(store)
    assert stored(free).status == "completed"
    assert [row.kind for row in DeferredWrite.objects.all()] == ["cancel"]
    locking.result()
    apply(store)
    assert not DeferredWrite.objects.exists()


@with_locks
def test_requests_that_are_being_deleted_are_skipped(store):
    job = running_job(store)
    defer_cancelling(store, job).result()
    store.attempts.hand_back([job.key])
    retrying = holding(lambda store: store.chains.retry([job.chain_id], Effects()))
    apply(store)
    retrying.result()
    apply(store)
    assert stored(job).status == "pending"


@with_locks
def test_request_that_cannot_be_written_is_dropped(store, monkeypatch):
    job = running_job(store)
    defer_cancelling(store, job).result()
    monkeypatch.setattr(Chains, "cancel_jobs", refuse)
    apply(store)
    assert (stored(job).status, FailedAttempt.objects.count()) == ("running", 0)
    assert not DeferredWrite.objects.exists()


@with_locks
def test_nothing_is_announced_of_a_request_that_is_rolled_back(store):
    """The chain ends, but a job that waits for it is locked."""
    [chain_id] = create(store)
    [waits] = create(store, blockers=(chain_id,), on_blocker_failure="fail")
    DeferredWrite.objects.create(kind="cancel", job_id=chain_id)
    locking = holding(lambda store: store.attempts.lock(waits))
    apply(store, effects=(effects := Effects()))
    assert (effects, statuses(chain_id, waits)) == (Effects(), ["pending", "blocked"])
    locking.result()
    apply(store, effects=effects)
    assert effects.finished_chains == {chain_id, waits}


@with_locks
@pytest.mark.parametrize("retry_seconds", [500.0, None])
def test_outcome_that_cannot_be_written_fails_after_its_wait_and_does_not_delay_others(
    store, monkeypatch, retry_seconds
):
    bad, good = running(store, 2)
    store.deferred.defer([EndedAttempt("completed", finished(job), retry_seconds) for job in (bad, good)])
    finish = Attempts.finish

    def refuse_bad(attempts, jobs, *args, **options):
        return (refuse if jobs[0].job_id == bad.id else finish)(attempts, jobs, *args, **options)

    monkeypatch.setattr(Attempts, "finish", refuse_bad)
    apply(store)
    after, failure = stored(bad), FailedAttempt.objects.get()
    assert (stored(good).status, failure.job_id, failure.error) == ("completed", bad.id, "IntegrityError: no")
    assert after.status == ("failed" if retry_seconds is None else "pending")
    if retry_seconds is not None:
        assert (after.run_at - failure.finished_at).total_seconds() == pytest.approx(retry_seconds, abs=5)
    assert not DeferredWrite.objects.exists()


def refuse(*args, **options):
    raise IntegrityError("no")


@with_locks
def test_outcomes_behind_many_that_are_locked_are_reached(store):
    *many, last = running(store, 4)
    store.deferred.defer([EndedAttempt("completed", finished(job)) for job in (*many, last)])
    locking = holding(lambda store: store.attempts.lock_all([job.id for job in many]))
    after = 0
    for _ in range(2):
        assert after is not None
        after = apply(store, after, limit=3)
    assert after is None
    assert [stored(job).status for job in (*many, last)] == ["running"] * 3 + ["completed"]
    locking.result()
    apply(store)
    assert {stored(job).status for job in many} == {"completed"}


@with_locks
def test_no_failure_is_recorded_for_an_attempt_that_ends_meanwhile(store):
    """The row is read when it is locked, and not when the statement began."""
    job = running_job(store)
    person = holding(
        lambda store: store.chains.complete(store.last_jobs.lock([job.chain_id])[job.chain_id], "1", None, Effects())
    )
    failing = Actor(lambda store: store.attempts.fail([failed_try(job)])).start().until_blocked_or_ended()
    person.result()
    failing.result()
    store.attempts.fail([failed_try(job)])
    assert not FailedAttempt.objects.exists()
    assert stored(job).status == "completed"


@with_locks
def test_reaper_skips_locked_requests(store):
    stuck, dead = running(store, 2)
    locking = defer_cancelling(store, stuck)
    expire(dead)
    apply(store)
    assert [reaped.id for reaped in store.leases.reap(10, Backoff(), 10)] == [dead.id]
    locking.result()
    apply(store)
    assert stored(stuck).cancel_requested_at is not None
    assert create(store)
    assert len(claim(store)) == 1
