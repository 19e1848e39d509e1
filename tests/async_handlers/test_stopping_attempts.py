"""The task of an async attempt that should stop is cancelled, but a function on a thread is not interrupted."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Lease, RunningJob
from django_jobchains.telemetry.events import AttemptEnded, AttemptStuck
from django_jobchains.worker import Worker
from tests.async_handlers.effects import effects, write
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.waiting import stays, until
from tests.support.workers import time_out

pytestmark = committed

Handler = Callable[[RunningJob[Any]], Any]
FOR_EVER = 600


@pytest.fixture
def started():
    return threading.Event()


@pytest.fixture
def gate():
    """An event that functions on threads wait for. It is set at the end of the test at the latest."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def run(processors, start_worker, started):
    """Return a function that starts a worker and waits until it runs the handler."""

    def run(handler: Handler, *, options: dict[str, Any] | None = None, **policy: Any) -> Chain:
        job_type = processors.register("async.stopped", **{"lease": Lease(FOR_EVER), **policy})(handler)
        run.worker = start_worker(**(options or {}))
        chain = job_type.enqueue()
        assert started.wait(15)
        return chain

    return run


def worker_of(run: Callable[..., Chain]) -> Worker:
    worker: Worker = run.worker
    return worker


def until_status(chain: Chain, status: str) -> Job:
    until(lambda: chain.refresh().status == status, what=lambda: vars(chain.current_job))
    return chain.current_job


