"""While a migration of the project locks or alters a table, workers serve all other models and jobs."""

import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import NotSupportedError, OperationalError, connection, transaction
from django.utils import timezone

from django_jobchains import chains, records
from django_jobchains.attempts.record_attempt import RecordEnvironment
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.monitoring import record_overview
from django_jobchains.records.operations import RecordQuerySet
from django_jobchains.store import get_store
from django_jobchains.store.errors import is_lock_timeout
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded
from django_jobchains.worker.isolated import child_attempt
from django_jobchains.worker.threads import LOCK_SECONDS
from tests.records.conftest import Waiting
from tests.records.models import Export, Repository, Upload
from tests.records.test_retries import CALLS
from tests.support.connections import Actor, holding
from tests.support.waiting import until

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
]

#: The locks of CREATE INDEX and of ALTER TABLE.
both_locks = pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
HOUR = timedelta(hours=1)


def lock(mode, model=Upload):
    """Lock the table of a model in another transaction, until ``result()`` is called."""
    return holding(lambda store: store.db.execute(f"LOCK TABLE {model._meta.db_table} IN {mode} MODE", []))


@pytest.mark.parametrize(
    "name",
    [
        "records.dequeue",
        "records.beat",
        "records.check",
        "records.state_of",
        "records.count_by_state",
        "record_operations.cancel_flagged",
    ],
)
def test_the_statements_of_a_workers_threads_wait_only_briefly(kind, name):
    lock("ACCESS EXCLUSIVE")

    def call(store):
        with store.db.waits_at_most(LOCK_SECONDS):
            CALLS[name](store, kind.table(store.using), (1, 1))

    with pytest.raises(OperationalError) as caught:
        Actor(call).start().result()
    assert is_lock_timeout(caught.value)


def in_state(model, state):
    return model.objects.filter(state=state).count()


@both_locks
def test_other_models_and_jobs_are_served(processors, start_worker, mode):
    note = processors.register("shop.note")(lambda job: None)
    processors.records(Upload, poll_every=0.02)(lambda record, run: None)
    processors.records(Export, poll_every=0.02)(lambda record, run: None)
    Upload.objects.create()
    locker = lock(mode)
    start_worker(poll_seconds=0.05)
    for _ in range(3):
        Export.objects.create()
        chains.wait(note.enqueue(), 15)
    until(lambda: in_state(Export, "completed") == 3)
    locker.result()
    until(lambda: in_state(Upload, "completed") == 1)


@both_locks
def test_other_models_keep_their_heartbeats_and_the_locked_one_keeps_its_records(
    processors, start_worker, settings, mode
):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05}
    handler = Waiting()
    for model in (Upload, Export):
        model.objects.create()
        processors.records(model, poll_every=0.02, stalled_after=30, heartbeat_every=0.1)(handler)
    start_worker()
    until(lambda: in_state(Upload, "processing") == in_state(Export, "processing") == 1)
    locker = lock(mode)
    for _ in range(5):
        before = Export.objects.get().last_heartbeat_at
        until(lambda before=before: Export.objects.get().last_heartbeat_at != before)
    locker.result()
    before = Upload.objects.get().last_heartbeat_at
    until(lambda: Upload.objects.get().last_heartbeat_at != before)
    handler.released.set()
    until(lambda: in_state(Upload, "completed") == in_state(Export, "completed") == 1)
    assert handler.reasons == [None, None]


def test_the_records_of_other_models_are_counted(processors):
    for model in (Upload, Export):
        processors.records(model)(lambda record, run: None)
        model.objects.create()
    lock("ACCESS EXCLUSIVE")
    assert [(kind.problem, kind.due) for kind in record_overview()] == [("", 1), ("locked", 0)]


def test_the_age_of_records_is_read_in_the_transaction_that_counts_them(kind, monkeypatch):
    """So it waits only briefly for a lock, too."""
    found = []
    read = RecordQuerySet.max_duration_in_queue
    monkeypatch.setattr(
        RecordQuerySet, "max_duration_in_queue", lambda rows: found.append(connection.in_atomic_block) or read(rows)
    )
    Upload.objects.create()
    record_overview()
    assert found == [True]


