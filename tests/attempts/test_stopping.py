"""An attempt that should stop gets a signal; on an event loop, its task is cancelled. A stuck one loses its job."""

import asyncio
import threading
from contextlib import suppress
from logging import INFO

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import FailedAttempt
from django_jobchains.processors import Backoff, Lease
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, AttemptStuck, WorkerStopped
from tests.records.models import Export
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.fixtures import only_slice
from tests.support.scenario import JOBS, RECORDS, complete, effects, kinds, prepare, wait, write
from tests.support.waiting import stays, until
from tests.support.workers import time_out

pytestmark = committed

FOR_EVER = 600
every_kind = kinds(*JOBS, *RECORDS)


@pytest.fixture(autouse=True)
def _wake_ups(settings):
    settings.JOBCHAINS = {}


processors = only_slice(backoff=Backoff(0.02, 1, 0.02, 0))


@pytest.fixture
def started():
    return threading.Event()


@pytest.fixture
def run(scenario, start_worker, started):
    """Return a function that starts a worker with a handler, and returns the worker when the handler has started."""

    def run(handler, worker=None, **options):
        scenario.enqueue(handler, **options)
        running = start_worker(**(worker or {}))
        assert started.wait(15)
        return running

    return run


@pytest.fixture
def reasons():
    """Why attempts of ``waits`` had to stop."""
    return []


@pytest.fixture
def waits(started, gate, reasons):
    """A handler that runs until the gate opens, or until it has to stop."""

    def waits(jobs):
        started.set()
        try:
            yield wait(gate)
        finally:
            reasons.append(jobs[0].signal.reason)

    return waits


@pytest.fixture
def unresponsive(started, gate):
    """A handler whose first attempt ignores its signal until the gate opens, and then tries to write."""

    def unresponsive(jobs):
        if jobs[0].attempt == 1:
            started.set()
            yield wait(gate, heeds=False)
            yield complete(write(jobs, "late"))

    return unresponsive


def until_states(scenario, *states):
    until(lambda: scenario.states() == set(states), what=lambda: (scenario.states(), scenario.errors()))


def endings(events):
    return {event.ending for event in events.of(AttemptEnded)}


@every_kind
def test_cancelled_handler_is_asked_to_stop_and_has_not_failed(scenario, run, waits, reasons, events, caplog):
    run(waits)
    with caplog.at_level(INFO, "django_jobchains"):
        scenario.cancel()
        until_states(scenario, "cancelled")
        until(lambda: endings(events) == {"cancelled"})
    assert reasons == ["cancelled"]
    if scenario.kind in RECORDS:
        assert not Export.objects.exclude(num_failures=0).exists()
    else:
        assert scenario.errors() == {"JobAborted: The attempt was asked to stop: cancelled."}
    assert not FailedAttempt.objects.exists()
    ended = [record for record in caplog.records if "attempt ended" in record.getMessage()]
    assert len(ended) == len(scenario.made)
    assert {(record.levelno, record.exc_info, record.exc_text) for record in ended} == {(INFO, None, None)}


@kinds(*JOBS)
def test_error_of_a_handler_that_was_asked_to_stop_is_not_a_failure(scenario, run, started, gate, events):
    def interrupted(jobs):
        started.set()
        try:
            yield wait(gate)
        finally:
            raise ConnectionError("closed by on_abort")

    run(interrupted)
    scenario.cancel()
    until_states(scenario, "cancelled")
    until(lambda: endings(events) == {"cancelled"})
    assert scenario.errors() == {"ConnectionError: closed by on_abort"}
    assert not FailedAttempt.objects.exists()
    assert scenario.made[0].current_job.counted_attempts == 0  # A retry has all its attempts.


@kinds("plain", "record")
def test_signal_that_the_project_aborts_without_a_request_does_not_cancel_and_does_not_loop(scenario):
    def handler(jobs):
        jobs[0].signal.abort("cancelled")
        jobs[0].signal.raise_if_aborted()
        yield

    scenario.enqueue(handler)
    scenario.run()
    assert scenario.states() == ({"retried"} if scenario.kind in RECORDS else {"waiting"})
    assert scenario.errors() == {"JobAborted: The attempt was asked to stop: cancelled."}


@every_kind
def test_attempt_whose_lease_could_not_be_renewed_writes_nothing_so_that_its_lease_expires(scenario, events):
    def handler(jobs):
        for job in jobs:
            job.signal.abort("error")
        jobs[0].signal.raise_if_aborted()
        yield

    scenario.enqueue(handler, max_attempts=1)
    scenario.run()
    assert scenario.states() == {"running"}
    assert [event.reason for event in events.of(AttemptAbandoned)] == ["error"] * len(scenario.made)
    assert not FailedAttempt.objects.exists()


