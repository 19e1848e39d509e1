"""Attempts whose leases are lost are aborted with the reason. The lease number identifies the attempt."""

import pytest

from django_jobchains.models import Job
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob
from django_jobchains.worker.held_leases import HeldLeases
from tests.leases.observed_store import ABORT_AT, RENEW_AT, hold
from tests.support.connections import committing, holding
from tests.support.jobs import alter, database_now, expire, finished, running, running_job, stored, taken_over

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("reason", ["taken_by_another_worker", "already_completed", "cancelled", "not_found"])
def test_lost_lease_aborts_its_attempt_with_the_reason_and_is_released(store, held, observed, clock, reason):
    job, other = running(store, 2)
    signal, untouched = hold(held, job, clock), hold(held, other, clock)
    lose(store, job, reason)
    clock.forward(RENEW_AT)
    assert held.renew_due() == {job.key: reason}
    assert signal.reason == reason
    assert not untouched.aborted
    assert held.held() == [other.key]
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert observed.renewed[2:] == [other.key]


def lose(store: Store, job: ClaimedJob, reason: str) -> None:
    if reason == "taken_by_another_worker":
        taken_over(store, job)
    elif reason == "not_found":
        Job.objects.filter(pk=job.id).delete()
    else:
        alter([job], status=reason.removeprefix("already_"))


@pytest.mark.parametrize("query", [HeldLeases.renew_due, HeldLeases.check])
def test_attempt_that_has_completed_its_job_before_it_ends_has_not_lost_it(store, held, clock, query):
    """In a child process, it commits before its worker knows that it has ended."""
    job = running_job(store)
    signal = hold(held, job, clock)
    store.attempts.finish([finished(job)])
    clock.forward(RENEW_AT)
    assert query(held) == {}
    assert not signal.aborted
    assert held.release([job.key]) == {job.key}


def test_failing_callback_does_not_prevent_other_aborts(store, held, clock, caplog):
    jobs = running(store, 2)
    signals = [hold(held, job, clock) for job in jobs]
    for signal in signals:
        signal.on_abort(lambda: 1 / 0)
    for job in jobs:
        lose(store, job, "cancelled")
    clock.forward(RENEW_AT)
    held.renew_due()
    assert [signal.reason for signal in signals] == ["cancelled", "cancelled"]
    assert len(held) == 0


class TestOneJobTwice:
    """The worker lost a lease, and claimed the same job again before it noticed."""

    @pytest.fixture
    def stale(self, store):
        return running_job(store)

    @pytest.fixture
    def fresh(self, store, stale):
        return taken_over(store, stale, worker="worker-1")

    @pytest.fixture(params=["stale_first", "fresh_first"])
    def signals(self, request, held, clock, stale, fresh):
        pair = [stale, fresh] if request.param == "stale_first" else [fresh, stale]
        signals = {job.key: hold(held, job, clock) for job in pair}
        return signals[stale.key], signals[fresh.key]

    def test_both_are_held(self, held, signals, stale, fresh):
        assert set(held.held()) == {stale.key, fresh.key}

    def test_renewal_aborts_only_the_stale_attempt(self, held, signals, clock, stale, fresh):
        expire(fresh)
        clock.forward(RENEW_AT)
        lost = held.renew_due()
        assert stored(fresh).leased_until > database_now()
        assert [signal.reason for signal in signals] == ["taken_by_another_worker", None]
        assert held.held() == [fresh.key]
        assert lost == {stale.key: "taken_by_another_worker"}

    def test_releasing_the_stale_lease_keeps_the_fresh_one(self, held, signals, stale, fresh):
        held.release([stale.key])
        assert held.held() == [fresh.key]

    def test_both_are_aborted_when_the_database_is_unavailable(self, held, signals, clock):
        clock.forward(ABORT_AT)
        held.abort_overdue()
        assert [signal.reason for signal in signals] == ["error", "error"]

    def test_both_are_aborted_when_the_job_is_completed(self, held, signals, clock, fresh):
        alter([fresh], status="completed")
        clock.forward(RENEW_AT)
        held.renew_due()
        assert [signal.reason for signal in signals] == ["already_completed", "already_completed"]
        assert len(held) == 0

    @committing
    @pytest.mark.postgresql
    def test_fresh_attempt_that_has_locked_its_row_is_not_aborted(self, held, signals, clock, fresh):
        completing = holding(lambda store: store.attempts.lock(fresh.id))
        clock.forward(RENEW_AT)
        held.renew_due()
        completing.result()
        assert [signal.reason for signal in signals] == ["taken_by_another_worker", None]


def test_attempt_that_ends_during_the_renewal_is_not_reported_as_lost(store, held, observed, clock):
    job = running_job(store)
    signal = hold(held, job, clock)

    def end() -> None:
        store.attempts.finish([finished(job)])
        held.release([job.key])

    observed.before = end
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert not signal.aborted
