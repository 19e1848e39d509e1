"""Hosts disagree about the time: the database's clock decides."""

import shutil
from datetime import timedelta

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from tests.chaos.app import jobs
from tests.chaos.oracle import assert_invariants
from tests.worker.processes import StartProcess
from tests.worker.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

LATER = timedelta(seconds=2)


def test_workers_whose_clocks_are_ten_minutes_apart_start_nothing_early_and_take_nothing_away(
    start_process: StartProcess,
) -> None:
    """The one that is ahead looks for leases that ran out while the other holds some, and the other way round."""
    if not shutil.which("faketime"):
        pytest.skip("needs faketime: nothing shows here that clocks may differ")
    chains.enqueue_many([jobs.patient.item(3.0) for _ in range(8)])
    late = chains.enqueue_many([jobs.step.item(0, delay=LATER) for _ in range(20)])
    workers = [
        # The monotonic clock is a host's own affair, and it is the one that waits go by.
        start_process("--slots", "6", within=("faketime", "--exclude-monotonic", "-f", offset))
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
