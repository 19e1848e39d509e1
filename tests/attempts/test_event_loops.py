"""A worker runs many async handlers on one event loop, with limited resources, and replaces a loop that fails."""

import asyncio
import gc
import signal
import threading
import time
import tracemalloc
from itertools import pairwise

import pytest

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Lease
from django_jobchains.telemetry.events import ThreadFailed
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.fixtures import only_slice
from tests.support.scenario import effects, write
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs
from tests.support.worker_processes import start_patient_process as start_process

__all__ = ("start_process",)

pytestmark = committed


@pytest.fixture(autouse=True)
def _wake_ups(settings):
    settings.JOBCHAINS = {}


processors = only_slice(backoff=Backoff(0.02, 1, 0.02, 0))


def completed():
    return Job.objects.with_status("completed").count()


def test_five_hundred_handlers_run_at_once_on_few_threads(processors, start_worker):
    everyone, threads = asyncio.Event(), []

    @processors.register("async.waits")
    async def waits(job):
        threads.append(threading.active_count())
        if len(threads) == 500:
            everyone.set()
        await everyone.wait()
        return job.input

    chains.enqueue_many([waits.item(number) for number in range(500)])
    before = threading.active_count()
    start_worker()
    until(lambda: completed() == 500, 30)
    assert max(threads) - before < 15
    assert sorted(Job.objects.values_list("output", flat=True)) == list(range(500))


def test_at_most_as_many_attempts_run_at_once_as_there_are_slots(processors, start_worker, gate):
    inside = []

    @processors.register("async.held")
    async def held(job):
        inside.append(job.id)
        await asyncio.to_thread(gate.wait, 15)

    chains.enqueue_many([held.item(number) for number in range(9)])
    worker = start_worker(async_slots=3)
    until(lambda: len(inside) == 3)
    assert stays(lambda: len(inside) == 3 and Job.objects.with_status("running").count() == 3, 0.2)
    assert worker.running == 3
    gate.set()
    until(lambda: completed() == 9)


def test_plain_and_async_handlers_do_not_wait_for_each_other(processors, start_worker, gate):
    plain = processors.register("plain")(lambda job: gate.wait(15))

    @processors.register("async.opens")
    async def opens(job):
        gate.set()

    plain.enqueue(1)
    plain.enqueue(2)
    start_worker(slots=2, async_slots=1)
    until(lambda: Job.objects.with_status("running").count() == 2)
    opens.enqueue(3)
    until(lambda: completed() == 3)
    assert set(Job.objects.of_type("plain").values_list("output", flat=True)) == {True}


def test_job_whose_attempt_ended_without_an_outcome_is_reaped(processors, start_worker, monkeypatch, settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.05}
    failures = [MemoryError(), SystemExit()]
    arun = JobAttempt.arun

    async def fails_first(self):
        if failures:
            raise failures.pop()
        return await arun(self)

    @processors.register("async.fails_first", lease=Lease(0.5))
    async def handler(job):
        return "done"

    monkeypatch.setattr(JobAttempt, "arun", fails_first)
    made = chains.enqueue_many([handler.item() for _ in range(3)])
    start_worker(poll_seconds=0.1)
    for chain in made:
        until_completed(chain)


@pytest.mark.slow
def test_thousands_of_jobs_leak_no_memory(processors, work):
    """Run rounds of 500 jobs, the first of which warms up caches."""

    @processors.register("small")
    async def small(job):
        await asyncio.sleep(0)

    def used_after_five_hundred():
        chains.enqueue_many([small.item(number) for number in range(500)])
        work(slots=1)
        gc.collect()
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*/psycopg/_queries.py")])
        return sum(trace.size for trace in traces.traces)

    tracemalloc.start()
    try:
        sizes = [used_after_five_hundred() for _ in range(5)]
    finally:
        tracemalloc.stop()
    # A leak adds to every round. Threads of a stopped worker that end late, and log records, add to one of them.
    # psycopg caches up to 128 statements, and prepares more of them the longer the rounds take.
    assert min(after - before for before, after in pairwise(sizes)) < 50_000, sizes


# Loops that fail or are blocked


