"""A worker ends in time, with the right code and without a warning, whatever it is doing."""

import random
import signal
import time

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.lasting import lasting
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import StartProcess, WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(lasting(0) + 120)]

SHUTDOWN_SECONDS = 10.0
#: How long stopping may take in addition to its timeout.
EXIT_SECONDS = 20.0
#: Limits that a busy machine does not reach, because jobs that are handed back too early have two effects.
LIMITS = {"LEASE_SECONDS": "60", "STOP_SECONDS": str(SHUTDOWN_SECONDS), "ABORT_SECONDS": str(SHUTDOWN_SECONDS)}
#: The time from the start of the process in which it imports, connects, claims and works.
LATEST_SIGNAL_SECONDS = 1.6


def has_started(process: WorkerProcess) -> bool:
    """Return whether the worker handles signals itself by now."""
    return "Worker " in process.output


def assert_ended_well(process: WorkerProcess, *, was_started: bool) -> None:
    code = process.wait(SHUTDOWN_SECONDS + EXIT_SECONDS)
    if was_started or has_started(process):
        assert code == 0, process.output
        assert "Stopped" in process.output
    if code == 0:
        for word in ("Traceback", "Error", "Exception", "Fatal"):
            assert word not in process.output, process.output


def test_a_worker_stopped_at_any_moment_ends_cleanly(start_process):
    chance = random.Random(8)
    until_then = time.monotonic() + lasting(4)
    while time.monotonic() < until_then:
        chains.enqueue_many([jobs.write.item(chance.random() / 20) for _ in range(20)])
        chains.enqueue_many([jobs.attempt.item(chance.random() / 20) for _ in range(20)])
        options = ("--slots", "4", "--shutdown-timeout", str(SHUTDOWN_SECONDS))
        process = start_process(*options, **LIMITS)
        time.sleep(chance.random() * LATEST_SIGNAL_SECONDS)
        was_started = has_started(process)
        process.signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
        if chance.random() < 0.5:
            time.sleep(chance.random() / 10)
            process.signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
        assert_ended_well(process, was_started=was_started)
        assert not Job.objects.with_status("running").exists()
    run_through(start_process, "--burst")
    assert not FailedAttempt.objects.exists()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert_invariants()


def test_a_worker_that_has_finished_ends_cleanly(start_process):
    for options in (["--max-jobs", "5"], ["--burst"]):
        chains.enqueue_many([jobs.write.item(0.0) for _ in range(10)])
        run_through(start_process, *options)
    assert_invariants()


def run_through(start_process: StartProcess, *options: str) -> None:
    process = start_process(*options, LEASE_SECONDS="60")
    until(lambda: not process.is_alive, 60, lambda: process.output)
    assert_ended_well(process, was_started=True)
