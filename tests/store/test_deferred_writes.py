"""What is deferred because of a lock waits for no other lock, keeps nothing else waiting, and leaves nothing behind."""

from typing import Any

import pytest
from django.db import IntegrityError

from django_jobchains.models import DeferredWrite, FailedAttempt
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Effects, EndedAttempt, Store
from django_jobchains.store.postgresql import PostgreSQLStore
from tests.store.connections import Actor, committing, holding
from tests.store.jobs import claim, create, expire, failed_try, finished, lease, lost, running, running_job, stored

pytestmark = [committing, pytest.mark.postgresql]


def lock(job: ClaimedJob) -> Actor:
    return holding(lambda store: store.lock(job.id))


def defer_cancelling(store: Store, job: ClaimedJob) -> Actor:
    """A request to cancel that was deferred; returns who still has the job locked."""
    locking = lock(job)
    assert store.cancel([job.chain_id], Effects()) == {job.chain_id}
    assert DeferredWrite.objects.filter(kind="cancel").count() == 1
    return locking


def apply(store: Store, after: int = 0, limit: int = 10) -> int | None:
    with store.waits_at_most(0.02):
        return store.apply_deferred(limit, after, Effects())


def test_renewals_do_not_wait_for_a_chain_that_is_being_deleted(store: Store) -> None:
    job, other = running(store, 2)
    locking = lock(job)
    store.renew([lease(job)])
    locking.result()
    deleting = holding(lambda store: store.delete([job.chain_id], cascade=False, effects=Effects()))
    expire(other)
    assert store.renew([lease(job), lease(other)]) == lost({})
    deleting.result()
    assert store.renew([lease(job)]) == lost({job.key: "not_found"})


def test_a_request_to_cancel_does_not_wait_for_another_one(store: Store) -> None:
    job = running_job(store)
    locking = lock(job)
    first = holding(lambda store: store.cancel([job.chain_id], Effects()))
    assert store.cancel([job.chain_id], Effects()) == {job.chain_id}
    first.result()
    locking.result()
    assert store.reschedule([failed_try(job)]) == {job.key: "cancelled"}
    apply(store)
    assert not DeferredWrite.objects.exists()


def test_a_request_whose_chain_is_locked_keeps_no_other_waiting(store: Store) -> None:
    """Also when its job no longer runs."""
    stuck, free = running(store, 2)
    defer_cancelling(store, stuck).result()
    store.hand_back([lease(stuck)])
    store.defer([EndedAttempt("completed", finished(free))])
    locking = lock(stuck)
    apply(store)
    assert stored(free).status == "completed"
    assert [row.kind for row in DeferredWrite.objects.all()] == ["cancel"]
    locking.result()
    apply(store)
    assert not DeferredWrite.objects.exists()


def test_requests_that_someone_is_deleting_are_skipped(store: Store) -> None:
    job = running_job(store)
    defer_cancelling(store, job).result()
    store.hand_back([lease(job)])
    retrying = holding(lambda store: store.retry([job.chain_id], Effects()))
    apply(store)
    retrying.result()
    apply(store)
    assert stored(job).status == "pending"


def test_an_outcome_that_cannot_be_written_keeps_no_other_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = running(store, 2)
    store.defer([EndedAttempt("completed", finished(job)) for job in (bad, good)])
    finish = PostgreSQLStore.finish

    def refuse(store: PostgreSQLStore, jobs: Any, *args: Any, **options: Any) -> Any:
        if jobs[0].job_id == bad.id:
            raise IntegrityError("no")
        return finish(store, jobs, *args, **options)

    monkeypatch.setattr(PostgreSQLStore, "finish", refuse)
    apply(store)
    assert (stored(bad).status, stored(good).status) == ("pending", "completed")
    assert [(failed.job_id, failed.error) for failed in FailedAttempt.objects.all()] == [(bad.id, "IntegrityError: no")]
    assert not DeferredWrite.objects.exists()


def test_outcomes_behind_many_that_are_locked_are_reached(store: Store) -> None:
    *many, last = running(store, 4)
    store.defer([EndedAttempt("completed", finished(job)) for job in (*many, last)])
    locking = holding(lambda store: store.lock_all([job.id for job in many]))
    after: int | None = 0
    for _ in range(2):
        assert after is not None
        after = apply(store, after, limit=3)
    assert after is None
    assert [stored(job).status for job in (*many, last)] == ["running"] * 3 + ["completed"]
    locking.result()
    apply(store)
    assert {stored(job).status for job in many} == {"completed"}


def test_prolonged_leases_leave_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = running_job(store)
    locking = lock(job)
    store.renew([lease(job)])
    store.renew([lease(job)])
    locking.result()
    assert DeferredWrite.objects.count() == 2
    store.finish([finished(job)])
    monkeypatch.setattr(store, "ahead_seconds", 61)
    apply(store)
    assert not DeferredWrite.objects.exists()


def test_a_failure_is_not_recorded_of_an_attempt_that_someone_else_ends_meanwhile(store: Store) -> None:
    """Its row is read as it is when it is locked, not as it was when the statement began."""
    job = running_job(store)
    person = holding(lambda store: store.complete(store.lock_tails([job.chain_id])[job.chain_id], "1", None, Effects()))
    failing = Actor(lambda store: store.fail([failed_try(job)])).start().until_blocked_or_ended()
    person.result()
    failing.result()
    store.fail([failed_try(job)])
    assert not FailedAttempt.objects.exists()
    assert stored(job).status == "completed"


def test_the_reaper_goes_on_beside_requests_that_are_locked(store: Store) -> None:
    stuck, dead = running(store, 2)
    locking = defer_cancelling(store, stuck)
    expire(dead)
    apply(store)
    assert [reaped.id for reaped in store.reap(10, Backoff(), 10)] == [dead.id]
    locking.result()
    apply(store)
    assert stored(stuck).cancel_requested_at is not None
    assert create(store)
    assert len(claim(store)) == 1
