"""Prolonging leases, and telling which of them are lost, and why."""

from datetime import timedelta

import pytest

from django_jobchains.ids import new_id
from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.store import Effects, HeldLease, Renewal, Store
from tests.store.connections import committing, holding
from tests.store.jobs import (
    claim,
    create,
    database_now,
    expire,
    failed_try,
    finished,
    lease,
    lost,
    row,
    running,
    running_job,
    stored,
    tables,
    taken_over,
)

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("count", [1, 2, 50])
def test_renew_prolongs_leases_from_now_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    expire(*jobs, ago=-5)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.renew([lease(job, 100 + number) for number, job in enumerate(jobs)]) == lost({})
    for number, job in enumerate(jobs):
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        seconds = timedelta(seconds=100 + number)
        assert start + seconds <= changed.pop("leased_until") <= database_now() + seconds
        assert changed == {}


def test_other_leases_are_not_prolonged(store: Store) -> None:
    job, other = running(store, 2)
    before = row(other)
    store.renew([lease(job, 500)])
    assert row(other) == before


def test_a_lease_that_ran_out_and_was_not_taken_is_renewed(store: Store) -> None:
    job = running_job(store)
    expire(job)
    assert store.renew([lease(job)]) == lost({})
    assert store.reap(10, Backoff(), 10) == []


def test_a_renewed_lease_is_not_reaped(store: Store) -> None:
    renewed, other = running(store, 2)
    expire(renewed, other)
    store.renew([lease(renewed)])
    assert [job.id for job in store.reap(10, Backoff(), 10)] == [other.id]


def test_a_lease_may_be_shortened(store: Store) -> None:
    job = running_job(store)
    store.renew([lease(job, 0.5)])
    assert stored(job).leased_until < database_now() + timedelta(seconds=1)


def test_a_job_claimed_again_was_taken_by_another_worker(store: Store) -> None:
    stale = running_job(store)
    taken_over(store, stale)
    before = tables()
    assert store.renew([lease(stale)]) == lost({stale.key: "taken_by_another_worker"})
    assert tables() == before


def test_a_job_taken_back_and_pending_was_taken(store: Store) -> None:
    job = running_job(store)
    expire(job)
    store.reap(10, Backoff(), 10)
    assert store.renew([lease(job)]) == lost({job.key: "taken_by_another_worker"})


def test_a_completed_job_was_already_completed(store: Store) -> None:
    job = running_job(store)
    store.finish([finished(job)])
    assert store.renew([lease(job)]) == lost({job.key: "already_completed"})


def test_a_job_completed_by_a_later_attempt_was_already_completed(store: Store) -> None:
    stale = running_job(store)
    store.finish([finished(taken_over(store, stale))])
    assert store.renew([lease(stale)]) == lost({stale.key: "already_completed"})


def test_a_cancelled_job_was_cancelled(store: Store) -> None:
    job = running_job(store)
    Job.objects.filter(pk=job.id).update(status="cancelled", leased_by=None, leased_until=None)
    assert store.renew([lease(job)]) == lost({job.key: "cancelled"})


def test_a_deleted_job_is_not_found(store: Store) -> None:
    job = running_job(store)
    Job.objects.filter(pk=job.id).delete()
    unknown = HeldLease(new_id(), 1, 60)
    assert store.renew([lease(job), unknown]) == lost({job.key: "not_found", unknown.key: "not_found"})


def test_each_lost_lease_has_its_own_reason_and_the_others_are_renewed(store: Store) -> None:
    kept, taken, completed, cancelled, deleted, failed = running(store, 6)
    taken_over(store, taken)
    store.finish([finished(completed)])
    store.fail([failed_try(failed)])
    Job.objects.filter(pk=cancelled.id).update(status="cancelled")
    Job.objects.filter(pk=deleted.id).delete()
    expire(kept)
    assert store.renew([lease(job) for job in (taken, completed, kept, cancelled, deleted, failed)]) == lost(
        {
            taken.key: "taken_by_another_worker",
            completed.key: "already_completed",
            cancelled.key: "cancelled",
            deleted.key: "not_found",
            failed.key: "taken_by_another_worker",
        }
    )
    assert stored(kept).leased_until > database_now()


