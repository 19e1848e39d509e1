"""A blocker runs while a job that waits for it is being enqueued in a transaction that stays open."""

import time
from datetime import timedelta

import pytest

from django_jobchains.leases import HeldLeases
from django_jobchains.store import Store
from tests.blockers.kinds import STEP, WAITS, started
from tests.store.connections import committing, holding
from tests.store.jobs import alter, database_now, stored

pytestmark = [committing, pytest.mark.postgresql]


def test_a_blockers_lease_is_renewed_or_its_attempt_stops(store: Store) -> None:
    """The open transaction locks the job: when it ends, no attempt may go on whose lease has run out meanwhile."""
    blocker = STEP.enqueue()
    [job] = started(store, blocker)
    alter([job], leased_until=database_now() + timedelta(seconds=1))
    leases = HeldLeases(store)
    signal = leases.hold(job, 60, since=time.monotonic() - 59)
    enqueueing = holding(lambda store: WAITS.enqueue(blockers=[blocker]))
    leases.renew_due()
    leases.abort_overdue()
    enqueueing.result()
    is_renewed = stored(job).leased_until > database_now() + timedelta(seconds=30)
    assert is_renewed or signal.aborted