@every_kind
def test_stuck_attempt_of_a_cancelled_chain_has_not_failed(scenario, run, unresponsive, settings, events):
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.2}
    run(unresponsive)
    scenario.cancel()
    until_states(scenario, "cancelled")
    until(lambda: endings(events) == {"cancelled"})
    until(lambda: [event.reason for event in events.of(AttemptStuck)] == ["cancelled"])
    assert not FailedAttempt.objects.exists()


@every_kind
def test_handler_that_ignores_the_cancellation_may_complete(scenario, run, started, gate):
    signals = []

    def handler(jobs):
        signals.append(jobs[0].signal)
        started.set()
        yield wait(gate, heeds=False)
        yield complete(write(jobs, "kept"))

    run(handler)
    scenario.cancel()
    until(lambda: signals[0].aborted)
    gate.set()
    until_states(scenario, "completed")
    assert effects() == ["kept"]


@every_kind
def test_attempt_that_exceeds_its_time_limit_is_retried(scenario, run, waits, reasons):
    time_out(run(waits, timeout=FOR_EVER, max_attempts=1), "")
    until_states(scenario, "failed")
    assert reasons == ["timed_out"]
    [error] = scenario.errors()
    assert error.endswith("JobAborted: The attempt was asked to stop: timed out.")
    assert error.startswith("The handler exceeded max_runtime (") == (scenario.kind in RECORDS)


@kinds("plain", "async", *RECORDS)
def test_lost_lease_stops_the_handler(scenario, run, waits, reasons, steal, settings, short_lease):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    is_record = scenario.kind in RECORDS
    run(waits, {"poll_seconds": 0.1}, **({"heartbeat_every": 0.05} if is_record else {"lease": short_lease}))
    if is_record:
        Export.objects.update(lease_number=9)
    else:
        steal(scenario.made[0].id)
    until(lambda: reasons)
    assert (reasons, scenario.states(), scenario.errors()) == (["taken_by_another_worker"], {"running"}, {None})
    assert not FailedAttempt.objects.exists()


@every_kind
def test_stuck_attempt_loses_its_job_and_its_late_outcome_is_dropped(
    scenario, run, unresponsive, gate, settings, events
):
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.2}
    options = {"max_attempts": 1} if scenario.kind in RECORDS else {}
    worker = run(unresponsive, timeout=FOR_EVER, **options)
    time_out(worker, "")
    until_states(scenario, "failed" if options else "completed")
    until(lambda: events.of(AttemptStuck))
    [stuck] = events.of(AttemptStuck)
    assert (stuck.reason, stuck.stuck) == ("timed_out", 1)
    for failed in FailedAttempt.objects.all():
        assert failed.error.startswith("HandlerStuck: The handler was asked to stop (timed out) and did not within")
    for stack in (stuck.stack, *FailedAttempt.objects.values_list("traceback", flat=True)):
        assert "in _wait" in stack or "in _await" in stack
    ended = 1 if options else 2 * len(scenario.made)
    until(lambda: len(events.of(AttemptEnded)) == ended)
    states = scenario.states()
    gate.set()
    until(lambda: not worker.running)
    assert (effects(), len(events.of(AttemptEnded)), scenario.states()) == ([], ended, states)
    assert scenario.kind in RECORDS or not events.of(AttemptAbandoned)


@every_kind
@pytest.mark.usefixtures("patient_stop")
def test_stopping_worker_waits_for_handlers(scenario, run, started, gate):
    def handler(jobs):
        started.set()
        yield wait(gate)
        yield complete(write(jobs, "kept"))

    worker = run(handler)
    threading.Timer(0.1, gate.set).start()
    assert worker.stop(timeout=30) == 0
    assert (scenario.states(), effects()) == ({"completed"}, ["kept"])


@every_kind
@pytest.mark.usefixtures("patient_stop")
def test_stopping_worker_hands_back_what_it_stops_and_uses_no_attempt(scenario, run, waits, reasons, events):
    def handler(jobs):
        if scenario.kind not in RECORDS:
            yield prepare(write(jobs, "prepared"))
        yield complete(write(jobs, "completed"))
        yield from waits(jobs)

    worker = run(handler)
    assert worker.stop(timeout=0) == 0
    assert (reasons, endings(events), worker.is_stuck) == (["worker_stopping"], {"handed_back"}, False)
    assert (scenario.states(), scenario.errors()) == ({"waiting"}, {None})
    if scenario.kind in RECORDS:
        assert Export.objects.filter(num_failures=0, num_resets=0, started_at=None).exists()
    else:
        assert {(chain.current_job.attempt, chain.current_job.leased_by) for chain in scenario.made} == {(0, None)}
        assert effects() == ["prepared"]
    names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if "async" in name or "loop" in name] == []


