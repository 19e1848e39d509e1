"""A blocker runs while a job that waits for it is being enqueued in a transaction that stays open."""

import time
from datetime import timedelta

import pytest

from django_jobchains.leases import HeldLeases
from django_jobchains.policies import Backoff
from django_jobchains.store import Store
from tests.blockers.kinds import STEP, WAITS, started
from tests.store.connections import committing, holding
from tests.store.jobs import alter, database_now, stored

pytestmark = [committing, pytest.mark.postgresql]


def test_a_blockers_attempt_goes_on_and_is_not_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open transaction locks the job for longer than its lease lasts."""
    blocker = STEP.enqueue()
    [job] = started(store, blocker)
    alter([job], leased_until=database_now() + timedelta(seconds=1))
    leases = HeldLeases(store)
    signal = leases.hold(job, 60, since=time.monotonic() - 59)
    enqueueing = holding(lambda store: WAITS.enqueue(blockers=[blocker]))
    leases.renew_due()
    leases.abort_overdue()
    monkeypatch.setattr(store, "ahead_seconds", 30)
    assert store.reap(10, Backoff(), 10) == []
    enqueueing.result()
    assert store.reap(10, Backoff(), 10) == []
    assert not signal.aborted
    monkeypatch.setattr(store, "ahead_seconds", 61)
    assert [reaped.id for reaped in store.reap(10, Backoff(), 10)] == [job.id]
    assert stored(job).status == "pending"
