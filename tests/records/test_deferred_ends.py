"""A worker stops while another transaction locks the row of a record that has ended: no handler is called twice."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone

from django_jobchains.models import DeferredWrite
from django_jobchains.records import NonRetryable
from django_jobchains.store import get_store
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.store.records import Records
from django_jobchains.worker.caretakers import RecordResetter
from django_jobchains.worker.end_writer import EndWriter
from tests.records.conftest import Waiting, refusing
from tests.records.models import LETTER_COLUMNS, Export, Letter, Upload
from tests.records.test_internal_errors import states
from tests.store.test_retries import DriverError
from tests.support.connections import holding
from tests.support.waiting import until
from tests.support.workers import context_for

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick_resets"),
]

LATER = datetime(2100, 1, 1, tzinfo=UTC)


class Ending(Waiting):
    """A handler that waits for the test, and then ends in one of several ways."""

    def __init__(self, way):
        super().__init__(heeds=False)
        self.way = way

    def __call__(self, record, run):
        super().__call__(record, run)
        if self.way == "fail":
            raise NonRetryable("no such file")
        if self.way == "requeue":
            run.requeue(after=LATER)


def stop_while_locked(worker, handler, model):
    """Stop a worker that cannot write the end of an attempt. Return what holds the lock."""
    handler.until_started()
    locker = holding(lambda store: list(model.objects.select_for_update(no_key=True)))
    handler.released.set()
    until(lambda: worker.running == 0)
    worker.stop(timeout=0)
    return locker


@pytest.mark.parametrize(
    ("way", "state", "message", "process_after", "model"),
    [
        ("return", "completed", None, None, Export),
        ("fail", "failed", "NonRetryable: no such file", None, Upload),
        ("requeue", "queued", None, LATER, Upload),
    ],
)
def test_another_worker_writes_the_end(processors, start_worker, model, way, state, message, process_after):
    handler = Ending(way)
    processors.records(model, poll_every=0.05, stalled_after=2)(handler)
    model.objects.create()
    locker = stop_while_locked(start_worker(), handler, model)
    stored = model.objects.get()
    assert (stored.state, DeferredWrite.objects.count()) == ("processing", 1)
    locker.result()
    start_worker()
    until(lambda: not DeferredWrite.objects.exists(), what=lambda: vars(model.objects.get()))
    stored = model.objects.get()
    assert (stored.state, stored.failure_message, stored.process_after) == (state, message, process_after)
    assert (stored.num_resets, stored.lease_number, len(handler.runs)) == (0, 1, 1)


def test_the_keys_and_columns_may_have_any_name_and_type(processors, start_worker):
    handler = Ending("return")
    processors.records(Letter, columns=LETTER_COLUMNS, poll_every=0.05)(handler)
    Letter.objects.create(code='it\'s {1}, "a"')
    stop_while_locked(start_worker(), handler, Letter).result()
    start_worker()
    until(lambda: Letter.objects.get().status == "completed")
    assert (len(handler.runs), DeferredWrite.objects.count()) == (1, 0)


def test_a_handler_that_holds_its_row_is_handed_back_later(register, start_worker):
    """Its transaction ends with its process, after the worker has stopped."""
    calls = []
    completing, gate = threading.Event(), threading.Event()

    def handle(record, run):
        calls.append(run.attempt)
        if record.lease_number == 1:
            with run.complete(), transaction.atomic():
                completing.set()
                gate.wait(60)
                raise ValueError("undone")

    register(handle, poll_every=0.05)
    Upload.objects.create()
    worker = start_worker()
    assert completing.wait(30)
    assert worker.stop(timeout=0) == 1
    assert DeferredWrite.objects.get().outcome["kind"] == "handed_back"
    gate.set()
    start_worker()
    until(lambda: Upload.objects.filter(state="completed").exists(), what=lambda: vars(Upload.objects.get()))
    upload = Upload.objects.get()
    assert (upload.num_failures, upload.num_resets, upload.lease_number, calls) == (0, 0, 2, [1, 1])


def test_a_refused_end_does_not_affect_the_others(register, start_worker, monkeypatch):
    register(poll_every=0.05, max_attempts=3)
    uploads = Upload.objects.bulk_create([Upload(size=size) for size in (1, 13, 3)])
    with monkeypatch.context() as patched, refusing("NEW.state = 'completed' AND NEW.size = 13"):
        patched.setattr(EndWriter, "_write", lambda *args: None)  # A writer that is late.
        # Its own maintenance could write what it has stored.
        patched.setattr(type(get_store().deferred), "apply_records", lambda *args: [])
        worker = start_worker(slots=4)
        until(lambda: len(worker.components.records.writer.pending()) == len(uploads))
        patched.setattr("django_jobchains.worker.shutdown.STEP_SECONDS", 0.5)
        worker.stop(timeout=0)
        assert (states()[1], states()[3]) == ("completed", "completed")
        patched.undo()
        start_worker()
        until(lambda: states()[13] == "errored", what=states)
    assert (Upload.objects.get(size=13).num_failures, DeferredWrite.objects.count()) == (1, 0)


def test_a_record_whose_end_is_stored_is_not_reset(processors, register, monkeypatch):
    """Its end cannot be written yet, although the row is not locked."""

    def conflict(*args, **options):
        raise OperationalError("conflict") from DriverError("55P03")

    register(stalled_after=1, heartbeat_every=0.1)
    [kind], store = processors.record_types.values(), get_store()
    beaten_at = timezone.now() - timedelta(hours=1)
    upload = Upload.objects.create(state="processing", last_heartbeat_at=beaten_at, lease_number=1)
    store.deferred.defer_records(kind.table(store.using), [RecordEnd(upload.pk, 1, "completed")])
    resetter = RecordResetter(context_for(store))
    monkeypatch.setattr(resetter._tables[0], "_grace_seconds", 0)
    with monkeypatch.context() as patched:
        patched.setattr(Records, "end", conflict)
        resetter.step()
        resetter.step()
    assert Upload.objects.get().state == "processing"
    resetter.step()
    assert (Upload.objects.get().state, DeferredWrite.objects.count()) == ("completed", 0)