def test_records_whose_related_table_is_locked_are_handed_back(processors, start_worker):
    note = processors.register("shop.note")(lambda job: None)
    uploads = Upload.objects.select_related("repository")
    processors.records(Upload, queryset=uploads, poll_every=600)(lambda record, run: None)
    upload = Upload.objects.create(repository=Repository.objects.create())
    locker = lock("ACCESS EXCLUSIVE", Repository)
    start_worker(poll_seconds=0.05)
    until(lambda: Upload.objects.filter(lease_number__gt=0, state="queued").exists())
    for _ in range(5):
        chains.wait(note.enqueue(), 60)
    # The worker also queries when its listener has connected. All other queries wait for poll_every.
    assert Upload.objects.get().lease_number <= 2
    locker.result()
    records.notify(Upload)
    until(lambda: in_state(Upload, "completed") == 1)
    upload.refresh_from_db()
    assert (upload.num_failures, upload.num_resets) == (0, 0)


def test_a_child_process_that_cannot_read_its_record_hands_it_back(kind):
    upload = Upload.objects.create(state="processing", lease_number=1)
    lock("ACCESS EXCLUSIVE")
    ended = child_attempt._handle((upload.pk, 1), RecordEnvironment(kind, get_store(), print), AbortSignal())
    assert (ended.end and ended.end.kind) == "handed_back"


@pytest.mark.usefixtures("quick_resets")
def test_stalled_records_of_other_models_are_reset(processors, start_worker):
    for model in (Upload, Export):
        processors.records(model, stalled_after=1)(lambda record, run: None)
        model.objects.create(state="processing", last_heartbeat_at=timezone.now() - HOUR, lease_number=1)
        model.objects.create(cancel=True)
    locker = lock("SHARE")
    start_worker(types=["records.export"])
    until(lambda: Export.objects.filter(num_resets__gt=0).exists() and in_state(Export, "cancelled"))
    locker.result()
    until(lambda: Upload.objects.filter(num_resets__gt=0).exists() and in_state(Upload, "cancelled"))


# ALTER TABLE changes the types of columns: every record is handled once


@contextmanager
def altered(table, column, before, after):
    """Change the type of a column, and change it back at the end."""
    alter = f"ALTER TABLE {table} ALTER COLUMN {column} TYPE"
    with connection.cursor() as cursor:
        cursor.execute(f"{alter} {after}")
        try:
            yield
        finally:
            cursor.execute(f"{alter} {before}")


@pytest.mark.parametrize("name", CALLS)
def test_a_statement_that_was_prepared_before_is_prepared_again(kind, name):
    store, table = get_store(), kind.table("default")

    def call():
        Upload.objects.update_or_create(id=1, defaults={"state": "processing", "lease_number": 1})
        with store.db.waits_at_most(LOCK_SECONDS):
            CALLS[name](store, table, (1, 1))

    call()
    with altered("records_upload", "id", "bigint", "integer"):
        call()
    call()


def test_a_transaction_begins_again_before_the_handler_writes(kind):
    store, table = get_store(), kind.table("default")
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
    gate, calls = threading.Event(), Counter()

    def handle(record, run):
        calls[record.pk] += 1
        if record.size:
            gate.wait(60)
        if record.result == "completes":
            with run.complete():
                pass

    register(handle, heartbeat_every=0.1, poll_every=0.05)
    Upload.objects.bulk_create([Upload(result=result) for _ in range(8)])
    start_worker(slots=4, poll_seconds=0.05)
    until(are_completed)  # Now all connections have prepared their statements.
    Upload.objects.bulk_create([Upload(size=1, result=result) for _ in range(4)])
    until(lambda: Upload.objects.filter(state="processing").count() == 4)
    with altered("records_upload", column, before, after):
        gate.set()
        until(are_completed, 20, what=states)
        Upload.objects.create(result=result)
        until(are_completed, 20, what=states)
    assert set(calls.values()) == {1}
    assert not events.of(AttemptAbandoned)
    # A record that was to be loaded while the table was locked is returned to the queue.
    assert {event.ending for event in events.of(AttemptEnded)} <= {"completed", "handed_back"}
