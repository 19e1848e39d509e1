"""Errors outside of handlers: every dequeued record still ends, or is released and reset."""

import threading
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
from django.db import DataError, OperationalError
from django.db.models.signals import post_init

from django_jobchains.attempts.record_attempt import RecordAttempt, RecordEnvironment
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.records import RecordProcessor
from django_jobchains.store import get_store
from django_jobchains.telemetry.events import AttemptAbandoned, OutcomeDelayed
from django_jobchains.worker import records as worker_records
from django_jobchains.worker.held_leases import HeldRecords
from django_jobchains.worker.isolated import child_attempt
from django_jobchains.worker.records import RecordSource
from django_jobchains.worker.slots import Slots
from tests.records.conftest import refusing
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.support.databases import without_column
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

UNLUCKY = 13


def states():
    """Return the states of uploads by their sizes."""
    return dict(Upload.objects.values_list("size", "state"))


@contextmanager
def when_loaded(function):
    def receive(instance, **kwargs):
        if instance.state == "processing":
            function(instance)

    post_init.connect(receive, sender=Upload)
    try:
        yield
    finally:
        post_init.disconnect(receive, sender=Upload)


def fail_once(monkeypatch, owner, name, error):
    """Make the next call of a method fail."""
    method, errors = getattr(owner, name), [error]

    def call(*args, **kwargs):
        if errors:
            raise errors.pop()
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


# Between the dequeue and the start


def raising(error):
    def load(record):
        raise error

    return when_loaded(lambda record: load(record) if record.size == UNLUCKY else None)


def without_number(monkeypatch):
    """Let the failures of a record be a value that cannot be counted up."""
    return when_loaded(lambda record: setattr(record, "num_failures", None) if record.size == UNLUCKY else None)


def archived(monkeypatch):
    """Let a record leave the queryset before it is loaded."""

    def load(source, keys):
        Upload.objects.filter(size=UNLUCKY).update(result="archive")
        return records_of(source, keys)

    records_of = RecordSource._records
    monkeypatch.setattr(RecordSource, "_records", load)
    return nullcontext()


@pytest.mark.parametrize(
    ("happens", "state", "message"),
    [
        (lambda monkeypatch: raising(ValueError("no")), "errored", "ValueError: no"),
        (lambda monkeypatch: raising(SystemExit(3)), "errored", "SystemExit"),
        (lambda monkeypatch: raising(DataError("division by zero")), "errored", "division by zero"),
        (without_number, "errored", "TypeError"),
        (archived, "queued", None),
    ],
    ids=["error", "exit", "value", "number", "archived"],
)
def test_a_record_that_cannot_be_loaded_ends_alone(register, start_worker, monkeypatch, happens, state, message):
    register(queryset=Upload.objects.exclude(result="archive"), slots=4)
    Upload.objects.bulk_create([Upload(size=size) for size in (1, UNLUCKY, 3)])
    with happens(monkeypatch):
        start_worker(slots=4)
        until(lambda: states() == {1: "completed", UNLUCKY: state, 3: "completed"}, what=states)
    upload = Upload.objects.get(size=UNLUCKY)
    assert (upload.num_failures, upload.num_resets) == (state == "errored", 0)
    assert upload.failure_message == message or message in upload.failure_message


def test_records_are_handed_back_after_an_error_of_the_worker(register, start_worker, monkeypatch):
    register(slots=2)
    fail_once(monkeypatch, HeldRecords, "hold", MemoryError())
    Upload.objects.bulk_create([Upload(), Upload()])
    start_worker(poll_seconds=0.1)
    until(lambda: Upload.objects.filter(state="completed").count() == 2)


def test_a_missing_column_costs_the_backlog_no_attempt(register, start_worker, caplog):
    handled = []
    register(lambda record, run: handled.append(record.pk), queryset=Upload.objects.select_related("repository"))
    Upload.objects.bulk_create([Upload() for _ in range(30)])
    with without_column("records_repository", "priority"):
        start_worker(slots=4, poll_seconds=0.05)
        until(lambda: Upload.objects.filter(lease_number__gt=1, state="queued").exists(), what=states)
    until(lambda: Upload.objects.filter(state="completed").count() == 30, what=states)
    assert len(handled) == len(set(handled)) == 30
    assert not Upload.objects.exclude(num_failures=0, num_resets=0).exists()
    assert "Run 'manage.py migrate --database default'." in caplog.text


@pytest.mark.parametrize("is_deferred", [True, False])
def test_a_statement_that_fails_to_load_records_costs_them_no_attempt(register, start_worker, monkeypatch, is_deferred):
    """The first error makes the worker load the records one by one. The next error hands them back."""
    lost = OperationalError("the connection is lost")
    errors = [] if is_deferred else [ValueError("no"), None, lost]

    def load(record):
        if errors and (error := errors.pop(0)):
            raise error

    register(queryset=Upload.objects.only("size", "state") if is_deferred else Upload.objects.all(), slots=4)
    if is_deferred:
        fail_once(monkeypatch, Upload, "refresh_from_db", lost)
    Upload.objects.bulk_create([Upload(size=size) for size in range(4)])
    with when_loaded(load):
        start_worker(slots=4, poll_seconds=0.05)
        until(lambda: set(states().values()) == {"completed"}, what=states)
    assert not errors
    assert not Upload.objects.exclude(num_failures=0, num_resets=0).exists()


