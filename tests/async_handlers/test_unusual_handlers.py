"""Whatever an async handler raises, returns or leaves running, its attempt ends and the event loop continues."""

import asyncio
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.exceptions import FailJob, RescheduleJob
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Lease, RunningJob
from django_jobchains.telemetry.events import ThreadFailed
from tests.async_handlers.effects import effects, write
from tests.support.attempts import committed
from tests.support.waiting import stays, until, until_completed

pytestmark = committed

Handler = Callable[[RunningJob[Any]], Any]
ERRORS = [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, asyncio.CancelledError, BaseException]


@pytest.fixture
def run_beside_others(once, work):
    """Return a function that runs a handler between jobs that complete, and returns its job."""

    @once.register("other")
    async def other(job: RunningJob[Any]) -> str:
        await asyncio.sleep(0.01)
        return "fine"

    def run(handler: Handler) -> Job:
        job_type = once.register("unusual")(handler)
        before = [other.enqueue(priority=1) for _ in range(3)]
        chain = job_type.enqueue()
        after = [other.enqueue(priority=-1) for _ in range(3)]
        work()
        assert [chain.refresh().output for chain in before + after] == ["fine"] * 6
        return chain.refresh().current_job

    return run


PLACES = ["handler", "prepare", "complete", "after complete", "query"]


def test_base_exception_ends_only_the_attempt(once, work, events):
    def raise_error(error: type[BaseException]) -> None:
        raise error

    @once.register("raises")
    async def raises(job: RunningJob[list[Any]]) -> None:
        place, error = job.input[0], ERRORS[job.input[1]]
        if place == "query":
            await sync_to_async(raise_error)(error)
        elif place == "prepare":
            await job.aprepare(write(job, "half", error()))
        elif place != "handler":
            await job.acomplete(write(job, "half", error() if place == "complete" else None))
        raise error

    inputs = [[place, number] for place in PLACES for number in range(len(ERRORS))]
    chains.enqueue_many([raises.item(what) for what in inputs])
    work()
    for job in Job.objects.all():
        assert job.status == "pending", job.input
        assert ERRORS[job.input[1]].__name__ in str(job.last_error), job.input
    assert FailedAttempt.objects.count() == len(inputs)
    assert (effects(), events.of(ThreadFailed)) == ([], [])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_error_in_a_task_of_the_handler_does_not_end_the_loop(run_beside_others, error, events):
    async def part() -> None:
        raise error

    async def handler(job: RunningJob[Any]) -> str:
        task = asyncio.create_task(part())
        await asyncio.wait([task])
        await job.acomplete(write(job, "kept"))
        return repr(task.exception())

    job = run_beside_others(handler)
    assert (job.status, job.output, effects()) == ("completed", f"{error.__name__}()", ["kept"])
    assert events.of(ThreadFailed) == []


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (FailJob("no use"), "failed", "FailJob: no use"),
        (RescheduleJob(delay=3600, reason="not yet"), "pending", "not yet"),
        (StopIteration(), "pending", "RuntimeError: coroutine raised StopIteration"),
        (ExceptionGroup("several", [ValueError("one")]), "pending", "ExceptionGroup: several (1 sub-exception)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_determines_the_outcome(run_beside_others, error, status, text):
    async def handler(job: RunningJob[Any]) -> None:
        raise error

    job = run_beside_others(handler)
    assert (job.status, job.last_error) == (status, text)


def test_output_that_is_not_json_is_an_error(run_beside_others):
    async def handler(job: RunningJob[Any]) -> Any:
        return {1, 2}

    assert str(run_beside_others(handler).last_error).startswith("InvalidOutput")


def test_plain_function_that_returns_a_coroutine_is_an_error(run_beside_others):
    async def real(job: RunningJob[Any]) -> str:
        return "never awaited"

    @functools.wraps(real)
    def wrapper(job: RunningJob[Any]) -> Any:
        coroutine = real(job)
        coroutine.close()
        return coroutine

    assert "InvalidOutput" in str(run_beside_others(wrapper).last_error)


def test_input_that_does_not_validate_fails_at_once(once, work):
    @once.register("typed")
    async def typed(job: RunningJob[int]) -> None: ...

    chain = typed.enqueue(1)
    Job.objects.update(input="not a number")
    work()
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 1)


