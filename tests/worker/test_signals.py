"""SIGTERM and SIGINT to a worker process, as deployments, people and process managers send them."""

import signal
import time
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = pytest.mark.slow


def started() -> bool:
    return Effect.objects.filter(label="started").exists()


def job_rows() -> list[tuple[Any, ...]]:
    return list(Job.objects.order_by("pk").values_list("status", "attempt", "run_at", "leased_by"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_worker_ends_at_once_with_code_0(start_process, number):
    process = start_process("--shutdown-timeout", "60").until_ready()
    process.signal(number)
    assert process.wait() == 0
    assert "Stopped: no jobs." in process.output
    assert "Traceback" not in process.output


def test_first_signal_lets_the_handler_end(start_process):
    process = start_process("--slots", "1")
    first, second = chains.enqueue_many([jobs.stuck.item(1.0), jobs.stuck.item(0.0)])
    until(started, 60, lambda: process.output)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert first.refresh().status == "completed"
    assert (second.refresh().status, second.current_job.attempt) == ("pending", 0)


def test_second_signal_does_not_wait(start_process):
    jobs.heed.enqueue()
    before = job_rows()
    process = start_process("--shutdown-timeout", "60", ABORT_SECONDS="15", LEASE_SECONDS="60")
    until(started, 60, lambda: process.output)
    process.signal(signal.SIGTERM)
    until(lambda: "Stopping" in process.output)
    assert process.is_alive
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert job_rows() == before
    assert Effect.objects.filter(label="aborted: worker_stopping").exists()


@pytest.mark.parametrize("signals", [1, 2])
def test_stuck_handler_does_not_keep_the_process_running(start_process, signals):
    """The handler sleeps for a minute and ignores its signal. Its job is pending again, and no attempt is used."""
    jobs.stuck.enqueue(60.0)
    before = job_rows()
    process = start_process("--shutdown-timeout", "1" if signals == 1 else "60")
    until(started, 60, lambda: process.output)
    process.signal(signal.SIGTERM)
    if signals == 2:
        until(lambda: "Stopping" in process.output)
        process.signal(signal.SIGINT)
    assert process.wait() == 0
    assert job_rows() == before
    assert not FailedAttempt.objects.exists()
    assert "1 handed back unfinished" in process.output
    assert f"Still running after {'the shutdown timeout' if signals == 1 else 'a second signal'}" in process.output


def test_signal_during_the_start_loses_nothing(start_process):
    chains.enqueue_many([jobs.write.item(0.01) for _ in range(20)])
    for milliseconds in range(100, 900, 200):
        process = start_process()
        time.sleep(milliseconds / 1000)
        process.signal(signal.SIGTERM)
        process.wait(60)
    assert not Job.objects.with_status("running").exists()
    assert set(Job.objects.values_list("status", "attempt")) <= {("pending", 0), ("completed", 1)}


def test_signals_until_the_very_end_change_nothing(start_process):
    process = start_process().until_ready()
    while process.is_alive:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        time.sleep(0.0005)
    assert process.wait() == 0
    assert "Traceback" not in process.output
