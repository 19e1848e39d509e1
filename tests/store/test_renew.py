"""``renew`` extends leases, and returns which of them are lost and why."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Effects, Renewal, Store
from tests.support.connections import committing, holding
from tests.support.jobs import (
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


@pytest.mark.parametrize("count", [1, 3])
def test_renew_extends_leases_from_now_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    expire(*jobs, ago=-5)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.leases.renew([lease(job, 100 + number) for number, job in enumerate(jobs)]) == lost({})
    for number, job in enumerate(jobs):
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        seconds = timedelta(seconds=100 + number)
        assert start + seconds <= changed.pop("leased_until") <= database_now() + seconds
        assert changed == {}


def test_other_leases_are_not_extended(store: Store) -> None:
    job, other = running(store, 2)
    before = row(other)
    store.leases.renew([lease(job, 500)])
    assert row(other) == before


def test_expired_lease_is_renewed_if_its_job_was_not_reaped(store: Store) -> None:
    job = running_job(store)
    expire(job)
    assert store.leases.renew([lease(job)]) == lost({})
    assert store.leases.reap(10, Backoff(), 10) == []


def test_renewed_lease_is_not_reaped(store: Store) -> None:
    renewed, other = running(store, 2)
    expire(renewed, other)
    store.leases.renew([lease(renewed)])
    assert [job.id for job in store.leases.reap(10, Backoff(), 10)] == [other.id]


def test_lease_may_be_shortened(store: Store) -> None:
    job = running_job(store)
    store.leases.renew([lease(job, 0.5)])
    assert stored(job).leased_until < database_now() + timedelta(seconds=1)


def test_reason_is_already_completed_after_a_later_attempt_has_completed(store: Store) -> None:
    stale = running_job(store)
    store.attempts.finish([finished(taken_over(store, stale))])
    assert store.leases.renew([lease(stale)]) == lost({stale.key: "already_completed"})


def test_each_lost_lease_has_its_reason_and_the_others_are_renewed(store: Store) -> None:
    kept, taken, completed, cancelled, deleted, failed = running(store, 6)
    taken_over(store, taken)
    store.attempts.finish([finished(completed)])
    store.attempts.fail([failed_try(failed)])
    Job.objects.filter(pk=cancelled.id).update(status="cancelled")
    Job.objects.filter(pk=deleted.id).delete()
    expire(kept)
    assert store.leases.renew([lease(job) for job in (taken, completed, kept, cancelled, deleted, failed)]) == lost(
        {
            taken.key: "taken_by_another_worker",
            completed.key: "already_completed",
            cancelled.key: "cancelled",
            deleted.key: "not_found",
            failed.key: "taken_by_another_worker",
        },
        completed.key,
    )
    assert stored(kept).leased_until > database_now()


def test_one_thousand_leases_are_renewed_in_one_call(store: Store) -> None:
    jobs = running(store, 1_000)
    expire(*jobs)
    stale = jobs[::100]
    for job in stale:
        Job.objects.filter(pk=job.id).update(lease_number=7)
    assert store.leases.renew([lease(job) for job in jobs]) == lost(
        {job.key: "taken_by_another_worker" for job in stale}
    )
    assert Job.objects.filter(leased_until__gt=database_now()).count() == 990


@pytest.mark.parametrize("turned", [False, True], ids=["stale_first", "fresh_first"])
def test_stale_lease_is_lost_while_the_fresh_one_of_its_job_is_kept(store: Store, turned: bool) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    expire(fresh)
    batch = [lease(stale, 500), lease(fresh)]
    renewal = store.leases.renew(batch[::-1] if turned else batch)
    assert renewal == lost({stale.key: "taken_by_another_worker"})
    assert database_now() < stored(fresh).leased_until < database_now() + timedelta(seconds=70)


@pytest.mark.postgresql
@committing
def test_lease_is_not_lost_before_its_completion_is_committed(store: Store) -> None:
    job = running_job(store)
    attempt = holding(lambda store: store.attempts.finish([finished(job)]))
    assert store.leases.renew([lease(job)]) == lost({})
    attempt.result()
    assert store.leases.renew([lease(job)]) == lost({job.key: "already_completed"}, job.key)


def test_lease_of_a_job_that_is_blocked_again_is_lost(store: Store) -> None:
    [job_id] = create(store)
    [job] = claim(store)
    Job.objects.filter(pk=job_id).update(status="blocked")
    assert store.leases.renew([lease(job)]) == lost({job.key: "taken_by_another_worker"})


Query = Callable[[Store, Sequence[ClaimedJob]], Renewal]

QUERIES: dict[str, Query] = {
    "renew": lambda store, jobs: store.leases.renew([lease(job) for job in jobs]),
    "check": lambda store, jobs: store.leases.check([job.key for job in jobs]),
}
both = pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)


@both
def test_stale_attempt_of_a_job_that_was_asked_to_stop_is_lost(store: Store, query: Query) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    store.chains.cancel([fresh.chain_id], Effects())
    renewal = query(store, [stale, fresh])
    assert renewal == Renewal({stale.key: "taken_by_another_worker"}, {fresh.key})


@both
def test_lease_of_a_cancelled_attempt_is_lost_with_that_reason(store: Store, query: Query) -> None:
    job = running_job(store)
    store.chains.cancel([job.chain_id], Effects())
    assert store.attempts.reschedule([failed_try(job)]) == {job.key: "cancelled"}
    assert query(store, [job]) == lost({job.key: "cancelled"})


def test_check_returns_the_same_reasons_and_extends_nothing(store: Store) -> None:
    kept, taken, completed, deleted = running(store, 4)
    taken_over(store, taken)
    store.attempts.finish([finished(completed)])
    Job.objects.filter(pk=deleted.id).delete()
    before = tables()
    assert store.leases.check([job.key for job in (kept, taken, completed, deleted)]) == lost(
        {taken.key: "taken_by_another_worker", completed.key: "already_completed", deleted.key: "not_found"},
        completed.key,
    )
    assert tables() == before


@pytest.mark.postgresql
@committing
def test_attempt_that_has_locked_its_row_is_asked_to_stop(store: Store) -> None:
    job = running_job(store)
    store.chains.cancel([job.chain_id], Effects())
    attempt = holding(lambda store: store.attempts.lock(job.id))
    assert store.leases.renew([lease(job)]) == Renewal({}, {job.key})
    attempt.result()
