"""SIGTERM and SIGINT to a worker process: what a deploy, a person and a process manager send."""

import signal
import time
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.app import jobs
from tests.shop.models import Effect
from tests.worker.processes import StartProcess
from tests.worker.waiting import until

pytestmark = pytest.mark.slow

#: What stopping may take beyond its timeout.
LAST_WORDS = 3.0


def started() -> bool:
    return Effect.objects.filter(label="started").exists()


def facts() -> list[tuple[Any, ...]]:
    return list(Job.objects.order_by("pk").values_list("status", "attempt", "run_at", "leased_by"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_at_once_with_code_0(start_process: StartProcess, number: int) -> None:
    process = start_process().until_ready()
    since = time.monotonic()
    process.signal(number)
    assert process.wait() == 0
    assert time.monotonic() - since < LAST_WORDS
    assert "Stopped: no job." in process.output
    assert "Traceback" not in process.output


def test_the_first_signal_lets_the_handler_end(start_process: StartProcess) -> None:
    process = start_process("--slots", "1")
    first, second = chains.enqueue_many([jobs.stuck.item(1.0), jobs.stuck.item(0.0)])
    until(started, 30, lambda: process.output)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert first.refresh().status == "completed"
    assert (second.refresh().status, second.current_job.attempt) == ("pending", 0)


def test_the_second_signal_does_not_wait(start_process: StartProcess) -> None:
    jobs.heed.enqueue()
    before = facts()
    process = start_process("--shutdown-timeout", "60")
    until(started, 30, lambda: process.output)
    process.signal(signal.SIGTERM)
    until(lambda: "Stopping" in process.output)
    assert process.is_alive
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < LAST_WORDS
    assert facts() == before
    assert Effect.objects.filter(label="aborted: worker_stopping").exists()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stuck_handler_keeps_no_process(start_process: StartProcess, signals: int) -> None:
    """It sleeps for a minute, and does not hear. Its job is pending again, and has lost no attempt."""
    jobs.stuck.enqueue(60.0)
    before = facts()
    timeout = 1.0 if signals == 1 else 60.0
    process = start_process("--shutdown-timeout", str(timeout))
    until(started, 30, lambda: process.output)
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    if signals == 2:
        until(lambda: "Stopping" in process.output)
        process.signal(signal.SIGINT)
        timeout = 0
    assert process.wait() == 0
    assert time.monotonic() - since < timeout + LAST_WORDS
    assert facts() == before
    assert not FailedAttempt.objects.exists()
    assert "1 handed back unfinished" in process.output
    assert f"Still running after {'the shutdown timeout' if signals == 1 else 'a second signal'}" in process.output


def test_a_handler_that_heeds_its_signal_ends_with_the_shutdown_timeout(start_process: StartProcess) -> None:
    jobs.heed.enqueue()
    before = facts()
    process = start_process("--shutdown-timeout", "0.5")
    until(started, 30, lambda: process.output)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert facts() == before


def test_a_signal_during_the_start_loses_nothing(start_process: StartProcess) -> None:
    chains.enqueue_many([jobs.write.item(0.01) for _ in range(20)])
    for milliseconds in range(100, 900, 200):
        process = start_process()
        time.sleep(milliseconds / 1000)
        process.signal(signal.SIGTERM)
        process.wait()
    assert not Job.objects.with_status("running").exists()
    assert set(Job.objects.values_list("status", "attempt")) <= {("pending", 0), ("completed", 1)}


def test_signals_that_come_until_its_very_end_change_nothing(start_process: StartProcess) -> None:
    process = start_process().until_ready()
    while process.is_alive:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        time.sleep(0.0005)
    assert process.wait() == 0
    assert "Traceback" not in process.output
