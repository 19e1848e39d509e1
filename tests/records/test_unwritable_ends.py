"""Ends of attempts that the database refuses: what can be written is written, and otherwise the record is released."""

import threading
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection

from django_jobchains.attempts.record_attempt import EndedRecord
from django_jobchains.store import RecordEnd, get_store
from django_jobchains.telemetry.events import AttemptAbandoned, OutcomeDelayed
from django_jobchains.worker import end_writer
from django_jobchains.worker.end_writer import MAX_WAIT_SECONDS, EndWriter
from django_jobchains.worker.record_ends import RecordSink
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.store.test_retries import DriverError
from tests.support.clocks import Clock
from tests.support.waiting import until
from tests.support.workers import context_for

pytestmark = pytest.mark.django_db(transaction=True)

#: The actions of a trigger that refuses, on SQLite and on PostgreSQL.
ABORT = "BEGIN SELECT RAISE(ABORT, 'refused'); END"
RAISE = "BEGIN RAISE EXCEPTION ''refused''; END"
CALL = "EXECUTE FUNCTION refuse()"
SECRET = "hunter2hunter2hunter2hunter2hunter2"


@contextmanager
def refusing(condition):
    """Let a trigger refuse updates of uploads that meet a condition."""
    if connection.vendor == "sqlite":
        begin = [f"CREATE TRIGGER refuse BEFORE UPDATE ON records_upload WHEN {condition} {ABORT}"]
        end = ["DROP TRIGGER refuse"]
    else:
        begin = [
            f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '{RAISE}'",
            f"CREATE TRIGGER refuse BEFORE UPDATE ON records_upload FOR EACH ROW WHEN ({condition}) {CALL}",
        ]
        end = ["DROP TRIGGER refuse ON records_upload", "DROP FUNCTION refuse"]
    execute(begin)
    try:
        yield
    finally:
        execute(end)


def execute(statements):
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def run(make_worker):
    make_worker(poll_seconds=0.05).run_until_idle(timeout=20)


def test_a_message_is_cut_to_its_column_without_secrets(processors, make_worker):
    @processors.records(Letter, columns=LETTER_COLUMNS)
    def send(letter, run):
        raise ValueError(f"{'x' * 225} password={SECRET} {'y' * 100}")

    Letter.objects.create(code="a")
    run(make_worker)
    letter = Letter.objects.get()
    assert (letter.status, letter.failures, len(letter.error)) == ("errored", 1, 255)
    assert SECRET[:6] not in letter.error


def test_an_error_is_written_without_a_message_that_is_refused(register, make_worker):
    def handle(record, run):
        raise ValueError("no")

    register(handle)
    Upload.objects.create()
    with refusing("NEW.failure_message <> ''"):
        run(make_worker)
    upload = Upload.objects.get()
    assert (upload.state, upload.num_failures, upload.failure_message) == ("errored", 1, "")


def test_a_completion_that_is_refused_is_an_error(register, make_worker):
    register()
    Upload.objects.create()
    with refusing("NEW.state = 'completed'"):
        run(make_worker)
    upload = Upload.objects.get()
    assert (upload.state, "refused" in (upload.failure_message or "")) == ("errored", True)


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
    execute(["ALTER TABLE records_upload RENAME COLUMN finished_at TO ended_at"])
    try:
        gate.set()
        until(lambda: events.of(OutcomeDelayed))
    finally:
        execute(["ALTER TABLE records_upload RENAME COLUMN ended_at TO finished_at"])
    until(lambda: Upload.objects.get().state == "completed")
    assert attempts == [1]


def test_a_record_whose_end_is_refused_is_reset(register, start_worker, settings, events):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05, "BACKOFF_INITIAL_SECONDS": 0.05, "BACKOFF_JITTER": 0}

    def handle(record, run):
        if run.attempt == 1:
            raise ValueError("no")

    register(handle, stalled_after=2, heartbeat_every=0.1, poll_every=0.05)
    Upload.objects.create()
    with refusing("NEW.state = 'errored'"):
        start_worker()
        until(lambda: Upload.objects.filter(state="completed", num_resets__gt=0).exists())
    assert "error" in {event.reason for event in events.of(AttemptAbandoned)}


class Failing:
    """A writer whose database answers every end with the same error, at the times of a clock."""

    def __init__(self, processors, monkeypatch, sqlstate):
        store = get_store()
        self.clock, self._sqlstate = Clock(), sqlstate
        self.tried_at = set()
        monkeypatch.setattr(store.records, "end", self._fail)
        monkeypatch.setattr(end_writer, "time", self.clock)
        processors.records(Upload)(lambda record, run: None)
        [kind] = processors.record_types.values()
        context = context_for(store, records=processors.record_types)
        self.writer = EndWriter(context, RecordSink(context))
        self.writer.put(EndedRecord(kind, (1, 1), 1, RecordEnd(1, 1, "completed")))

    def _fail(self, *args):
        self.tried_at.add(self.clock.now)
        error = DriverError(self._sqlstate)
        raise OperationalError(str(error)) from error

    def try_for(self, seconds):
        for _ in range(20 * seconds):
            self.writer.interrupt()
            self.writer.step()
            self.clock.forward(0.05)


@pytest.mark.parametrize("sqlstate", ["40001", "55P03"])
def test_the_waits_after_conflicts_and_locks_grow_and_are_reported(processors, monkeypatch, events, sqlstate):
    failing = Failing(processors, monkeypatch, sqlstate)
    failing.try_for(30)
    *_, before, last = sorted(failing.tried_at)
    assert not failing.writer.is_idle
    assert len(failing.tried_at) < 40
    assert last - before == pytest.approx(MAX_WAIT_SECONDS, abs=0.1)
    [delayed] = events.of(OutcomeDelayed)
    assert (delayed.job_id, delayed.kind, delayed.error) == ("1", "record", "OperationalError: conflict")


def test_an_end_that_always_exceeds_a_time_limit_is_not_tried_for_ever(processors, monkeypatch):
    failing = Failing(processors, monkeypatch, "57014")
    failing.try_for(30)
    assert failing.writer.is_idle
