"""The leases a worker holds: renewed at a third, given up at the margin."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError
from pytest_django import DjangoAssertNumQueries

from django_jobchains.leases import HeldLeases
from django_jobchains.store import Store
from tests.leases.clock import ABORT_AT, LEASE_SECONDS, RENEW_AT, Clock, Watched, hold
from tests.store.connections import committing, holding
from tests.store.jobs import database_now, running, running_job, stored

pytestmark = pytest.mark.django_db


def test_nothing_held_needs_no_statement(held: HeldLeases, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        assert held.renew_due() == {}
    assert held.abort_overdue() == []
    assert held.held() == []
    assert len(held) == 0


def test_a_lease_is_due_for_renewal_at_a_third(store: Store, held: HeldLeases, watched: Watched, clock: Clock) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    clock.forward(RENEW_AT - 0.1)
    held.renew_due()
    assert watched.renewed == []
    clock.forward(0.1)
    assert held.renew_due() == {}
    assert watched.renewed == [job.key]
    assert not signal.aborted


def test_a_renewed_lease_lasts_in_the_database(store: Store, held: HeldLeases, clock: Clock) -> None:
    job = running_job(store)
    hold(held, job, clock, 500)
    clock.forward(200)
    held.renew_due()
    assert stored(job).leased_until - database_now() > timedelta(seconds=490)


def test_a_renewed_lease_is_due_again_a_third_later(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    hold(held, running_job(store), clock)
    for renewals in (1, 2, 3):
        clock.forward(RENEW_AT - 0.1)
        held.renew_due()
        assert len(watched.renewed) == renewals - 1
        clock.forward(0.1)
        held.renew_due()
        assert len(watched.renewed) == renewals


def test_a_lease_counts_from_before_the_claim(store: Store, held: HeldLeases, watched: Watched, clock: Clock) -> None:
    job = running_job(store)
    since = clock()
    clock.forward(RENEW_AT)  # the claim took that long
    held.hold(job, LEASE_SECONDS, since)
    held.renew_due()
    assert watched.renewed == [job.key]


def test_a_renewal_counts_from_before_it_was_sent(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    signal = hold(held, running_job(store), clock)
    clock.forward(RENEW_AT)
    watched.after = lambda: clock.forward(ABORT_AT - 1)
    held.renew_due()
    assert held.abort_overdue() == []
    clock.forward(1)
    assert held.abort_overdue() != []
    assert signal.reason == "error"


def test_all_that_is_due_is_renewed_in_one_statement(
    store: Store, held: HeldLeases, clock: Clock, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    jobs = running(store, 50)
    for job in jobs:
        hold(held, job, clock)
    clock.forward(RENEW_AT)
    with django_assert_num_queries(1):
        assert held.renew_due() == {}


def test_each_lease_is_due_by_its_own_length(store: Store, held: HeldLeases, watched: Watched, clock: Clock) -> None:
    short, long = running(store, 2)
    hold(held, short, clock, 3)
    hold(held, long, clock, 300)
    clock.forward(1)
    held.renew_due()
    assert watched.renewed == [short.key]


def test_an_attempt_is_aborted_at_the_margin_once_and_without_the_database(
    store: Store, held: HeldLeases, clock: Clock, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    with django_assert_num_queries(0):
        clock.forward(ABORT_AT - 0.1)
        assert held.abort_overdue() == []
        assert not signal.aborted
        clock.forward(0.1)
        assert held.abort_overdue() == [job.id]
        assert held.abort_overdue() == []
    assert signal.reason == "error"


def test_an_attempt_is_aborted_before_its_lease_ends_in_the_database(
    store: Store, held: HeldLeases, clock: Clock
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    clock.forward(LEASE_SECONDS - 0.1)
    held.abort_overdue()
    assert signal.aborted


def test_a_renewal_moves_the_margin(store: Store, held: HeldLeases, clock: Clock) -> None:
    signal = hold(held, running_job(store), clock)
    clock.forward(ABORT_AT - 0.1)
    held.renew_due()
    clock.forward(ABORT_AT - 0.1)
    assert held.abort_overdue() == []
    assert not signal.aborted


def test_a_renewal_that_fails_does_not_move_the_margin(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)

    def fail() -> None:
        raise OperationalError("the network is away")

    watched.before = fail
    clock.forward(RENEW_AT)
    with pytest.raises(OperationalError):
        held.renew_due()
    assert not signal.aborted
    clock.forward(ABORT_AT - RENEW_AT)
    assert held.abort_overdue() == [job.id]
    assert signal.reason == "error"


def test_a_failed_renewal_is_tried_again_at_once(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    job = running_job(store)
    hold(held, job, clock)
    clock.forward(RENEW_AT)
    watched.before = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        held.renew_due()
    watched.before = lambda: None
    held.renew_due()
    assert watched.renewed == [job.key]


def test_a_lease_let_go_is_neither_renewed_nor_aborted(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    held.let_go([job])
    clock.forward(LEASE_SECONDS)
    assert held.renew_due() == {}
    assert held.abort_overdue() == []
    assert (watched.renewed, signal.aborted, len(held)) == ([], False, 0)


def test_letting_go_of_what_is_not_held_is_nothing(store: Store, held: HeldLeases) -> None:
    held.let_go([running_job(store)])
    assert len(held) == 0


def test_abort_all_tells_every_attempt_why_and_keeps_their_leases(store: Store, held: HeldLeases, clock: Clock) -> None:
    signals = [hold(held, job, clock) for job in running(store, 3)]
    held.abort_all("worker_stopping")
    assert {signal.reason for signal in signals} == {"worker_stopping"}
    assert len(held) == 3


def test_an_aborted_attempts_lease_is_still_renewed(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    held.abort_all("worker_stopping")
    clock.forward(RENEW_AT)
    held.renew_due()
    assert watched.renewed == [job.key]
    assert signal.reason == "worker_stopping"


def test_leases_are_taken_up_and_let_go_while_a_renewal_runs(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    first, second = running(store, 2)
    hold(held, first, clock)
    taken_up = threading.Event()

    def other_thread() -> None:
        held.hold(second, LEASE_SECONDS, clock())
        held.let_go([first])
        taken_up.set()

    def meanwhile() -> None:
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert taken_up.wait(10), "A renewal locks other threads out."
        thread.join(10)

    watched.before = meanwhile
    clock.forward(RENEW_AT)
    held.renew_due()
    assert [lease.key for lease in held.held()] == [second.key]


@committing
@pytest.mark.postgresql
def test_an_attempt_whose_job_someone_else_has_locked_goes_on(store: Store, held: HeldLeases, clock: Clock) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)
    locking = holding(lambda store: store.lock(job.id))
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    clock.forward(ABORT_AT - RENEW_AT)
    assert held.abort_overdue() == []
    assert not signal.aborted
    locking.result()