@pytest.mark.parametrize("change", ["archived", "renamed column"])
def test_a_child_process_hands_a_record_back_that_it_cannot_load(processors, register, change):
    register(queryset=Upload.objects.select_related("repository").exclude(result="archive"))
    upload = Upload.objects.create(state="processing", lease_number=1)
    with ExitStack() as stack:
        if change == "archived":
            Upload.objects.update(result="archive")
        else:
            stack.enter_context(without_column("records_repository", "priority"))
        environment = RecordEnvironment(processors.record_types["records.upload"], get_store(), print)
        ended = child_attempt._handle((upload.pk, 1), environment, AbortSignal())
    assert ended.is_handed_back
    assert ended.exception is not None


# In the threads of the worker


class Convert(RecordProcessor[Upload]):
    """A processor that does nothing."""

    def pre_dequeue(self):
        return True

    def handle(self, record, run): ...

    def post_handle(self, record): ...


async def ahandle(record, run): ...


@pytest.mark.usefixtures("quick_resets")
@pytest.mark.parametrize(
    ("handler", "owner", "step"),
    [
        (Convert, Slots, "put"),
        (Convert, RecordAttempt, "call_pre_handle"),
        (Convert, RecordAttempt, "handle"),
        (ahandle, RecordAttempt, "call_pre_handle"),
        (ahandle, RecordAttempt, "ahandle"),
    ],
)
def test_a_record_is_reset_after_an_error_of_its_slot_or_task(
    register, start_worker, monkeypatch, events, handler, owner, step
):
    register(handler, stalled_after=2, heartbeat_every=0.1, poll_every=0.05)
    fail_once(monkeypatch, owner, step, RuntimeError("a bug"))
    Upload.objects.create()
    start_worker(slots=1)
    until(lambda: Upload.objects.filter(state="completed", num_resets__gt=0).exists())
    assert "error" in {event.reason for event in events.of(AttemptAbandoned)}


def test_errors_of_the_hooks_thread_and_after_the_end_change_nothing(register, start_worker, monkeypatch, events):
    register(Convert, poll_every=0.05)
    fail_once(monkeypatch, worker_records, "condition_of", RuntimeError("a bug"))
    fail_once(monkeypatch, RecordAttempt, "call_post_handle", RuntimeError("a bug"))
    Upload.objects.bulk_create([Upload(), Upload()])
    start_worker(slots=1)
    until(lambda: Upload.objects.filter(state="completed").count() == 2)
    assert not events.of(AttemptAbandoned)


# At the end of the worker


def test_records_of_a_model_are_handed_back_although_those_of_another_cannot_be(processors, start_worker, monkeypatch):
    def both_states():
        return [Upload.objects.get().state, Letter.objects.get().status]

    started = threading.Barrier(3)

    def handle(record, run):
        started.wait(30)
        run.signal.wait(60)
        run.signal.raise_if_aborted()

    processors.records(Upload)(handle)
    processors.records(Letter, columns=LETTER_COLUMNS)(handle)
    Upload.objects.create()
    Letter.objects.create(code="a")
    worker = start_worker(slots=2)
    started.wait(30)
    end = worker.store.records.end

    def fail_for_uploads(table, ends, **options):
        if Upload._meta.db_table in table.name:
            raise OperationalError("refused")
        return end(table, ends, **options)

    monkeypatch.setattr(worker.store.records, "end", fail_for_uploads)
    worker.stop(timeout=0)
    until(lambda: both_states() == ["processing", "queued"], what=both_states)


# Ends that the database refuses: what can be written is written, and otherwise the record is released


SECRET = "hunter2hunter2hunter2hunter2hunter2"


def test_a_message_is_cut_to_its_column_without_secrets(handled):
    def send(letter, run):
        raise ValueError(f"{'x' * 225} password={SECRET} {'y' * 100}")

    letter = handled(send, {"columns": LETTER_COLUMNS}, Letter, code="a")
    assert (letter.status, letter.failures, len(letter.error)) == ("errored", 1, 255)
    assert SECRET[:6] not in letter.error


@pytest.mark.parametrize(
    ("condition", "fails", "message"),
    [("NEW.failure_message <> ''", True, ""), ("NEW.state = 'completed'", False, "refused")],
    ids=["message", "completion"],
)
def test_what_the_database_accepts_of_an_end_is_written(handled, condition, fails, message):
    def handle(record, run):
        if fails:
            raise ValueError("no")

    with refusing(condition):
        upload = handled(handle)
    assert (upload.state, upload.num_failures) == ("errored", 1)
    assert upload.failure_message == message or (message and message in upload.failure_message)


def test_an_end_waits_for_a_column_that_is_missing(register, start_worker, events):
    """As during a deployment. The handler is not called again."""
    attempts = []
    gate = threading.Event()

    def handle(record, run):
        attempts.append(run.attempt)
        gate.wait(30)

    register(handle, poll_every=0.05)
    Upload.objects.create()
    start_worker()
    until(lambda: attempts)
    with without_column("records_upload", "finished_at"):
        gate.set()
        until(lambda: events.of(OutcomeDelayed))
    until(lambda: Upload.objects.get().state == "completed")
    assert attempts == [1]


@pytest.mark.usefixtures("quick_resets")
def test_a_record_whose_end_is_refused_is_reset(register, start_worker, events):
    def handle(record, run):
        if run.attempt == 1:
            raise ValueError("no")

    register(handle, stalled_after=2, heartbeat_every=0.1, poll_every=0.05)
    Upload.objects.create()
    with refusing("NEW.state = 'errored'"):
        start_worker()
        until(lambda: Upload.objects.filter(state="completed", num_resets__gt=0).exists())
    assert "error" in {event.reason for event in events.of(AttemptAbandoned)}
