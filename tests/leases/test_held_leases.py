"""A worker renews its leases after a third of their time, and aborts attempts shortly before their leases expire."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError

from tests.leases.observed_store import ABORT_AT, LEASE_SECONDS, RENEW_AT, hold
from tests.support.connections import committing, holding
from tests.support.jobs import database_now, running, running_job, stored

pytestmark = pytest.mark.django_db


def test_without_leases_no_statement_is_sent(held, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert held.renew_due() == {}
    assert held.abort_overdue() == {}
    assert held.held() == []
    assert len(held) == 0


def test_lease_is_renewed_after_a_third_of_its_time(store, held, observed, clock):
    job = running_job(store)
    signal = hold(held, job, clock)
    clock.forward(RENEW_AT - 0.1)
    held.renew_due()
    assert observed.renewed == []
    clock.forward(0.1)
    assert held.renew_due() == {}
    assert observed.renewed == [job.key]
    assert not signal.aborted


def test_renewal_prolongs_the_lease_in_the_database(store, held, clock):
    job = running_job(store)
    hold(held, job, clock, 500)
    clock.forward(200)
    held.renew_due()
    assert stored(job).leased_until - database_now() > timedelta(seconds=490)


def test_renewed_lease_is_renewed_again_after_another_third(store, held, observed, clock):
    hold(held, running_job(store), clock)
    for renewals in (1, 2, 3):
        clock.forward(RENEW_AT - 0.1)
        held.renew_due()
        assert len(observed.renewed) == renewals - 1
        clock.forward(0.1)
        held.renew_due()
        assert len(observed.renewed) == renewals


def test_time_of_a_lease_starts_before_its_claim(store, held, observed, clock):
    job = running_job(store)
    since = clock()
    clock.forward(RENEW_AT)  # the time that the claim took
    held.hold(job.key, LEASE_SECONDS, since, job.queue)
    held.renew_due()
    assert observed.renewed == [job.key]


def test_time_of_a_renewed_lease_starts_before_the_renewal(store, held, observed, clock):
    signal = hold(held, running_job(store), clock)
    clock.forward(RENEW_AT)
    observed.after = lambda: clock.forward(ABORT_AT - 1)
    held.renew_due()
    assert held.abort_overdue() == {}
    clock.forward(1)
    assert held.abort_overdue() != {}
    assert signal.reason == "error"


def test_all_due_leases_are_renewed_in_one_statement(store, held, clock, django_assert_num_queries):
    jobs = running(store, 50)
    for job in jobs:
        hold(held, job, clock)
    clock.forward(RENEW_AT)
    with django_assert_num_queries(1):
        assert held.renew_due() == {}


def test_leases_are_renewed_according_to_their_own_length(store, held, observed, clock):
    short, long = running(store, 2)
    hold(held, short, clock, 3)
    hold(held, long, clock, 300)
    clock.forward(1)
    held.renew_due()
    assert observed.renewed == [short.key]


def test_attempt_is_aborted_once_shortly_before_its_lease_expires_and_without_a_query(
    store, held, clock, django_assert_num_queries
):
    job = running_job(store)
    signal = hold(held, job, clock)
    with django_assert_num_queries(0):
        clock.forward(ABORT_AT - 0.1)
        assert held.abort_overdue() == {}
        assert not signal.aborted
        clock.forward(0.1)
        assert held.abort_overdue() == {job.key: "error"}
        assert held.abort_overdue() == {}
    assert signal.reason == "error"


def test_attempt_that_has_ended_is_not_aborted(store, held, clock):
    signal = hold(held, running_job(store), clock)
    signal.end()
    clock.forward(ABORT_AT)
    assert held.abort_overdue() == {}
    assert not signal.aborted


def test_renewal_postpones_the_abort(store, held, clock):
    signal = hold(held, running_job(store), clock)
    clock.forward(ABORT_AT - 0.1)
    held.renew_due()
    clock.forward(ABORT_AT - 0.1)
    assert held.abort_overdue() == {}
    assert not signal.aborted


def test_failed_renewal_does_not_postpone_the_abort(store, held, observed, clock):
    job = running_job(store)
    signal = hold(held, job, clock)

    def fail() -> None:
        raise OperationalError("the network is unreachable")

    observed.before = fail
    clock.forward(RENEW_AT)
    with pytest.raises(OperationalError):
        held.renew_due()
    assert not signal.aborted
    clock.forward(ABORT_AT - RENEW_AT)
    assert held.abort_overdue() == {job.key: "error"}
    assert signal.reason == "error"


def test_failed_renewal_is_repeated_at_once(store, held, observed, clock):
    job = running_job(store)
    hold(held, job, clock)
    clock.forward(RENEW_AT)
    observed.before = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        held.renew_due()
    observed.before = lambda: None
    held.renew_due()
    assert observed.renewed == [job.key]


def test_released_lease_is_neither_renewed_nor_aborted(store, held, observed, clock):
    job = running_job(store)
    signal = hold(held, job, clock)
    held.release([job.key])
    clock.forward(LEASE_SECONDS)
    assert held.renew_due() == {}
    assert held.abort_overdue() == {}
    assert (observed.renewed, signal.aborted, len(held)) == ([], False, 0)


def test_releasing_a_lease_that_is_not_held_does_nothing(store, held):
    held.release([running_job(store).key])
    assert len(held) == 0


def test_abort_all_aborts_every_attempt_with_the_reason_and_keeps_the_leases(store, held, clock):
    signals = [hold(held, job, clock) for job in running(store, 3)]
    held.abort_all("worker_stopping")
    assert {signal.reason for signal in signals} == {"worker_stopping"}
    assert len(held) == 3


def test_lease_of_an_aborted_attempt_is_still_renewed(store, held, observed, clock):
    job = running_job(store)
    signal = hold(held, job, clock)
    held.abort_all("worker_stopping")
    clock.forward(RENEW_AT)
    held.renew_due()
    assert observed.renewed == [job.key]
    assert signal.reason == "worker_stopping"


def test_leases_can_be_added_and_released_during_a_renewal(store, held, observed, clock):
    first, second = running(store, 2)
    hold(held, first, clock)
    changed = threading.Event()

    def other_thread() -> None:
        held.hold(second.key, LEASE_SECONDS, clock(), second.queue)
        held.release([first.key])
        changed.set()

    def meanwhile() -> None:
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert changed.wait(10), "The renewal blocks other threads."
        thread.join(10)

    observed.before = meanwhile
    clock.forward(RENEW_AT)
    held.renew_due()
    assert held.held() == [second.key]


@committing
@pytest.mark.postgresql
def test_attempt_whose_row_is_locked_by_another_transaction_continues(store, held, clock):
    job = running_job(store)
    signal = hold(held, job, clock)
    locking = holding(lambda store: store.attempts.lock(job.id))
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    clock.forward(ABORT_AT - RENEW_AT)
    assert held.abort_overdue() == {}
    assert not signal.aborted
    locking.result()