def test_remaining_tasks_of_the_handler_are_cancelled(once, work, caplog):
    left: list[asyncio.Task[None]] = []

    @once.register("leaves")
    async def leaves(job: RunningJob[Any]) -> str:
        async def deeper() -> None:
            left.append(asyncio.create_task(asyncio.sleep(600)))
            await asyncio.sleep(600)

        left.append(asyncio.create_task(deeper()))
        await asyncio.sleep(0.01)
        return "done"

    @once.register("checks")
    async def checks(job: RunningJob[Any]) -> list[bool]:
        await asyncio.wait(left, timeout=10)
        return [task.cancelled() for task in left]

    first, second = leaves.enqueue(priority=1), checks.enqueue()
    work(async_slots=1)
    assert (first.refresh().output, second.refresh().output) == ("done", [True, True])
    assert "left 2 tasks running; they are cancelled" in caplog.text


def test_job_whose_attempt_ended_without_an_outcome_is_reaped(processors, start_worker, monkeypatch, settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.05}
    failures = [MemoryError(), SystemExit()]
    arun = JobAttempt.arun

    async def fails_first(self: JobAttempt) -> Any:
        if failures:
            raise failures.pop()
        return await arun(self)

    @processors.register("async.fails_first", lease=Lease(0.5))
    async def handler(job: RunningJob[Any]) -> str:
        return "done"

    monkeypatch.setattr(JobAttempt, "arun", fails_first)
    chains_ = chains.enqueue_many([handler.item() for _ in range(3)])
    start_worker(poll_seconds=0.1)
    for chain in chains_:
        until_completed(chain)


def test_ended_tasks_of_a_handler_are_freed(once, work):
    @once.register("many")
    async def many(job: RunningJob[Any]) -> int:
        for _ in range(50):
            await asyncio.create_task(asyncio.sleep(0))
        gc.collect()
        return len(asyncio.all_tasks())

    chain = many.enqueue()
    work()
    assert chain.refresh().output < 10


class TestFailingLoops:
    def test_failed_loop_is_replaced_and_its_attempts_are_retried(self, processors, start_worker, events):
        def fail(timeout: float | None) -> Any:
            raise OSError("no more events")

        @processors.register("async.breaks")
        async def breaks(job: RunningJob[Any]) -> str:
            if job.attempt == 1:
                await job.acomplete(write(job, "lost"))
                asyncio.get_running_loop()._selector.select = fail
                await asyncio.sleep(600)
            return "retried"

        @processors.register("async.waits")
        async def waits(job: RunningJob[Any]) -> str:
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

    def test_blocked_loop_is_reported_with_its_stack(self, processors, start_worker, monkeypatch, caplog, settings):
        """The worker checks the loop more often than it could be reported, so each block is reported once."""
        settings.JOBCHAINS = {"STUCK_SECONDS": 0.2}
        monkeypatch.setattr("django_jobchains.worker.event_loop.LAG_SECONDS", 0.5)
        gate = threading.Event()

        @processors.register("async.blocks")
        async def blocks(job: RunningJob[Any]) -> str:
            gate.wait(30)
            return "done"

        worker = start_worker()
        chain = blocks.enqueue()
        until(lambda: "gate.wait(30)" in caplog.text, what=lambda: caplog.text)
        assert "The event loop has been blocked" in caplog.text
        assert worker.components.async_slots is not None
        assert worker.components.async_slots.lag_seconds > 0
        gate.set()
        until_completed(chain)
        until(lambda: worker.components.async_slots.lag_seconds < 0.1)
        assert not worker.failed

    def test_jobs_that_wait_for_a_blocked_loop_are_handed_back_and_no_more_are_claimed(
        self, processors, start_worker, monkeypatch
    ):
        # On a busy machine, the second job may be enqueued late. The worker claims it nevertheless.
        monkeypatch.setattr("django_jobchains.worker.event_loop.PATIENCE_SECONDS", 10)
        gate, blocked = threading.Event(), threading.Event()

        @processors.register("async.blocks")
        async def blocks(job: RunningJob[Any]) -> None:
            blocked.set()
            gate.wait(30)

        @processors.register("async.behind")
        async def behind(job: RunningJob[Any]) -> int:
            return job.attempt

        start_worker(poll_seconds=0.1)
        blocks.enqueue()
        assert blocked.wait(15)
        chain = behind.enqueue()
        until(lambda: chain.refresh().current_job.lease_number and chain.current_job.status == "pending")
        assert stays(lambda: chain.refresh().current_job.lease_number == 1, 1)
        gate.set()
        until_completed(chain)
        assert (chain.output, chain.current_job.crashes) == (1, 0)

    def test_loop_that_stays_blocked_ends_the_worker(self, processors, make_worker, monkeypatch, caplog):
        gate = threading.Event()

        @processors.register("async.blocks")
        async def blocks(job: RunningJob[Any]) -> None:
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
