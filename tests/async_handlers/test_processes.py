"""Worker processes with async handlers: signals, a blocked event loop, and SIGKILL."""

import signal
import time

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = pytest.mark.slow

#: Less than the long timeout below, and enough for a slow machine to stop within the short one.
MAX_SECONDS = 40.0


def started(count: int = 1) -> bool:
    return Effect.objects.filter(label="started").count() == count


@pytest.mark.parametrize("number", [1, 2])
def test_signals_hand_back_waiting_handlers_and_use_no_attempt(start_process, number):
    chains.enqueue_many([jobs.async_heed.item() for _ in range(20)])
    options = {"ABORT_SECONDS": "15", "LEASE_SECONDS": "60"}
    process = start_process("--shutdown-timeout", "0.5" if number == 1 else "60", "--async-slots", "20", **options)
    until(lambda: started(20), 60, lambda: process.output)
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    if number == 2:
        until(lambda: "Stopping" in process.output)
        assert process.is_alive
        process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < MAX_SECONDS
    assert set(Job.objects.values_list("status", "attempt", "leased_by")) == {("pending", 0, None)}
    assert not FailedAttempt.objects.exists()
    assert "Traceback" not in process.output
    assert "Warning" not in process.output


def test_blocked_event_loop_does_not_keep_the_process_running(start_process):
    jobs.async_block.enqueue()
    process = start_process("--shutdown-timeout", "0.5", LEASE_SECONDS="60")
    until(started, 60, lambda: process.output)
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < MAX_SECONDS
    assert set(Job.objects.values_list("status", "attempt", "leased_by")) == {("pending", 0, None)}


def test_jobs_of_a_killed_worker_write_once(start_process):
    chains.enqueue_many([jobs.async_write.item(0.3) for _ in range(40)])
    first = start_process("--async-slots", "30")
    until(lambda: Effect.objects.exists(), 60, lambda: first.output)
    first.kill()
    second = start_process()
    until(lambda: not Job.objects.incomplete().exists(), 30, lambda: second.output)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    assert Effect.objects.filter(label="written").count() == 40
    assert Effect.objects.values("job_id").distinct().count() == 40
