"""A user's transaction stays open for far longer than leases, heartbeats, and the limits of the probes."""

import pytest

from django_jobchains.models import FailedAttempt, Job
from tests.chaos.open_transactions import transaction_that_locks
from tests.shop.models import Effect
from tests.support.waiting import stays, until
from tests.support.worker_app import jobs
from tests.worker.test_supervisor import ask, free_port

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

#: A worker is not live, and not ready, if one of its steps takes longer. The leases of the jobs last as long.
LIMIT_SECONDS = 6.0
HELD_SECONDS = 10.0


def test_a_long_lock_fails_no_health_probe(start_process):
    """Jobs are locked that run, that have returned, or that wait for the lock in ``complete()``."""
    port = free_port()
    process = start_process(
        *("--slots", "6", "--health-port", str(port)),
        jobchains={"LIVENESS_SECONDS": LIMIT_SECONDS, "HEARTBEAT_SECONDS": 0.5},
        READY_SECONDS=str(LIMIT_SECONDS),
        LEASE_SECONDS=str(LIMIT_SECONDS),
    ).until_ready()
    locked = runs, returns, completes = [jobs.gated.enqueue("end"), jobs.gated.enqueue("return"), jobs.hold.enqueue()]
    until(lambda: Effect.objects.filter(label__startswith="started").count() == len(locked), 20)
    until(lambda: probes(port) == [200, 200], 20, lambda: ask(port, "/"))
    unrelated = Job.objects.filter(type_name="chaos.nothing")

    def is_green() -> bool:
        jobs.nothing.enqueue(None)
        return probes(port) == [200, 200]

    with transaction_that_locks(*locked):
        Effect.objects.create(job_id=returns.id, label="return")
        Effect.objects.create(job_id=completes.id, label="go on")
        assert stays(is_green, HELD_SECONDS), (ask(port, "/"), process.output)
        until(lambda: not unrelated.exclude(status="completed").exists(), 10, lambda: process.output)
        assert [chain.refresh().status for chain in locked] == ["running"] * 3
        assert probes(port) == [200, 200]
    Effect.objects.create(job_id=runs.id, label="end")
    until(lambda: not Job.objects.exclude(status="completed").exists(), 20, lambda: process.output)
    assert set(Job.objects.values_list("attempt", "crashes", "lease_number")) == {(1, 0, 1)}
    assert Effect.objects.filter(label__startswith="started").count() == len(locked)
    assert not FailedAttempt.objects.exists()


def probes(port: int) -> list[int]:
    return [ask(port, path)[0] for path in ("/live", "/ready")]
