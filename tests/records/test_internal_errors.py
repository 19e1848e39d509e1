"""Errors outside of handlers: every dequeued record still ends, or is released and reset."""

import threading
from contextlib import ExitStack, contextmanager

import pytest
from django.db import OperationalError, ProgrammingError, connection
from django.db.models import F, Value
from django.db.models.signals import post_init

from django_jobchains.attempts.record_attempt import RecordAttempt, RecordEnvironment
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.records import RecordProcessor
from django_jobchains.store import get_store
from django_jobchains.telemetry.events import AttemptAbandoned
from django_jobchains.worker import records as worker_records
from django_jobchains.worker.held_leases import HeldRecords
from django_jobchains.worker.isolated import child_attempt
from django_jobchains.worker.records import RecordSource
from django_jobchains.worker.slots import Slots
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.store.test_retries import DriverError
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


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_a_record_that_cannot_be_loaded_errors_alone(register, start_worker, error):
    def load(record):
        if record.size == UNLUCKY:
            raise error

    register(slots=4)
    Upload.objects.bulk_create([Upload(size=size) for size in (1, UNLUCKY, 3)])
    with when_loaded(load):
        start_worker(slots=4)
        until(lambda: states() == {1: "completed", UNLUCKY: "errored", 3: "completed"}, what=states)
    assert type(error).__name__ in (Upload.objects.get(size=UNLUCKY).failure_message or "")


def test_a_record_whose_counts_cannot_be_read_errors_alone(register, start_worker):
    def load(record):
        if record.size == UNLUCKY:
            record.num_failures = None

    register(slots=4)
    Upload.objects.bulk_create([Upload(size=size) for size in (1, UNLUCKY, 3)])
    with when_loaded(load):
        start_worker(slots=4)
        until(lambda: states() == {1: "completed", UNLUCKY: "errored", 3: "completed"}, what=states)
    assert "TypeError" in (Upload.objects.get(size=UNLUCKY).failure_message or "")


def test_records_are_handed_back_after_an_error_of_the_worker(register, start_worker, monkeypatch):
    register(slots=2)
    fail_once(monkeypatch, HeldRecords, "hold", MemoryError())
    Upload.objects.bulk_create([Upload(), Upload()])
    start_worker(poll_seconds=0.1)
    until(lambda: Upload.objects.filter(state="completed").count() == 2)


@pytest.mark.parametrize("loads_counts", [True, False])
def test_records_are_handed_back_if_the_connection_is_lost_while_they_are_loaded(
    register, start_worker, monkeypatch, loads_counts
):
    """The first error makes the worker load them one by one."""
    errors = [OperationalError("the connection is lost"), None, ValueError("no")]

    def load(record):
        if errors and (error := errors.pop()):
            raise error

    queryset = Upload.objects.all() if loads_counts else Upload.objects.only("size", "state")
    register(queryset=queryset, slots=4)
    if not loads_counts:
        errors[:] = []
        fail_once(monkeypatch, Upload, "refresh_from_db", OperationalError("the connection is lost"))
    Upload.objects.bulk_create([Upload(size=size) for size in range(4)])
    with when_loaded(load):
        start_worker(slots=4, poll_seconds=0.1)
        until(lambda: set(states().values()) == {"completed"}, what=states)
    assert not errors
    assert not Upload.objects.exclude(num_failures=0, num_resets=0).exists()


@contextmanager
def renamed_column():
    """Let a column be missing of a table that the queryset of uploads reads, as before a migration."""
    execute("ALTER TABLE records_repository RENAME COLUMN priority TO later")
    try:
        yield
    finally:
        execute("ALTER TABLE records_repository RENAME COLUMN later TO priority")


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_missing_column_costs_the_backlog_no_attempt(register, start_worker, caplog):
    handled = []
    register(lambda record, run: handled.append(record.pk), queryset=Upload.objects.select_related("repository"))
    Upload.objects.bulk_create([Upload() for _ in range(30)])
    with renamed_column():
        start_worker(slots=4, poll_seconds=0.05)
        until(lambda: Upload.objects.filter(lease_number__gt=1, state="queued").exists(), what=states)
    until(lambda: Upload.objects.filter(state="completed").count() == 30, what=states)
    assert len(handled) == len(set(handled)) == 30
    assert not Upload.objects.exclude(num_failures=0, num_resets=0).exists()
    assert "Run 'manage.py migrate --database default'." in caplog.text


@pytest.mark.parametrize("loads_counts", [True, False])
@pytest.mark.parametrize(
    ("error_class", "sqlstate"),
    [(OperationalError, "57014"), (OperationalError, "40001"), (ProgrammingError, "42501")],
)
def test_a_statement_that_fails_to_load_records_costs_them_no_attempt(
    register, start_worker, monkeypatch, error_class, sqlstate, loads_counts
):
    """It reached a time limit, conflicted with another transaction, or is not permitted."""
    error = error_class("refused")
    error.__cause__ = DriverError(sqlstate)
    errors = [error, error] if loads_counts else []

    def load(record):
        if errors:
            raise errors.pop()

    queryset = Upload.objects.all() if loads_counts else Upload.objects.only("size", "state")
    register(queryset=queryset, slots=4)
    if not loads_counts:
        fail_once(monkeypatch, Upload, "refresh_from_db", error)
    Upload.objects.bulk_create([Upload(size=size) for size in range(4)])
    with when_loaded(load):
        start_worker(slots=4, poll_seconds=0.05)
        until(lambda: set(states().values()) == {"completed"}, what=states)
    assert not Upload.objects.exclude(num_failures=0, num_resets=0).exists()


