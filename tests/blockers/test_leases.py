"""A transaction that enqueues a dependent and stays open does not end the attempt of the blocker."""

import time
from datetime import timedelta

import pytest

from django_jobchains.declare.policies import Backoff
from django_jobchains.worker.held_leases import HeldJobs
from tests.blockers.chains import STEP, WAITS, claim_only
from tests.support.connections import committing, holding
from tests.support.jobs import alter, database_now, stored

pytestmark = [committing, pytest.mark.postgresql]


def test_attempt_of_a_blocker_continues_and_is_not_reaped(store, monkeypatch):
    """The open transaction locks the job for longer than its lease."""
    blocker = STEP.enqueue()
    [job] = claim_only(store, blocker)
    alter([job], leased_until=database_now() + timedelta(seconds=1))
    leases = HeldJobs(store)
    signal = leases.hold(job.key, 60, time.monotonic() - 59, job.queue)
    enqueueing = holding(lambda store: WAITS.enqueue(blockers=[blocker]))
    leases.renew_due()
    leases.abort_overdue()
    monkeypatch.setattr(store.db, "ahead_seconds", 30)
    assert store.leases.reap(10, Backoff(), 10) == []
    enqueueing.result()
    assert store.leases.reap(10, Backoff(), 10) == []
    assert not signal.aborted
    monkeypatch.setattr(store.db, "ahead_seconds", 61)
    assert [reaped.id for reaped in store.leases.reap(10, Backoff(), 10)] == [job.id]
    assert stored(job).status == "pending"