def test_handler_that_awaits_is_cancelled_with_its_job(run, started, events):
    reasons: list[Any] = []

    async def handler(job: RunningJob[Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(FOR_EVER)
        finally:
            reasons.append(job.signal.reason)

    chain = run(handler)
    chains.cancel(chain)
    job = until_status(chain, "cancelled")
    assert (reasons, job.attempt) == (["cancelled"], 1)
    assert job.last_error == "JobAborted: The attempt was asked to stop: cancelled."
    until(lambda: [event.ending for event in events.of(AttemptEnded)] == ["cancelled"])


def test_cancellation_that_the_handler_raises_is_an_ordinary_error(run, started):
    async def handler(job: RunningJob[Any]) -> str:
        started.set()
        if job.attempt == 1:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return "done"

    chain = run(handler)
    until_status(chain, "completed")
    assert FailedAttempt.objects.get().error == "CancelledError"


def test_handler_that_cancels_itself_and_returns_completes(run, started):
    async def handler(job: RunningJob[Any]) -> str:
        started.set()
        await job.acomplete(write(job, "kept"))
        asyncio.current_task().cancel()
        return "done"

    chain = run(handler)
    until_status(chain, "completed")
    assert effects() == ["kept"]


@pytest.mark.usefixtures("patient_stop")
def test_cancelled_task_group_stops_the_attempt(run, started):
    async def part(job: RunningJob[Any]) -> None:
        try:
            started.set()
            await asyncio.sleep(FOR_EVER)
        finally:
            job.signal.raise_if_aborted()

    async def handler(job: RunningJob[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part(job))
            group.create_task(part(job))

    chain = run(handler)
    assert worker_of(run).stop(timeout=0) == 0
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)


def test_handler_that_ignores_the_cancellation_may_complete_its_job(run, started):
    async def handler(job: RunningJob[Any]) -> str:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(FOR_EVER)
        await job.acomplete(write(job, "kept"))
        return "done"

    chain = run(handler)
    chains.cancel(chain)
    until_status(chain, "completed")
    assert (chain.output, effects()) == ("done", ["kept"])


@pytest.mark.usefixtures("patient_stop")
@pytest.mark.parametrize("phase", ["aprepare", "acomplete"])
def test_function_on_its_thread_is_not_interrupted(run, started, gate, events, phase):
    """The cancellation takes effect after the function: a staged prepare is committed, and complete rolled back."""
    aborted = threading.Event()
    had_ended: list[bool] = []

    async def handler(job: RunningJob[Any]) -> None:
        def function() -> None:
            started.set()
            gate.wait(30)
            write(job, phase)()

        job.signal.on_abort(aborted.set)
        try:
            await getattr(job, phase)(function)
        finally:
            had_ended.append(gate.is_set())
        raise AssertionError("The handler was not cancelled.")

    run(handler)
    worker = worker_of(run)
    stopping = threading.Thread(target=worker.stop, kwargs={"timeout": 0})
    stopping.start()
    assert aborted.wait(15)
    assert stays(lambda: not had_ended, 0.1)
    gate.set()
    stopping.join()
    assert had_ended == [True]
    assert [event.ending for event in events.of(AttemptEnded)] == ["handed_back"]
    assert effects() == (["aprepare"] if phase == "aprepare" else [])


@pytest.mark.postgresql  # on SQLite the transaction on the only thread prevents all other writes
def test_waiting_for_a_thread_ends_with_the_cancellation(run, started, gate, settings, processors):
    """One attempt uses the only thread. Another one that waits for the thread is cancelled."""
    settings.JOBCHAINS = {"ASYNC_THREADS": 1}
    waiting = threading.Event()

    @processors.register("async.waiting", lease=Lease(FOR_EVER))
    async def waits(job: RunningJob[bool]) -> str:
        if job.input:
            waiting.set()
        await job.acomplete(lambda: None)
        return "done"

    async def holds(job: RunningJob[Any]) -> None:
        def function() -> None:
            started.set()
            gate.wait(30)

        await job.acomplete(function)

    chain = run(holds)
    cancelled = waits.enqueue(True)
    assert waiting.wait(15)
    chains.cancel(cancelled)
    until_status(cancelled, "cancelled")
    later = waits.enqueue(False)
    gate.set()
    until_status(chain, "completed")
    until_status(later, "completed")


def test_lost_lease_cancels_the_handler(run, started, steal, settings, short_lease):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    reasons: list[Any] = []

    async def handler(job: RunningJob[Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(FOR_EVER)
        finally:
            reasons.append(job.signal.reason)

    chain = run(handler, lease=short_lease, options={"poll_seconds": 0.1})
    steal(chain.id)
    until(lambda: reasons)
    assert reasons == ["taken_by_another_worker"]
    assert chain.refresh().current_job.failed_attempts.count() == 0


def test_attempt_that_exceeds_its_timeout_is_cancelled_and_retried(run, started):
    async def handler(job: RunningJob[Any]) -> str:
        started.set()
        if job.attempt == 1:
            await asyncio.sleep(FOR_EVER)
        return "in time"

    chain = run(handler, timeout=1)
    until_status(chain, "completed")
    errors = set(FailedAttempt.objects.values_list("error", flat=True))  # a busy machine may need more than two
    assert errors == {"JobAborted: The attempt was asked to stop: timed out."}


def test_another_task_may_wait_for_the_signal(run, started):
    results: list[Any] = []

    async def listen(job: RunningJob[Any]) -> None:
        results.append(await job.signal.async_wait(0.01))
        started.set()
        results.append(await job.signal.async_wait(60))
        results.append(await job.signal.async_wait(60))

    async def handler(job: RunningJob[Any]) -> None:
        listening = asyncio.create_task(listen(job))
        try:
            await asyncio.sleep(FOR_EVER)
        finally:
            await listening

    chain = run(handler)
    chains.cancel(chain)
    until_status(chain, "cancelled")
    assert results == [False, True, True]


class TestUnresponsiveHandlers:
    @pytest.fixture(autouse=True)
    def _settings(self, settings):
        settings.JOBCHAINS = {"STUCK_SECONDS": 0.3}

    @pytest.fixture
    def unresponsive(self, started, gate):
        async def unresponsive(job: RunningJob[Any]) -> str:
            if job.attempt == 2:
                return "second attempt"
            await job.aprepare(write(job, "atomic"), mode="atomic")
            started.set()
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)
            return "late"

        return unresponsive

    def test_stuck_attempt_loses_its_job_and_its_late_outcome_is_dropped(self, run, unresponsive, gate, events):
        chain = run(unresponsive, options={"async_slots": 1})
        time_out(worker_of(run), "asyncio.sleep(0.02)")
        until_status(chain, "completed")
        assert chain.output == "second attempt"
        failed = FailedAttempt.objects.get()
        assert failed.error.startswith("HandlerStuck: The handler was asked to stop (timed out)")
        assert "in unresponsive" in failed.traceback
        until(lambda: len(events.of(AttemptStuck)) == 1)
        gate.set()
        until(lambda: not worker_of(run).running)
        assert chain.refresh().output == "second attempt"
        assert (effects(), FailedAttempt.objects.count()) == ([], 1)

    def test_worker_does_not_wait_for_a_stuck_attempt(self, run, unresponsive, events):
        chain = run(unresponsive)
        time_out(worker_of(run), "asyncio.sleep(0.02)")
        until_status(chain, "completed")
        assert worker_of(run).stop(timeout=0) == 0
        assert worker_of(run).is_stuck


class TestStoppingWorkers:
    @pytest.fixture
    def sleeper(self, started):
        async def sleeper(job: RunningJob[Any]) -> None:
            await job.aprepare(write(job, "prepared"))
            await job.acomplete(write(job, "completed"))
            started.set()
            await asyncio.sleep(FOR_EVER)

        return sleeper

    @pytest.mark.usefixtures("patient_stop")
    def test_handlers_may_finish(self, run, started):
        async def handler(job: RunningJob[Any]) -> str:
            started.set()
            await asyncio.sleep(0.3)
            await job.acomplete(write(job, "kept"))
            return "done"

        chain = run(handler)
        assert worker_of(run).stop(timeout=30) == 0
        assert (chain.refresh().output, effects()) == ("done", ["kept"])

    @pytest.mark.usefixtures("patient_stop")
    def test_waiting_handlers_are_handed_back_and_use_no_attempt(self, run, sleeper, events):
        chain = run(sleeper)
        assert worker_of(run).stop(timeout=0.2) == 0
        job = chain.refresh().current_job
        assert (job.status, job.attempt, job.leased_by, effects()) == ("pending", 0, None, ["prepared"])
        assert [event.ending for event in events.of(AttemptEnded)] == ["handed_back"]
        assert not FailedAttempt.objects.exists()
        assert not worker_of(run).is_stuck

    def test_handler_that_ignores_its_signal_is_handed_back_in_time(self, run, started, gate):
        errors: list[BaseException] = []

        async def unresponsive(job: RunningJob[Any]) -> None:
            started.set()
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)
            try:
                await job.acomplete(write(job, "late"))
            except BaseException as error:
                errors.append(error)
                raise

        chain = run(unresponsive)
        worker = worker_of(run)
        assert worker.stop(timeout=0) == 1
        assert until_status(chain, "pending").attempt == 0
        assert worker.is_stuck
        gate.set()
        until(lambda: not worker.is_stuck)
        assert [type(error).__name__ for error in errors] == ["LeaseLost"]
        assert (chain.refresh().status, effects()) == ("pending", [])

    @pytest.mark.usefixtures("patient_stop")
    def test_stopped_worker_leaves_no_thread_of_the_loop(self, run, sleeper):
        run(sleeper)
        worker_of(run).stop(timeout=0)
        assert [
            thread.name for thread in threading.enumerate() if "async" in thread.name or "loop" in thread.name
        ] == []