@pytest.mark.postgresql
def test_a_value_that_cannot_be_computed_errors_its_record_alone(register, start_worker):
    register(queryset=Upload.objects.annotate(share=Value(100) / F("size")), slots=4)
    Upload.objects.bulk_create([Upload(size=size) for size in (1, 0, 3)])
    start_worker(slots=4)
    until(lambda: states() == {1: "completed", 0: "errored", 3: "completed"}, what=states)
    assert "division by zero" in (Upload.objects.get(size=0).failure_message or "")


def test_records_that_leave_the_queryset_before_they_are_loaded_are_queued_again(register, start_worker, monkeypatch):
    def load(source, keys):
        Upload.objects.filter(size=UNLUCKY).update(result="archive")
        return records_of(source, keys)

    records_of = RecordSource._records
    monkeypatch.setattr(RecordSource, "_records", load)
    register(queryset=Upload.objects.exclude(result="archive"), slots=4)
    Upload.objects.bulk_create([Upload(size=size) for size in (1, UNLUCKY, 3)])
    start_worker(slots=4)
    until(lambda: states() == {1: "completed", UNLUCKY: "queued", 3: "completed"}, what=states)
    assert not Upload.objects.exclude(num_failures=0, num_resets=0).exists()


@pytest.mark.parametrize("change", ["archived", "renamed column"])
def test_a_child_process_hands_a_record_back_that_it_cannot_load(processors, register, change):
    register(queryset=Upload.objects.select_related("repository").exclude(result="archive"))
    upload = Upload.objects.create(state="processing", lease_number=1)
    with ExitStack() as stack:
        if change == "archived":
            Upload.objects.update(result="archive")
        else:
            stack.enter_context(renamed_column())
        environment = RecordEnvironment(processors.record_types["records.upload"], get_store(), print)
        ended = child_attempt._handle((upload.pk, 1), environment, AbortSignal())
    assert ended.is_handed_back
    assert ended.exception is not None


# In the thread of pre_dequeue


def test_pre_dequeue_is_called_again_after_an_error_of_its_thread(processors, start_worker, monkeypatch):
    @processors.records(Upload, poll_every=0.05)
    class Convert(RecordProcessor[Upload]):
        def pre_dequeue(self):
            return True

        def handle(self, record, run): ...

    fail_once(monkeypatch, worker_records, "condition_of", RuntimeError("a bug"))
    Upload.objects.create()
    start_worker()
    until(lambda: Upload.objects.get().state == "completed")


# In the slots


@pytest.mark.parametrize(
    ("owner", "step"), [(Slots, "put"), (RecordAttempt, "call_pre_handle"), (RecordAttempt, "handle")]
)
def test_a_record_is_reset_after_an_error_of_its_slot(
    processors, start_worker, monkeypatch, settings, events, owner, step
):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05, "BACKOFF_INITIAL_SECONDS": 0.05, "BACKOFF_JITTER": 0}

    @processors.records(Upload, stalled_after=2, heartbeat_every=0.1, poll_every=0.05)
    class Convert(RecordProcessor[Upload]):
        def pre_dequeue(self):
            return True

        def handle(self, record, run): ...

    fail_once(monkeypatch, owner, step, RuntimeError("a bug"))
    Upload.objects.create()
    start_worker(slots=1)
    until(lambda: Upload.objects.filter(state="completed", num_resets__gt=0).exists())
    assert "error" in {event.reason for event in events.of(AttemptAbandoned)}


@pytest.mark.parametrize("step", ["call_pre_handle", "ahandle"])
def test_a_record_is_reset_after_an_error_of_its_task(register, start_worker, monkeypatch, settings, events, step):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05, "BACKOFF_INITIAL_SECONDS": 0.05, "BACKOFF_JITTER": 0}

    async def handle(record, run): ...

    register(handle, stalled_after=2, heartbeat_every=0.1, poll_every=0.05)
    fail_once(monkeypatch, RecordAttempt, step, RuntimeError("a bug"))
    Upload.objects.create()
    start_worker()
    until(lambda: Upload.objects.filter(state="completed", num_resets__gt=0).exists())
    assert "error" in {event.reason for event in events.of(AttemptAbandoned)}


def test_an_error_after_the_end_changes_nothing(processors, start_worker, monkeypatch, events):
    @processors.records(Upload, poll_every=0.05)
    class Convert(RecordProcessor[Upload]):
        def handle(self, record, run): ...

        def post_handle(self, record): ...

    fail_once(monkeypatch, RecordAttempt, "call_post_handle", RuntimeError("a bug"))
    Upload.objects.bulk_create([Upload(), Upload()])
    start_worker(slots=1)
    until(lambda: Upload.objects.filter(state="completed").count() == 2)
    assert not events.of(AttemptAbandoned)


# At the end of the worker


@pytest.mark.parametrize("refused", [Upload, Letter])
def test_records_of_a_model_are_handed_back_although_those_of_another_cannot_be(
    processors, start_worker, monkeypatch, refused
):
    def both_states():
        """Return the states of the refused model and of the other one."""
        both = [Upload.objects.get().state, Letter.objects.get().status]
        return both if refused is Upload else both[::-1]

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

    def fail_for_one(table, ends, **options):
        if refused._meta.db_table in table.name:
            raise OperationalError("refused")
        return end(table, ends, **options)

    monkeypatch.setattr(worker.store.records, "end", fail_for_one)
    worker.stop(timeout=0)
    until(lambda: both_states() == ["processing", "queued"], what=both_states)
