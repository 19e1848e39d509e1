"""Leases a worker holds no longer: their attempts are aborted with the reason, each by its own lease number."""

from typing import Any

import pytest

from django_jobchains.leases import HeldLeases
from django_jobchains.models import Job
from django_jobchains.running import AbortSignal
from django_jobchains.store import ClaimedJob, Store
from tests.leases.clock import ABORT_AT, RENEW_AT, Clock, Watched, hold
from tests.store.connections import committing, holding
from tests.store.jobs import alter, database_now, expire, finished, running, running_job, stored, taken_over

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("reason", ["taken_by_another_worker", "already_completed", "cancelled", "not_found"])
def test_a_lost_lease_aborts_its_attempt_with_the_reason_and_is_let_go(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock, reason: str
) -> None:
    job, other = running(store, 2)
    signal, untouched = hold(held, job, clock), hold(held, other, clock)
    lose(store, job, reason)
    clock.forward(RENEW_AT)
    assert held.renew_due() == {job.key: reason}
    assert signal.reason == reason
    assert not untouched.aborted
    assert [lease.id for lease in held.held()] == [other.id]
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert watched.renewed[2:] == [other.key]


def lose(store: Store, job: ClaimedJob, reason: str) -> None:
    if reason == "taken_by_another_worker":
        taken_over(store, job)
    elif reason == "already_completed":
        store.finish([finished(job)])
    elif reason == "cancelled":
        alter([job], status="cancelled")
    else:
        Job.objects.filter(pk=job.id).delete()


def test_a_callback_that_fails_does_not_keep_others_from_being_aborted(
    store: Store, held: HeldLeases, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
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
    """This worker lost a lease and claimed the same job again, before it noticed."""

    @pytest.fixture
    def stale(self, store: Store) -> ClaimedJob:
        return running_job(store)

    @pytest.fixture
    def fresh(self, store: Store, stale: ClaimedJob) -> ClaimedJob:
        return taken_over(store, stale, worker="worker-1")

    @pytest.fixture(params=["stale_first", "fresh_first"])
    def signals(
        self, request: pytest.FixtureRequest, held: HeldLeases, clock: Clock, stale: ClaimedJob, fresh: ClaimedJob
    ) -> tuple[AbortSignal, AbortSignal]:
        pair = [stale, fresh] if request.param == "stale_first" else [fresh, stale]
        signals = {job.key: hold(held, job, clock) for job in pair}
        return signals[stale.key], signals[fresh.key]

    def test_both_are_held(self, held: HeldLeases, signals: Any, stale: ClaimedJob, fresh: ClaimedJob) -> None:
        assert {lease.key for lease in held.held()} == {stale.key, fresh.key}

    def test_the_renewal_aborts_the_stale_attempt_only(
        self, held: HeldLeases, signals: Any, clock: Clock, stale: ClaimedJob, fresh: ClaimedJob
    ) -> None:
        expire(fresh)
        clock.forward(RENEW_AT)
        lost = held.renew_due()
        assert stored(fresh).leased_until > database_now()
        assert [signal.reason for signal in signals] == ["taken_by_another_worker", None]
        assert [lease.key for lease in held.held()] == [fresh.key]
        assert lost == {stale.key: "taken_by_another_worker"}

    def test_letting_the_stale_one_go_keeps_the_fresh_one(
        self, held: HeldLeases, signals: Any, stale: ClaimedJob, fresh: ClaimedJob
    ) -> None:
        held.let_go([stale])
        assert [lease.key for lease in held.held()] == [fresh.key]

    def test_both_are_aborted_when_the_database_is_away(self, held: HeldLeases, signals: Any, clock: Clock) -> None:
        clock.forward(ABORT_AT)
        held.abort_overdue()
        assert [signal.reason for signal in signals] == ["error", "error"]

    def test_a_completed_job_aborts_both(
        self, store: Store, held: HeldLeases, signals: Any, clock: Clock, fresh: ClaimedJob
    ) -> None:
        store.finish([finished(fresh)])
        clock.forward(RENEW_AT)
        held.renew_due()
        assert [signal.reason for signal in signals] == ["already_completed", "already_completed"]
        assert len(held) == 0

    @committing
    @pytest.mark.postgresql
    def test_a_fresh_attempt_that_has_locked_its_row_is_not_aborted(
        self, held: HeldLeases, signals: Any, clock: Clock, fresh: ClaimedJob
    ) -> None:
        completing = holding(lambda store: store.lock(fresh.id))
        clock.forward(RENEW_AT)
        held.renew_due()
        completing.result()
        assert [signal.reason for signal in signals] == ["taken_by_another_worker", None]


def test_an_attempt_that_ends_during_the_renewal_is_not_reported_as_lost(
    store: Store, held: HeldLeases, watched: Watched, clock: Clock
) -> None:
    job = running_job(store)
    signal = hold(held, job, clock)

    def end() -> None:
        store.finish([finished(job)])
        held.let_go([job])

    watched.before = end
    clock.forward(RENEW_AT)
    assert held.renew_due() == {}
    assert not signal.aborted
