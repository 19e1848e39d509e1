"""Records in a worker: how attempts end, what handlers may call, and what is logged."""

import json
import threading
from datetime import timedelta
from functools import partial

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.utils import timezone

from django_jobchains import records, testing
from django_jobchains.exceptions import PhaseError
from django_jobchains.processors import RescheduleJob
from django_jobchains.records import NonRetryable, RecordLost, RecordProcessor, RecordRun, Requeue
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded
from tests.records.models import Repository, Upload

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


def state_of(upload):
    upload.refresh_from_db()
    return upload.state


def test_a_record_is_handled_as_the_queryset_has_it(register, make_worker):
    seen = []
    register(
        lambda record, run: seen.append((record.pk, record.state, record.lease_number, record.repository.name)),
        queryset=Upload.objects.select_related("repository"),
        order_by=["-repository__priority", "id"],
    )
    low, high = Repository.objects.create(name="low"), Repository.objects.create(name="high", priority=1)
    made = [Upload.objects.create(repository=repository) for repository in (low, high, low)]
    make_worker(slots=1).run_until_idle(timeout=20)
    order = [made[1], made[0], made[2]]
    assert seen == [(each.pk, "processing", 1, each.repository.name) for each in order]
    assert {state_of(each) for each in made} == {"completed"}


def wrapped(cause):
    error = ValueError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (ValueError("no\0 way"), "errored", "ValueError: no\ufffd way"),
        (KeyError(), "errored", "KeyError"),
        (SystemExit(3), "errored", "SystemExit: 3"),
        (NonRetryable("gone"), "failed", "NonRetryable: gone"),
        (wrapped(NonRetryable("gone")), "failed", "ValueError: wrapped"),
    ],
)
def test_an_error_is_stored(handled, events, error, state, message):
    def handle(record, run):
        raise error

    upload = handled(handle)
    assert (upload.state, upload.failure_message, upload.num_failures) == (state, message, 1)
    [event] = events.of(AttemptEnded)
    assert (event.ending, event.job_id, event.type_name, event.attempt) == (state, str(upload.pk), "records.upload", 1)


def test_errored_records_are_tried_again_until_they_fail(handled):
    attempts = []

    def handle(record, run):
        attempts.append(run.attempt)
        raise ValueError(f"attempt {run.attempt}")

    upload = handled(handle, {"retry_after": 0, "max_attempts": 3})
    assert (attempts, upload.state, upload.failure_message) == ([1, 2, 3], "failed", "ValueError: attempt 3")


def test_the_wait_before_another_attempt_at_a_failed_record_is_unknown(handled, events):
    def handle(record, run):
        if run.attempt == 1:
            raise ValueError("no")

    handled(handle, {"retry_after": 0}, queued_at=timezone.now() - HOUR)
    first, second = (event.wait_seconds for event in events.of(AttemptEnded))
    assert HOUR.total_seconds() <= first < 2 * HOUR.total_seconds()
    assert second is None


def _requeue_in_complete(run):
    with run.complete():
        run.requeue()


def _raise(error):
    raise error


@pytest.mark.parametrize(
    "requeue",
    [
        RecordRun.requeue,
        _requeue_in_complete,
        lambda run: _raise(Requeue()),
        lambda run: _raise(RescheduleJob(delay=0)),
    ],
    ids=["requeue", "complete", "Requeue", "RescheduleJob"],
)
def test_a_request_to_cancel_outlives_a_requeue(handled, events, requeue):
    def handle(record, run):
        assert records.cancel(record) == 1
        requeue(run)

    upload = handled(handle)
    assert (upload.state, upload.cancel, upload.num_failures) == ("cancelled", True, 0)
    assert upload.finished_at is not None
    assert [(event.ending, event.attempt) for event in events.of(AttemptEnded)] == [("cancelled", 1)]


def test_a_delay_counts_from_the_databases_clock(register):
    """Middleware that serves jobs and records raises ``RescheduleJob``."""

    def handle(record, run):
        raise RescheduleJob(delay="1m")

    register(handle)
    Upload.objects.create()
    with testing.clock() as clock:
        clock.advance("1d")
        [outcome] = testing.run_due_jobs()
    assert outcome.ending == "requeued"
    assert outcome.record.process_after - outcome.record.queued_at == timedelta(minutes=1)


AFTER = timezone.now() + HOUR


def _requeue_with_writes(run):
    with run.complete():
        Repository.objects.create(name="made")
    run.requeue(after=AFTER)


@pytest.mark.parametrize(
    "requeue",
    [lambda run: run.requeue(after=AFTER), lambda run: _raise(Requeue(after=AFTER)), _requeue_with_writes],
    ids=["requeue", "Requeue", "after complete"],
)
def test_a_handler_may_queue_its_record_again(handled, requeue):
    upload = handled(lambda record, run: requeue(run))
    assert (upload.state, upload.process_after, upload.num_failures) == ("queued", AFTER, 0)
    assert Repository.objects.exists() == (requeue is _requeue_with_writes)


def _coroutine():
    """Return what an ``async def`` handler returns under a decorator that is made for plain functions."""

    async def handle(): ...

    coroutine = handle()
    coroutine.close()
    return coroutine


@pytest.mark.parametrize("result", [_coroutine, lambda: Requeue(after=AFTER), lambda: False])
def test_a_handler_must_not_return_a_result(handled, result):
    upload = handled(lambda record, run: result())
    assert upload.state == "errored"
    assert upload.failure_message.startswith("PhaseError: The handler of a record must return None, not ")


