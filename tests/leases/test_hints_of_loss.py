"""Anyone may send the hint that a lease is lost. The worker queries the database, which decides."""

import time

import pytest

from django_jobchains.notifications import EVERY, ownership_lost
from django_jobchains.worker.renewal import LeaseRenewal
from tests.support.jobs import running_job, taken_over
from tests.support.workers import context_for

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("is_named", [True, False])
def test_forged_hint_aborts_no_attempt(store, is_named):
    job = running_job(store)
    context = context_for(store)
    held = context.leases
    signal = held.hold(job.key, 60, time.monotonic(), job.queue)
    renewal = LeaseRenewal(context)
    renewal._seconds = 0
    renewal.on_hint(ownership_lost(job.id if is_named else EVERY))
    renewal.step()
    assert not signal.aborted
    assert held.holds(job.id)


@pytest.mark.parametrize("is_named", [True, False])
def test_correct_hint_aborts_the_attempt_before_its_lease_is_renewed(store, is_named):
    job = running_job(store)
    context = context_for(store)
    held = context.leases
    signal = held.hold(job.key, 60, time.monotonic(), job.queue)
    taken_over(store, job)
    renewal = LeaseRenewal(context)
    renewal._seconds = 0
    renewal.on_hint(ownership_lost(job.id if is_named else EVERY))
    renewal.step()
    assert signal.reason == "taken_by_another_worker"
