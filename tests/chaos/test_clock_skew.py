"""The clocks of hosts differ: the database's clock decides."""

import shutil
from datetime import timedelta

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

LATER = timedelta(seconds=2)


def test_workers_whose_clocks_differ_by_ten_minutes_start_nothing_early_and_reap_nothing(start_process):
    """Each worker queries for expired leases while the other one holds leases."""
    if not shutil.which("faketime"):
        pytest.skip("needs faketime to run workers with different clocks")
    chains.enqueue_many([jobs.patient.item(3.0) for _ in range(8)])
    late = chains.enqueue_many([jobs.step.item(0, delay=LATER) for _ in range(20)])
    workers = [
        # The monotonic clock, which waits use, is the same for all processes of a host.
        start_process("--slots", "6", within=("faketime", "--exclude-monotonic", "-f", offset), LEASE_SECONDS="60")
        for offset in ("+10m", "-10m")
    ]
    until(
        lambda: not Job.objects.exclude(status="completed").exists(), 60, lambda: [worker.output for worker in workers]
    )
    assert len(set(Job.objects.values_list("completed_by", flat=True))) == 2
    assert set(Job.objects.values_list("attempt", "lease_number", "crashes")) == {(1, 1, 0)}
    for job in Job.objects.filter(pk__in=[chain.id for chain in late]):
        assert job.last_attempt_at is not None
        assert job.last_attempt_at >= job.run_at >= job.created_at + LATER
    assert_invariants()