def test_failed_loop_is_replaced_and_its_attempts_are_retried(processors, start_worker, events):
    def fail(timeout):
        raise OSError("no more events")

    @processors.register("async.breaks")
    async def breaks(job):
        if job.attempt == 1:
            await job.acomplete(write([job], "lost"))
            asyncio.get_running_loop()._selector.select = fail
            await asyncio.sleep(600)
        return "retried"

    @processors.register("async.waits")
    async def waits(job):
        if job.attempt == 1:
            await asyncio.sleep(600)
        return "retried"

    started = [waits.enqueue(priority=1), breaks.enqueue()]
    worker = start_worker()
    for chain in started:
        until_completed(chain)
        assert FailedAttempt.objects.get(job=chain.id).error.startswith(("JobAborted", "LeaseLost"))
    assert effects() == []
    assert [event.thread for event in events.of(ThreadFailed)] == ["jobchains-event-loop"]
    assert not worker.failed
    gc.collect()


@pytest.fixture
def blocks(processors, gate):
    """A handler that blocks the event loop until the gate opens. ``blocks.began`` is set when it does."""
    began = threading.Event()

    @processors.register("async.blocks")
    async def blocks(job):
        began.set()
        gate.wait(60)
        return "done"

    blocks.began = began
    return blocks


def test_blocked_loop_is_reported_with_its_stack(blocks, start_worker, gate, monkeypatch, caplog, settings):
    """The worker checks the loop more often than it could be reported, so each block is reported once."""
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.2}
    monkeypatch.setattr("django_jobchains.worker.event_loop.LAG_SECONDS", 0.5)
    worker = start_worker()
    chain = blocks.enqueue()
    until(lambda: "gate.wait(60)" in caplog.text, what=lambda: caplog.text)
    assert "The event loop has been blocked" in caplog.text
    assert worker.components.async_slots.lag_seconds > 0
    gate.set()
    until_completed(chain)
    until(lambda: worker.components.async_slots.lag_seconds < 0.1)
    assert not worker.failed


def test_jobs_that_wait_for_a_blocked_loop_are_handed_back_and_no_more_are_claimed(
    processors, blocks, start_worker, gate, monkeypatch
):
    # On a busy machine, the second job may be enqueued late. The worker claims it nevertheless.
    monkeypatch.setattr("django_jobchains.worker.event_loop.PATIENCE_SECONDS", 10)

    @processors.register("async.behind")
    async def behind(job):
        return job.attempt

    start_worker(poll_seconds=0.1)
    blocks.enqueue()
    assert blocks.began.wait(15)
    chain = behind.enqueue()
    until(lambda: chain.refresh().current_job.lease_number and chain.current_job.status == "pending")
    assert stays(lambda: chain.refresh().current_job.lease_number == 1, 1)
    gate.set()
    until_completed(chain)
    assert (chain.output, chain.current_job.crashes) == (1, 0)


def test_loop_that_stays_blocked_ends_the_worker(processors, make_worker, gate, monkeypatch, caplog):
    @processors.register("async.blocks")
    async def blocks(job):
        monkeypatch.setattr("django_jobchains.worker.event_loop.LAG_SECONDS", 0.1)
        monkeypatch.setattr("django_jobchains.worker.event_loop.MAX_LAG_SECONDS", 0.3)
        gate.wait(60)

    chain = blocks.enqueue()
    worker = make_worker(shutdown_seconds=0)
    assert worker.run() == 1
    assert "so the worker stops" in caplog.text
    assert worker.is_stuck
    until(lambda: (chain.refresh().status, chain.current_job.attempt) == ("pending", 0))
    gate.set()
    until(lambda: not worker.is_stuck)


# Worker processes: signals, a blocked event loop, and SIGKILL

#: Less than the long timeout below, and enough for a slow machine to stop within the short one.
MAX_SECONDS = 40.0
HANDED_BACK = {("pending", 0, None)}


def started(count=1):
    return Effect.objects.filter(label="started").count() == count


def stored():
    return set(Job.objects.values_list("status", "attempt", "leased_by"))


@pytest.mark.slow
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
    assert (stored(), FailedAttempt.objects.exists()) == (HANDED_BACK, False)
    assert "Traceback" not in process.output
    assert "Warning" not in process.output


@pytest.mark.slow
def test_blocked_event_loop_does_not_keep_the_process_running(start_process):
    jobs.async_block.enqueue()
    process = start_process("--shutdown-timeout", "0.5", LEASE_SECONDS="60")
    until(started, 60, lambda: process.output)
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < MAX_SECONDS
    assert stored() == HANDED_BACK


@pytest.mark.slow
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