def test_a_thousand_leases_are_renewed_in_one_call(store: Store) -> None:
    jobs = running(store, 1_000)
    expire(*jobs)
    stale = jobs[::100]
    for job in stale:
        Job.objects.filter(pk=job.id).update(lease_number=7)
    assert store.renew([lease(job) for job in jobs]) == lost({job.key: "taken_by_another_worker" for job in stale})
    assert Job.objects.filter(leased_until__gt=database_now()).count() == 990


@pytest.mark.parametrize("turned", [False, True], ids=["stale_first", "fresh_first"])
def test_a_stale_lease_beside_the_fresh_one_of_its_job_is_lost_alone(store: Store, turned: bool) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    expire(fresh)
    batch = [lease(stale, 500), lease(fresh)]
    renewal = store.renew(batch[::-1] if turned else batch)
    assert renewal == lost({stale.key: "taken_by_another_worker"})
    assert database_now() < stored(fresh).leased_until < database_now() + timedelta(seconds=70)


@pytest.mark.postgresql
@committing
def test_a_row_that_a_transaction_has_locked_is_not_lost_and_not_waited_for(store: Store) -> None:
    completing, other = running(store, 2)
    expire(completing, other)
    before = row(completing)
    attempt = holding(lambda store: store.lock(completing.id))
    assert store.renew([lease(completing), lease(other)]) == lost({})
    assert row(completing) == before
    assert stored(other).leased_until > database_now()
    attempt.result()


@pytest.mark.postgresql
@committing
def test_a_row_that_is_just_being_completed_is_not_lost_before_that_is_committed(store: Store) -> None:
    job = running_job(store)
    attempt = holding(lambda store: store.finish([finished(job)]))
    assert store.renew([lease(job)]) == lost({})
    attempt.result()
    assert store.renew([lease(job)]) == lost({job.key: "already_completed"})


def test_a_lease_of_a_job_that_is_blocked_again_is_lost(store: Store) -> None:
    [job_id] = create(store)
    [job] = claim(store)
    Job.objects.filter(pk=job_id).update(status="blocked")
    assert store.renew([lease(job)]) == lost({job.key: "taken_by_another_worker"})


both = pytest.mark.parametrize("name", ["renew", "check"])


@both
def test_attempts_asked_to_stop_are_told_and_keep_their_leases(store: Store, name: str) -> None:
    stopped, other = running(store, 2)
    store.cancel([stopped.chain_id], Effects())
    renewal = getattr(store, name)([lease(stopped), lease(other)])
    assert renewal == Renewal({}, {stopped.key})
    assert stored(stopped).status == "running"
    assert store.finish([finished(stopped)]) == {stopped.key}


@both
def test_a_stale_attempt_of_a_job_that_was_asked_to_stop_is_lost_and_not_told_to_stop(store: Store, name: str) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    store.cancel([fresh.chain_id], Effects())
    renewal = getattr(store, name)([lease(stale), lease(fresh)])
    assert renewal == Renewal({stale.key: "taken_by_another_worker"}, {fresh.key})


@both
def test_an_attempt_that_was_cancelled_is_lost_as_cancelled(store: Store, name: str) -> None:
    job = running_job(store)
    store.cancel([job.chain_id], Effects())
    assert store.reschedule([failed_try(job)]) == {job.key: "cancelled"}
    assert getattr(store, name)([lease(job)]) == lost({job.key: "cancelled"})


def test_a_check_tells_the_same_reasons_and_prolongs_nothing(store: Store) -> None:
    kept, taken, completed, deleted = running(store, 4)
    taken_over(store, taken)
    store.finish([finished(completed)])
    Job.objects.filter(pk=deleted.id).delete()
    before = tables()
    assert store.check([lease(job, 500) for job in (kept, taken, completed, deleted)]) == lost(
        {taken.key: "taken_by_another_worker", completed.key: "already_completed", deleted.key: "not_found"}
    )
    assert tables() == before


@pytest.mark.postgresql
@committing
def test_an_attempt_that_has_locked_its_row_is_told_to_stop_too(store: Store) -> None:
    job = running_job(store)
    store.cancel([job.chain_id], Effects())
    attempt = holding(lambda store: store.lock(job.id))
    assert store.renew([lease(job)]) == Renewal({}, {job.key})
    attempt.result()
