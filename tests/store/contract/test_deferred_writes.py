"""Writes to locked rows are deferred. They wait for no other lock, delay nothing else, and leave no rows behind."""

import pytest
from django.db import IntegrityError

from django_jobchains.declare.policies import Backoff
from django_jobchains.models import DeferredWrite, FailedAttempt
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.chains import Chains
from django_jobchains.store.rows import Effects, EndedAttempt
from tests.store.conftest import locks_rows
from tests.support.connections import Actor, committing, holding
from tests.support.jobs import claim, create, expire, failed_try, finished, lease, lost, running, running_job, stored

pytestmark = [committing, locks_rows]


def lock(job):
    return holding(lambda store: store.attempts.lock(job.id))


def defer_cancelling(store, job):
    """Request a cancellation that is deferred, and return the actor that has locked the job."""
    locking = lock(job)
    assert store.chains.cancel([job.chain_id], Effects()) == {job.chain_id}
    assert DeferredWrite.objects.filter(kind="cancel").count() == 1
    return locking


def apply(store, after=0, limit=10):
    with store.db.waits_at_most(0.02):
        return store.deferred.apply(limit, after, Effects())


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


def test_requests_that_are_being_deleted_are_skipped(store):
    job = running_job(store)
    defer_cancelling(store, job).result()
    store.attempts.hand_back([job.key])
    retrying = holding(lambda store: store.chains.retry([job.chain_id], Effects()))
    apply(store)
    retrying.result()
    apply(store)
    assert stored(job).status == "pending"


def test_request_that_cannot_be_written_is_dropped(store, monkeypatch):
    job = running_job(store)
    defer_cancelling(store, job).result()
    monkeypatch.setattr(Chains, "cancel_jobs", refuse)
    apply(store)
    assert (stored(job).status, FailedAttempt.objects.count()) == ("running", 0)
    assert not DeferredWrite.objects.exists()


def test_outcome_that_cannot_be_written_does_not_delay_others(store, monkeypatch):
    bad, good = running(store, 2)
    store.deferred.defer([EndedAttempt("completed", finished(job)) for job in (bad, good)])
    finish = Attempts.finish

    def refuse(attempts, jobs, *args, **options):
        if jobs[0].job_id == bad.id:
            raise IntegrityError("no")
        return finish(attempts, jobs, *args, **options)

    monkeypatch.setattr(Attempts, "finish", refuse)
    apply(store)
    assert (stored(bad).status, stored(good).status) == ("pending", "completed")
    assert [(failed.job_id, failed.error) for failed in FailedAttempt.objects.all()] == [(bad.id, "IntegrityError: no")]
    assert not DeferredWrite.objects.exists()


@pytest.mark.parametrize("retry_seconds", [500.0, None])
def test_stored_wait_applies_after_an_outcome_that_cannot_be_written(store, monkeypatch, retry_seconds):
    job = running_job(store)
    store.deferred.defer([EndedAttempt("completed", finished(job), retry_seconds)])
    monkeypatch.setattr(Attempts, "finish", refuse)
    apply(store)
    after = stored(job)
    assert after.status == ("failed" if retry_seconds is None else "pending")
    if retry_seconds is not None:
        wait = after.run_at - FailedAttempt.objects.get().finished_at
        assert wait.total_seconds() == pytest.approx(retry_seconds, abs=5)


def refuse(*args, **options):
    raise IntegrityError("no")


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


def test_renewed_leases_leave_no_rows_behind(store, monkeypatch):
    job = running_job(store)
    locking = lock(job)
    store.leases.renew([lease(job)])
    store.leases.renew([lease(job)])
    locking.result()
    assert DeferredWrite.objects.count() == 2
    store.attempts.finish([finished(job)])
    monkeypatch.setattr(store.db, "ahead_seconds", 61)
    apply(store)
    assert not DeferredWrite.objects.exists()


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
