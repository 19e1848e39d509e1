"""Attempts that were asked to stop, and leases that are looked at because somebody says that one was lost."""

import pytest
from pytest_django import DjangoAssertNumQueries

from django_jobchains.leases import HeldLeases
from django_jobchains.store import ClaimedJob, Effects, Store
from tests.leases.clock import RENEW_AT, Clock, Watched, hold
from tests.store.jobs import finished, running, running_job, stored, tables, taken_over

pytestmark = pytest.mark.django_db


def cancel(store: Store, job: ClaimedJob) -> None:
    assert store.cancel([job.chain_id], Effects()) == {job.chain_id}


def test_a_renewal_tells_an_attempt_to_stop_and_keeps_its_lease(store: Store, held: HeldLeases, clock: Clock) -> None:
    job, other = running(store, 2)
    signal, untouched = hold(held, job, clock), hold(held, other, clock)
    cancel(store, job)
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert (signal.reason, untouched.aborted) == ("cancelled", False)
    assert held.holds(job.id)


def test_a_lease_is_renewed_for_as_long_as_its_attempt_takes_to_stop(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    job = running_job(store)
    hold(held, job, clock)
    cancel(store, job)
    for _ in range(3):
        clock.forward(RENEW_AT)
        assert held.renew_due() == {}
    assert watched.renewed == [job.key] * 3
    assert held.abort_overdue() == []


def test_a_check_tells_an_attempt_to_stop(store: Store, held: HeldLeases, clock: Clock) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    cancel(store, job)
    assert held.check() == {}
    assert signal.reason == "cancelled"
    assert held.holds(job.id)


def test_a_check_aborts_what_was_lost_before_any_renewal_is_due_and_lets_it_go(
    store: Store, held: HeldLeases, clock: Clock
) -> None:
    taken, completed, kept = running(store, 3)
    signals = [hold(held, job, clock) for job in (taken, completed, kept)]
    taken_over(store, taken)
    store.finish([finished(completed)])
    assert held.check() == {taken.key: "taken_by_another_worker", completed.key: "already_completed"}
    assert [signal.reason for signal in signals] == ["taken_by_another_worker", "already_completed", None]
    assert [lease.key for lease in held.held()] == [kept.key]


def test_a_forged_hint_costs_a_look_and_changes_nothing(
    store: Store, held: HeldLeases, clock: Clock, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    jobs = running(store, 20)
    signals = [hold(held, job, clock) for job in jobs]
    before = tables()
    with django_assert_num_queries(1):
        assert held.check() == {}
    assert tables() == before
    assert not any(signal.aborted for signal in signals)


def test_a_check_does_not_put_a_renewal_off(store: Store, held: HeldLeases, watched: Watched, clock: Clock) -> None:
    job = running_job(store)
    hold(held, job, clock)
    clock.forward(RENEW_AT)
    held.check()
    held.renew_due()
    assert watched.renewed == [job.key]


def test_a_check_of_nothing_needs_no_statement(
    held: HeldLeases, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0):
        assert held.check() == {}


def test_an_attempt_that_was_aborted_for_another_reason_keeps_the_first(
    store: Store, held: HeldLeases, clock: Clock
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    held.abort_all("worker_stopping")
    cancel(store, job)
    held.check()
    assert signal.reason == "worker_stopping"
    assert stored(job).status == "running"


def test_only_jobs_of_this_worker_are_held(store: Store, held: HeldLeases, clock: Clock) -> None:
    own, foreign = running(store, 2)
    hold(held, own, clock)
    assert held.holds(own.id)
    assert not held.holds(foreign.id)
    held.let_go([own])
    assert not held.holds(own.id)


def test_an_attempt_that_was_written_off_lost_no_lease(store: Store, held: HeldLeases, clock: Clock) -> None:
    """Its outcome was written in its stead: what is seen is its own end."""
    [job] = running(store, 1)
    signal = hold(held, job, clock)
    assert signal.disown()
    taken_over(store, job)
    assert held.check() == {}
    assert not signal.aborted
