"""Attempts whose leases are lost, or whose jobs are cancelled, are aborted with the reason.

The lease number identifies the attempt.
"""

import time

import pytest

from django_jobchains.models import Job
from django_jobchains.notifications import EVERY, ownership_lost
from django_jobchains.processors import Backoff
from django_jobchains.store.rows import Effects
from django_jobchains.store.writes import FencedWrites
from django_jobchains.worker.upkeep import LeaseRenewal
from tests.leases.test_held_leases import ABORT_AT, RENEW_AT
from tests.support.connections import committing, holding
from tests.support.jobs import (
    alter,
    database_now,
    expire,
    finished,
    running,
    running_job,
    statuses,
    stored,
    tables,
    taken_over,
)
from tests.support.workers import context_for

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["renew_due", "check"])
def query(request, held, clock):
    """Both queries notice what has happened to the jobs, but only one of them renews leases."""
    clock.forward(RENEW_AT)
    return getattr(held, request.param)


def lose(store, job, reason):
    if reason == "taken_by_another_worker":
        taken_over(store, job)
    elif reason == "not_found":
        Job.objects.filter(pk=job.id).delete()
    else:
        alter([job], status=reason.removeprefix("already_"))


def cancel(store, job):
    assert store.chains.cancel([job.chain_id], Effects()) == {job.chain_id}


@pytest.mark.parametrize("reason", ["taken_by_another_worker", "already_completed", "cancelled", "not_found"])
def test_lost_lease_aborts_its_attempt_with_the_reason_and_is_released(store, held, hold, query, reason):
    job, other = running(store, 2)
    signal, untouched = hold(job, 0), hold(other, 0)
    lose(store, job, reason)
    assert query() == {job.key: reason}
    assert signal.reason == reason
    assert not untouched.aborted
    assert held.held() == [other.key]
    assert query() == {}


def test_cancel_aborts_the_attempt_and_keeps_its_lease_until_it_has_stopped(store, held, hold, query, clock, observed):
    job, other = running(store, 2)
    signal, untouched = hold(job), hold(other)
    cancel(store, job)
    for _ in range(3):
        clock.forward(RENEW_AT)
        assert query() == {}
    assert (signal.reason, untouched.aborted) == ("cancelled", False)
    assert held.holds(job.id)
    assert observed.renewed.count(job.key) in (0, 3)


def test_attempt_that_has_completed_its_job_before_it_ends_has_not_lost_it(store, held, hold, query):
    """In a child process, it commits before its worker knows that it has ended."""
    job = running_job(store)
    signal = hold(job, 0)
    store.attempts.finish([finished(job)])
    assert query() == {}
    assert not signal.aborted
    [released] = held.release([job.key])
    assert not released.is_reported


def test_detached_attempt_is_not_aborted(store, hold, query):
    """The worker has already written the attempt's outcome, so the lost lease does not matter."""
    job = running_job(store)
    signal = hold(job, 0)
    assert signal.detach()
    taken_over(store, job)
    assert query() == {}
    assert not signal.aborted


def test_check_changes_nothing_and_does_not_postpone_the_renewal(store, held, hold, observed, clock):
    job = running_job(store)
    hold(job)
    clock.forward(RENEW_AT)
    before = tables()
    held.check()
    assert tables() == before
    held.renew_due()
    assert observed.renewed == [job.key]


def test_failing_callback_does_not_prevent_other_aborts(store, held, hold, query, caplog):
    jobs = running(store, 2)
    signals = [hold(job, 0) for job in jobs]
    for job, signal in zip(jobs, signals, strict=True):
        signal.on_abort(lambda: 1 / 0)
        lose(store, job, "cancelled")
    query()
    assert [signal.reason for signal in signals] == ["cancelled", "cancelled"]
    assert len(held) == 0


def test_aborted_attempt_keeps_its_first_reason(store, held, hold):
    job = running_job(store)
    signal = hold(job)
    held.abort_all("worker_stopping")
    cancel(store, job)
    held.check()
    assert signal.reason == "worker_stopping"
    assert stored(job).status == "running"


def test_attempt_that_ends_during_the_renewal_is_not_reported_as_lost(store, held, hold, observed, clock):
    job = running_job(store)
    signal = hold(job)

    def end():
        store.attempts.finish([finished(job)])
        held.release([job.key])

    observed.before = end
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert not signal.aborted


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_hint_of_a_loss_is_checked_in_the_database_before_the_lease_is_renewed(store, is_named, is_lost):
    """Anyone may send the hint. A forged one aborts no attempt."""
    job, context = running_job(store), context_for(store)
    signal = context.leases.hold(job.key, 60, time.monotonic(), job.queue)
    if is_lost:
        taken_over(store, job)
    renewal = LeaseRenewal(context)
    renewal._seconds = 0
    renewal.on_hint(ownership_lost(job.id if is_named else EVERY))
    renewal.step()
    assert signal.reason == ("taken_by_another_worker" if is_lost else None)
    assert context.leases.holds(job.id) is not is_lost


class TestOneJobTwice:
    """The worker lost a lease, and claimed the same job again before it noticed."""

    @pytest.fixture
    def stale(self, store):
        return running_job(store)

    @pytest.fixture
    def fresh(self, store, stale):
        return taken_over(store, stale, worker="worker-1")

    @pytest.fixture(params=["stale_first", "fresh_first"])
    def signals(self, request, hold, clock, stale, fresh):
        pair = [stale, fresh] if request.param == "stale_first" else [fresh, stale]
        signals = {job.key: hold(job) for job in pair}
        return signals[stale.key], signals[fresh.key]

    def test_renewal_aborts_only_the_stale_attempt(self, held, signals, clock, stale, fresh):
        assert set(held.held()) == {stale.key, fresh.key}
        expire(fresh)
        clock.forward(RENEW_AT)
        assert held.renew_due() == {stale.key: "taken_by_another_worker"}
        assert stored(fresh).leased_until > database_now()
        assert [signal.reason for signal in signals] == ["taken_by_another_worker", None]
        assert held.held() == [fresh.key]

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


@pytest.mark.django_db(transaction=True)
def test_a_job_that_cannot_be_taken_back_does_not_affect_the_others(store, monkeypatch, caplog):
    jobs = running(store, 3)
    expire(*jobs)
    follow_up = FencedWrites.follow_up

    def fail(writes, written, effects):
        if jobs[1].key in [row.key for row in written]:
            raise TypeError("no such alert")
        follow_up(writes, written, effects)

    monkeypatch.setattr(FencedWrites, "follow_up", fail)
    reaped = store.leases.reap(100, Backoff(10), 10)
    assert [job.id for job in reaped] == [jobs[0].id, jobs[2].id]
    assert statuses(*jobs) == ["pending", "running", "pending"]
    assert f"Job {jobs[1].id} cannot be taken back yet: TypeError: no such alert" in caplog.text