def test_an_error_after_a_requeue_is_the_attempts_error(handled):
    upload = handled(lambda record, run: (run.requeue(), _raise(ValueError("no"))))
    assert upload.state == "errored"


# run.complete()


def test_hooks_of_the_commit_see_the_new_state(handled):
    inside = []

    def handle(record, run):
        with run.complete():
            transaction.on_commit(lambda: inside.append(Upload.objects.get().state))

    assert (handled(handle).state, inside) == ("completed", ["completed"])


def test_a_lost_record_cannot_be_completed(handled, events):
    errors = []

    def handle(record, run):
        Upload.objects.update(lease_number=7)
        for write in (
            lambda: run.add_log("key", "ls"),
            lambda: Repository.objects.create(name=str(run.complete().__enter__())),
        ):
            try:
                write()
            except RecordLost as error:
                errors.append(error)

    upload = handled(handle)
    assert [error.reason for error in errors if isinstance(error, RecordLost)] == ["taken_by_another_worker"] * 2
    assert (upload.state, upload.lease_number) == ("processing", 7)
    assert not Repository.objects.exists()
    assert [event.type_name for event in events.of(AttemptAbandoned)] == ["records.upload"]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.delete(),
        lambda record: Upload.objects.update(state="completed"),
        lambda record: records.requeue(record),
    ],
    ids=["delete", "state", "requeue"],
)
def test_a_handler_must_not_end_its_record_inside_complete(handled, change):
    def handle(record, run):
        with run.complete():
            change(record)

    upload = handled(handle)
    assert (upload.state, upload.num_failures) == ("errored", 1)
    assert "PhaseError: The handler changed the state" in upload.failure_message


# Logs


def test_logs_are_stored_at_once_and_can_be_updated(handled):
    stored = []

    def handle(record, run):
        run.add_log("first", "ls -l", out="a\ud800", exit_code=0)
        entry = run.add_log("second", ["convert", "a b"])
        stored.extend(Upload.objects.get().execution_logs)
        entry.update(out="done", exit_code=2)

    upload = handled(handle, execution_logs=[{"key": "of another attempt"}])
    first, second = upload.execution_logs
    assert stored[0] == first
    assert list(first) == sorted(first, key=list(first).index)
    assert first.keys() == {"key", "command", "start_time", "exit_code", "out", "duration_ms"}
    assert (first["key"], first["command"], first["out"], first["exit_code"]) == ("first", "ls -l", "a\ufffd", 0)
    assert (second["command"], second["out"], second["exit_code"]) == (["convert", "a b"], "done", 2)
    assert (stored[1]["exit_code"], stored[1]["duration_ms"]) == (None, None)
    assert second["duration_ms"] >= 0
    json.dumps(first)


def test_a_wrong_exit_code_is_refused_and_later_logs_are_stored(handled):
    def handle(record, run):
        for log in (partial(run.add_log, "first", "ls"), run.add_log("second", "ls").update):
            with pytest.raises(TypeError, match="neither an int nor None"):
                log(exit_code=b"0")
        run.add_log("third", "ls", exit_code=0)

    upload = handled(handle)
    assert [(entry["key"], entry["exit_code"]) for entry in upload.execution_logs] == [("second", None), ("third", 0)]


def test_a_record_that_its_queryset_hides_once_it_is_processed_is_queued_again(handled, caplog):
    upload = handled(lambda record, run: None, {"queryset": Upload.objects.filter(state="queued")})
    assert (upload.state, upload.num_failures, upload.failure_message) == ("queued", 0, None)
    assert "the queryset depends on columns that workers change" in caplog.text


def test_a_handler_that_deletes_its_record_just_ends(handled, events):
    assert handled(lambda record, run: record.delete()) is None
    assert [event.reason for event in events.of(AttemptAbandoned)] == ["not_found"]


def test_a_cancelled_record_never_starts(handled, register):
    seen = []
    register(lambda record, run: seen.append(record))
    first = Upload.objects.create()
    assert records.cancel(Upload.objects.filter(pk=first.pk)) == 1
    assert handled(cancel=True).state == state_of(first) == "cancelled"
    assert seen == []


# Async handlers: they run on the event loop of the worker, and their hooks and writes on threads


LOOP = "jobchains-event-loop"


def test_hooks_run_on_other_threads_and_in_their_order(handled):
    steps = []

    def step(name):
        steps.append((name, threading.current_thread().name == LOOP))

    class Convert(RecordProcessor[Upload]):
        def pre_handle(self, record):
            Repository.objects.create(name="pre")
            step("pre")

        async def handle(self, record, run):
            step("handle")

        def post_handle(self, record):
            step(f"post {Upload.objects.get().state}")

    handled(Convert)
    assert steps == [("pre", False), ("handle", True), ("post completed", False)]


def test_logs_are_stored_without_blocking_the_loop(handled):
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

    upload = handled(handle)
    assert errors == [SynchronousOnlyOperation, SynchronousOnlyOperation, PhaseError]
    assert upload.state == "completed"
    assert [(entry["key"], entry["out"]) for entry in upload.execution_logs][-2:] == [("write", ""), ("last", "")]


@pytest.mark.filterwarnings("ignore:coroutine 'AsyncCalls.call' was never awaited")
def test_a_transaction_that_is_not_awaited_is_an_error(handled):
    async def handle(record, run):
        run.acomplete(lambda: None)

    assert "await them" in handled(handle).failure_message


def test_the_async_methods_are_refused_in_plain_handlers(handled):
    upload = handled(lambda record, run: run.aadd_log("convert", "").send(None))
    assert (upload.state, "leave out the first 'a'" in upload.failure_message) == ("errored", True)