@every_kind
def test_handler_that_ignores_a_stopping_worker_is_handed_back_in_time(scenario, run, started, gate, events):
    errors = []

    def unresponsive(jobs):
        started.set()
        yield wait(gate, heeds=False)
        try:
            yield complete(write(jobs, "late"))
        except BaseException as error:
            errors.append(error)
            raise

    worker = run(unresponsive)
    assert worker.stop(timeout=0) == len(scenario.made)
    assert [event.abandoned for event in events.of(WorkerStopped)] == [len(scenario.made)]
    until_states(scenario, "waiting")
    gate.set()
    until(lambda: errors and not worker.is_stuck)
    assert isinstance(errors[0], LeaseLost)
    assert (scenario.states(), scenario.errors(), effects()) == ({"waiting"}, {None}, [])


# Tasks on an event loop


@pytest.fixture
def run_async(processors, start_worker, started):
    """Return a function that starts a worker with an async handler, and returns its chain when it has started."""

    def run(handler):
        chain = processors.register("async.stopped", lease=Lease(FOR_EVER))(handler).enqueue()
        run.worker = start_worker()
        assert started.wait(15)
        return chain

    return run


def until_status(chain, status):
    until(lambda: chain.refresh().status == status, what=lambda: vars(chain.current_job))


def test_cancellation_that_the_handler_raises_is_an_ordinary_error(run_async, started):
    async def handler(job):
        started.set()
        if job.attempt == 1:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    until_status(run_async(handler), "completed")
    assert FailedAttempt.objects.get().error == "CancelledError"


def test_handler_that_cancels_itself_and_returns_completes(run_async, started):
    async def handler(job):
        started.set()
        await job.acomplete(write([job], "kept"))
        asyncio.current_task().cancel()

    until_status(run_async(handler), "completed")
    assert effects() == ["kept"]


@pytest.mark.usefixtures("patient_stop")
def test_cancelled_task_group_stops_the_attempt(run_async, started):
    async def part(job):
        try:
            started.set()
            await asyncio.sleep(FOR_EVER)
        finally:
            job.signal.raise_if_aborted()

    async def handler(job):
        async with asyncio.TaskGroup() as group:
            group.create_task(part(job))
            group.create_task(part(job))

    chain = run_async(handler)
    assert run_async.worker.stop(timeout=0) == 0
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)


@pytest.mark.usefixtures("patient_stop")
@pytest.mark.parametrize("phase", ["aprepare", "acomplete"])
def test_function_on_its_thread_is_not_interrupted(run_async, started, gate, events, phase):
    """The cancellation takes effect after the function: a staged prepare is committed, and complete rolled back."""
    aborted, had_ended = threading.Event(), []

    async def handler(job):
        def function():
            started.set()
            gate.wait(30)
            write([job], phase)()

        job.signal.on_abort(aborted.set)
        try:
            await getattr(job, phase)(function)
        finally:
            had_ended.append(gate.is_set())
        raise AssertionError("The handler was not cancelled.")

    run_async(handler)
    stopping = threading.Thread(target=run_async.worker.stop, kwargs={"timeout": 0})
    stopping.start()
    assert aborted.wait(15)
    assert stays(lambda: not had_ended, 0.1)
    gate.set()
    stopping.join()
    assert (had_ended, endings(events)) == ([True], {"handed_back"})
    assert effects() == (["aprepare"] if phase == "aprepare" else [])


@pytest.mark.postgresql  # on SQLite the transaction on the only thread prevents all other writes
def test_waiting_for_a_thread_ends_with_the_cancellation(run_async, started, gate, settings, processors):
    """One attempt uses the only thread. Another one that waits for the thread is cancelled."""
    settings.JOBCHAINS = {"ASYNC_THREADS": 1}
    waiting = threading.Event()

    @processors.register("async.waiting", lease=Lease(FOR_EVER))
    async def waits(job):
        if job.input:
            waiting.set()
        await job.acomplete(lambda: None)

    async def holds(job):
        await job.acomplete(lambda: (started.set(), gate.wait(30)))

    chain = run_async(holds)
    cancelled = waits.enqueue(True)
    assert waiting.wait(15)
    chains.cancel(cancelled)
    until_status(cancelled, "cancelled")
    later = waits.enqueue(False)
    gate.set()
    until_status(chain, "completed")
    until_status(later, "completed")


def test_another_task_may_wait_for_the_signal(run_async, started):
    results = []

    async def listen(job):
        results.append(await job.signal.async_wait(0.01))
        started.set()
        results.append(await job.signal.async_wait(60))
        results.append(await job.signal.async_wait(60))

    async def handler(job):
        listening = asyncio.create_task(listen(job))
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(FOR_EVER)
        await listening

    chain = run_async(handler)
    chains.cancel(chain)
    until_status(chain, "completed")
    assert results == [False, True, True]
