"""Async handlers of records: they run on the event loop of the worker, and their hooks and writes on threads."""

import asyncio
import threading

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction

from django_jobchains import testing
from django_jobchains.exceptions import PhaseError
from django_jobchains.records import RecordProcessor
from django_jobchains.telemetry.events import AttemptStuck
from tests.records.models import Repository, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

LOOP = "jobchains-event-loop"


def run(make_worker):
    make_worker(poll_seconds=0.05).run_until_idle(timeout=30)


def state_of(upload):
    upload.refresh_from_db()
    return upload.state


def test_handlers_run_at_once_on_the_event_loop(register, make_worker):
    names = set()
    together = 0
    everyone = asyncio.Event()

    async def handle(record, run):
        nonlocal together
        names.add(threading.current_thread().name)
        together += 1
        if together == 20:
            everyone.set()
        async with asyncio.timeout(20):
            await everyone.wait()

    register(handle)
    Upload.objects.bulk_create([Upload() for _ in range(20)])
    make_worker(slots=1, poll_seconds=0.05).run_until_idle(timeout=30)
    assert set(Upload.objects.values_list("state", flat=True)) == {"completed"}
    assert names == {LOOP}


def test_hooks_run_on_other_threads_and_in_their_order(processors, make_worker):
    steps = []

    def step(name):
        steps.append((name, threading.current_thread().name == LOOP))

    @processors.records(Upload)
    class Convert(RecordProcessor[Upload]):
        def pre_handle(self, record):
            Repository.objects.create(name="pre")
            step("pre")

        async def handle(self, record, run):
            step("handle")

        def post_handle(self, record):
            step(f"post {Upload.objects.get().state}")

    Upload.objects.create()
    run(make_worker)
    assert steps == [("pre", False), ("handle", True), ("post completed", False)]


@pytest.mark.parametrize("fails", [False, True])
def test_writes_commit_with_the_state(register, make_worker, fails):
    async def handle(record, run):
        made = await run.acomplete(lambda: Repository.objects.create(name="written"))
        assert made.name == "written"
        if fails:
            raise ValueError("after the write")

    register(handle)
    upload = Upload.objects.create()
    run(make_worker)
    assert state_of(upload) == ("errored" if fails else "completed")
    assert Repository.objects.exists() is not fails


def test_logs_are_stored_without_blocking_the_loop(register, make_worker):
    errors = []

    async def handle(record, run):
        entry = await run.aadd_log("convert", ["convert", "a.tif"])
        await entry.aupdate(out="done", exit_code=0)
        for blocking in (lambda: run.add_log("convert", ""), entry.update, lambda: run.complete().__enter__()):
            try:
                blocking()
            except (SynchronousOnlyOperation, PhaseError) as error:
                errors.append(type(error))
        await run.acomplete(lambda: run.add_log("write", ""))
        await run.aadd_log("last", "")  # in the open transaction, which has locked the row

    register(handle)
    upload = Upload.objects.create()
    run(make_worker)
    assert errors == [SynchronousOnlyOperation, SynchronousOnlyOperation, PhaseError]
    assert state_of(upload) == "completed"
    assert [(entry["key"], entry["out"]) for entry in upload.execution_logs][-2:] == [("write", ""), ("last", "")]


def test_the_async_methods_are_refused_in_plain_handlers(register, make_worker):
    def handle(record, run):
        run.aadd_log("convert", "").send(None)

    register(handle)
    upload = Upload.objects.create()
    run(make_worker)
    assert state_of(upload) == "errored"
    assert "leave out the first 'a'" in (upload.failure_message or "")


def test_a_canceled_record_cancels_its_task(register, start_worker):
    started, reasons = threading.Event(), []

    async def handle(record, run):
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(run.signal.reason)

    register(handle, heartbeat_every=0.05)
    upload = Upload.objects.create()
    start_worker()
    assert started.wait(15)
    Upload.objects.update(cancel=True)
    until(lambda: state_of(upload) == "canceled")
    assert reasons == ["cancelled"]


def test_a_handler_that_runs_too_long_errors(register, start_worker):
    register(sleep_long, max_runtime=0.05)
    upload = Upload.objects.create()
    start_worker()
    until(lambda: state_of(upload) == "errored")
    assert (upload.failure_message or "").startswith("The handler exceeded max_runtime (0.05 s).")


async def sleep_long(record, run):
    await asyncio.sleep(60)


def test_a_handler_that_ignores_its_cancellation_loses_its_slot(register, start_worker, settings, events):
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.1}
    released = threading.Event()

    async def handle(record, run):
        while not released.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    register(handle, max_runtime=0.05)
    upload = Upload.objects.create()
    start_worker()
    until(lambda: events.of(AttemptStuck))
    until(lambda: state_of(upload) == "errored")
    released.set()


def test_a_stopping_worker_hands_the_record_back(register, start_worker):
    started = threading.Event()

    async def handle(record, run):
        started.set()
        await asyncio.sleep(60)

    register(handle)
    upload = Upload.objects.create()
    worker = start_worker()
    assert started.wait(15)
    worker.stop(timeout=0)
    until(lambda: state_of(upload) == "queued")
    assert (upload.num_failures, upload.num_resets) == (0, 0)


def test_a_locked_row_is_waited_for_without_a_thread(register, start_worker, settings):
    if connection.vendor == "sqlite":
        pytest.skip("one transaction writes at a time")
    settings.JOBCHAINS = {"ASYNC_THREADS": 1}
    is_locked = threading.Event()

    async def handle(record, run):
        while not is_locked.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        await run.acomplete(lambda: None)

    register(handle)
    locked, free = Upload.objects.create(), Upload.objects.create()
    start_worker()
    until(lambda: Upload.objects.filter(state="processing").count() == 2)
    with transaction.atomic():
        Upload.objects.select_for_update().get(pk=locked.pk)
        is_locked.set()
        until(lambda: state_of(free) == "completed")
        assert state_of(locked) == "processing"
    until(lambda: state_of(locked) == "completed")


def test_the_testing_kit_runs_async_handlers(register):
    async def handle(record, run):
        await run.acomplete(lambda: Repository.objects.create(name="written"))

    register(handle)
    Upload.objects.create()
    [outcome] = testing.run_due_jobs(raise_errors=True)
    assert outcome.ending == "completed"
    assert Repository.objects.exists()
