"""ALTER TABLE changes the types of columns while workers run: every record is handled once, and nothing waits."""

import threading
from collections import Counter
from contextlib import contextmanager

import pytest
from django.db import NotSupportedError, connection, transaction

from django_jobchains.declare.registry import get_registry
from django_jobchains.models import FailedAttempt
from django_jobchains.processors import RunningJob
from django_jobchains.store import RecordEnd, get_store
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded
from django_jobchains.worker.threads import LOCK_SECONDS
from tests.records.models import Upload
from tests.records.test_locked_tables import CALLS as RECORD_CALLS
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@contextmanager
def altered(table, column, before, after):
    """Change the type of a column, and change it back at the end."""
    alter(table, column, after)
    try:
        yield
    finally:
        alter(table, column, before)


def alter(table, column, type_):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_}")


class Handler:
    """Waits, if a record asks for it, until the test opens the gate. Then it returns, or writes in ``complete()``."""

    def __init__(self):
        self.gate = threading.Event()
        self.calls = Counter()

    def __call__(self, record, run):
        self.calls[record.pk] += 1
        if record.size:
            self.gate.wait(60)
        if record.result == "completes":
            with run.complete():
                pass


CALLS = {
    **RECORD_CALLS,
    "end": lambda store, kind, table: store.records.end(table, [RecordEnd(1, 1, "completed")]),
    "write_logs": lambda store, kind, table: store.records.write_logs(table, (1, 1), list),
    "stalled": lambda store, kind, table: store.record_operations.stalled(table, 10, stalled_seconds=60),
    "cancel": lambda store, kind, table: store.record_operations.cancel(table, ("SELECT 1", [])),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_statement_that_was_prepared_before_is_prepared_again(register, name):
    register()
    store = get_store()
    [kind] = get_registry().record_types()
    table = kind.table(store.using)

    def call():
        Upload.objects.update_or_create(id=1, defaults={"state": "processing", "lease_number": 1})
        with store.db.waits_at_most(LOCK_SECONDS):
            CALLS[name](store, kind, table)

    call()
    with altered("records_upload", "id", "bigint", "integer"):
        call()
    call()


def test_a_transaction_begins_again_before_the_handler_writes(register):
    register()
    store = get_store()
    [kind] = get_registry().record_types()
    table = kind.table(store.using)
    locked = []

    def complete():
        with transaction.atomic():
            locked.append(store.records.lock(table, 1))
            return store.records.end(table, [RecordEnd(1, 1, "completed")])

    complete()
    with altered("records_upload", "id", "bigint", "integer"):
        Upload.objects.create(id=1, state="processing", lease_number=1)
        with pytest.raises(NotSupportedError, match="cached plan"):
            complete()
        assert len(locked) == 1
        assert complete() == {(1, 1): "completed"}


def are_completed():
    return not Upload.objects.exclude(state="completed").exists()


def states():
    return list(Upload.objects.values_list("pk", "state", "num_resets", "lease_number"))


@pytest.mark.parametrize(
    ("column", "before", "after"),
    [("state", "varchar(20)", "varchar(60)"), ("lease_number", "bigint", "integer"), ("id", "bigint", "integer")],
)
@pytest.mark.parametrize("result", ["returns", "completes"])
def test_records_that_run_meanwhile_are_handled_once(register, start_worker, events, result, column, before, after):
    handler = Handler()
    register(handler, heartbeat_every=0.1, poll_every=0.05)
    Upload.objects.bulk_create([Upload(result=result) for _ in range(8)])
    start_worker(slots=4, poll_seconds=0.05)
    until(are_completed)  # Now all connections have prepared their statements.
    Upload.objects.bulk_create([Upload(size=1, result=result) for _ in range(4)])
    until(lambda: Upload.objects.filter(state="processing").count() == 4)
    with altered("records_upload", column, before, after):
        handler.gate.set()
        until(are_completed, 20, what=states)
        Upload.objects.create(result=result)
        until(are_completed, 20, what=states)
    assert set(handler.calls.values()) == {1}
    assert not events.of(AttemptAbandoned)
    # A record that was to be loaded while the table was locked is handed back.
    assert {event.ending for event in events.of(AttemptEnded)} <= {"completed", "handed_back"}


def test_jobs_that_run_meanwhile_are_completed_once(processors, start_worker):
    gate = threading.Event()

    @processors.register("shop.note")
    def note(job: RunningJob[str]) -> None:
        if job.input != "first":
            gate.wait(60)
        if job.input == "completes":
            with job.complete():
                Effect.objects.create(job_id=job.id, label="written")

    start_worker(slots=2)
    for way in ("first", "completes"):
        gate.set()
        until_completed(note.enqueue(way))
    gate.clear()
    running = [note.enqueue("returns"), note.enqueue("completes")]
    until(lambda: all(chain.refresh().status == "running" for chain in running))
    with altered("django_jobchains_job", "crashes", "integer", "bigint"):
        gate.set()
        for chain in (*running, note.enqueue("completes")):
            until_completed(chain, 20)
    assert not FailedAttempt.objects.exists()
    assert Effect.objects.count() == 3
