"""A worker renews its leases after a third of their time, and aborts attempts shortly before their leases expire."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError

from tests.support.connections import committing, holding
from tests.support.jobs import database_now, running, running_job, stored

pytestmark = pytest.mark.django_db

#: The times of a lease of 30 seconds.
RENEW_AT, ABORT_AT = 10, 27


def test_without_leases_no_statement_is_sent(held, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert held.renew_due() == held.check() == held.abort_overdue() == {}
    assert held.held() == []
    assert len(held) == 0


def test_lease_is_renewed_after_each_third_of_its_time(store, held, hold, observed, clock):
    job = running_job(store)
    signal = hold(job)
    for renewals in (1, 2, 3):
        clock.forward(RENEW_AT - 0.1)
        held.renew_due()
        assert observed.renewed == [job.key] * (renewals - 1)
        clock.forward(0.1)
        assert held.renew_due() == {}
        assert observed.renewed == [job.key] * renewals
    assert not signal.aborted


def test_leases_are_renewed_according_to_their_own_length(store, held, hold, observed, clock):
    short, long = running(store, 2)
    hold(short, 3)
    hold(long, 500)
    clock.forward(1)
    held.renew_due()
    assert observed.renewed == [short.key]
    clock.forward(200)
    held.renew_due()
    assert stored(long).leased_until - database_now() > timedelta(seconds=490)


def test_time_of_a_lease_starts_before_its_claim(store, held, observed, clock):
    job, since = running_job(store), clock()
    clock.forward(RENEW_AT)  # the time that the claim took
    held.hold(job.key, 30, since, job.queue)
    held.renew_due()
    assert observed.renewed == [job.key]


def test_time_of_a_renewed_lease_starts_before_the_renewal(store, held, hold, observed, clock):
    signal = hold(running_job(store))
    clock.forward(RENEW_AT)
    observed.after = lambda: clock.forward(ABORT_AT - 1)
    held.renew_due()
    assert held.abort_overdue() == {}
    clock.forward(1)
    assert held.abort_overdue() != {}
    assert signal.reason == "error"


def test_all_leases_are_renewed_or_checked_in_one_statement(store, held, hold, clock, django_assert_num_queries):
    for job in running(store, 50):
        hold(job)
    with django_assert_num_queries(1):
        assert held.check() == {}
    clock.forward(RENEW_AT)
    with django_assert_num_queries(1):
        assert held.renew_due() == {}


def test_attempt_is_aborted_once_shortly_before_its_lease_expires_and_without_a_query(
    store, held, hold, clock, django_assert_num_queries
):
    job = running_job(store)
    signal = hold(job)
    with django_assert_num_queries(0):
        clock.forward(ABORT_AT - 0.1)
        assert held.abort_overdue() == {}
        assert not signal.aborted
        clock.forward(0.1)
        assert held.abort_overdue() == {job.key: "error"}
        assert held.abort_overdue() == {}
    assert signal.reason == "error"


def test_attempt_that_has_ended_is_not_aborted(store, held, hold, clock):
    signal = hold(running_job(store))
    signal.end()
    clock.forward(ABORT_AT)
    assert held.abort_overdue() == {}
    assert not signal.aborted


def test_renewal_postpones_the_abort(store, held, hold, clock):
    signal = hold(running_job(store))
    clock.forward(ABORT_AT - 0.1)
    held.renew_due()
    clock.forward(ABORT_AT - 0.1)
    assert held.abort_overdue() == {}
    assert not signal.aborted


def test_failed_renewal_is_repeated_at_once_and_does_not_postpone_the_abort(store, held, hold, observed, clock):
    def fail():
        raise OperationalError("the network is unreachable")

    job = running_job(store)
    signal = hold(job)
    observed.before = fail
    clock.forward(RENEW_AT)
    for _ in range(2):
        with pytest.raises(OperationalError):
            held.renew_due()
    assert not signal.aborted
    clock.forward(ABORT_AT - RENEW_AT)
    assert held.abort_overdue() == {job.key: "error"}
    assert signal.reason == "error"


def test_released_lease_is_neither_renewed_nor_aborted(store, held, hold, observed, clock):
    job, foreign = running(store, 2)
    signal = hold(job)
    assert (held.holds(job.id), held.holds(foreign.id)) == (True, False)
    held.release([job.key, foreign.key])
    clock.forward(30)
    assert held.renew_due() == held.abort_overdue() == {}
    assert (observed.renewed, signal.aborted, held.holds(job.id), len(held)) == ([], False, False, 0)


def test_abort_all_aborts_every_attempt_with_the_reason_and_keeps_the_leases(store, held, hold, observed, clock):
    jobs = running(store, 3)
    signals = [hold(job) for job in jobs]
    held.abort_all("worker_stopping")
    clock.forward(RENEW_AT)
    held.renew_due()
    assert set(observed.renewed) == {job.key for job in jobs}
    assert {signal.reason for signal in signals} == {"worker_stopping"}


def test_leases_can_be_added_and_released_during_a_renewal(store, held, hold, observed, clock):
    first, second = running(store, 2)
    hold(first)
    changed = threading.Event()

    def other_thread():
        hold(second)
        held.release([first.key])
        changed.set()

    def meanwhile():
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
def test_attempt_whose_row_is_locked_by_another_transaction_continues(store, held, hold, clock):
    job = running_job(store)
    signal = hold(job)
    locking = holding(lambda store: store.attempts.lock(job.id))
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    clock.forward(ABORT_AT - RENEW_AT)
    assert held.abort_overdue() == {}
    assert not signal.aborted
    locking.result()
