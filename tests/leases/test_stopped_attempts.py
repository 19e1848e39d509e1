"""Attempts of cancelled jobs are asked to stop, and hints about lost leases are checked with one query."""

import pytest

from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob, Effects
from tests.leases.observed_store import RENEW_AT, hold
from tests.support.jobs import alter, running, running_job, stored, tables, taken_over

pytestmark = pytest.mark.django_db


def cancel(store: Store, job: ClaimedJob) -> None:
    assert store.chains.cancel([job.chain_id], Effects()) == {job.chain_id}


def test_renewal_aborts_the_attempt_of_a_cancelled_job_and_keeps_its_lease(store, held, clock):
    job, other = running(store, 2)
    signal, untouched = hold(held, job, clock), hold(held, other, clock)
    cancel(store, job)
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert (signal.reason, untouched.aborted) == ("cancelled", False)
    assert held.holds(job.id)


def test_lease_is_renewed_until_the_attempt_has_stopped(store, held, observed, clock):
    job = running_job(store)
    hold(held, job, clock)
    cancel(store, job)
    for _ in range(3):
        clock.forward(RENEW_AT)
        assert held.renew_due() == {}
    assert observed.renewed == [job.key] * 3
    assert held.abort_overdue() == {}


def test_check_aborts_the_attempt_of_a_cancelled_job(store, held, clock):
    job = running_job(store)
    signal = hold(held, job, clock)
    cancel(store, job)
    assert held.check() == {}
    assert signal.reason == "cancelled"
    assert held.holds(job.id)


def test_check_aborts_attempts_with_lost_leases_before_the_next_renewal(store, held, clock):
    taken, completed, kept = running(store, 3)
    signals = [hold(held, job, clock) for job in (taken, completed, kept)]
    taken_over(store, taken)
    alter([completed], status="completed")
    assert held.check() == {taken.key: "taken_by_another_worker", completed.key: "already_completed"}
    assert [signal.reason for signal in signals] == ["taken_by_another_worker", "already_completed", None]
    assert held.held() == [kept.key]


def test_check_is_one_query_that_changes_nothing(store, held, clock, django_assert_num_queries):
    jobs = running(store, 20)
    signals = [hold(held, job, clock) for job in jobs]
    before = tables()
    with django_assert_num_queries(1):
        assert held.check() == {}
    assert tables() == before
    assert not any(signal.aborted for signal in signals)


def test_check_does_not_postpone_the_renewal(store, held, observed, clock):
    job = running_job(store)
    hold(held, job, clock)
    clock.forward(RENEW_AT)
    held.check()
    held.renew_due()
    assert observed.renewed == [job.key]


def test_check_without_leases_sends_no_statement(held, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert held.check() == {}


def test_aborted_attempt_keeps_its_first_reason(store, held, clock):
    job = running_job(store)
    signal = hold(held, job, clock)
    held.abort_all("worker_stopping")
    cancel(store, job)
    held.check()
    assert signal.reason == "worker_stopping"
    assert stored(job).status == "running"


def test_worker_holds_only_the_leases_it_added(store, held, clock):
    own, foreign = running(store, 2)
    hold(held, own, clock)
    assert held.holds(own.id)
    assert not held.holds(foreign.id)
    held.release([own.key])
    assert not held.holds(own.id)


def test_detached_attempt_is_not_aborted(store, held, clock):
    """The worker has already written the attempt's outcome, so the lost lease does not matter."""
    [job] = running(store, 1)
    signal = hold(held, job, clock)
    assert signal.detach()
    taken_over(store, job)
    assert held.check() == {}
    assert not signal.aborted
