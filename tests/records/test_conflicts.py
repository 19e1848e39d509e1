"""Above READ COMMITTED, a conflict in the statements that lock or complete a record costs no attempt."""

from contextlib import suppress
from threading import Event, Thread
from uuid import uuid4

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created

from django_jobchains.attempts import record_attempt
from tests.batches.test_locked_rows import is_a_session_waiting
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.attempts import on_own_connection
from tests.support.waiting import until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def level():
    return "serializable"


@pytest.fixture(autouse=True)
def _isolated(level):
    """Let new connections, such as those of a worker, use the isolation level of the test."""

    def set_level(connection, **kwargs):
        with connection.cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation TO '{level}'")

    connection_created.connect(set_level)
    yield
    connection_created.disconnect(set_level)


def conflict():
    """Read the upload that the handler's transaction is about to complete, and write what the handler has read."""
    with transaction.atomic():
        Upload.objects.get()
        Effect.objects.create(job_id=uuid4(), label="conflicts")


def stored():
    upload = Upload.objects.get()
    return upload.state, upload.num_failures, upload.num_resets, upload.lease_number


def complete(record, run):
    with run.complete():
        write(record, run)


async def acomplete(record, run):
    await run.acomplete(lambda: write(record, run))


def write(record, run):
    Effect.objects.create(job_id=uuid4(), label=f"written after {Effect.objects.count()}")
    if record.lease_number <= 3:
        on_own_connection(conflict)


@pytest.mark.parametrize("handle", [complete, acomplete])
def test_a_conflict_while_completing_costs_no_attempt(register, start_worker, handle):
    register(handle)
    Upload.objects.create()
    start_worker(poll_seconds=0.05)
    until(lambda: stored() == ("completed", 0, 0, 4), what=stored)
    assert Effect.objects.filter(label__startswith="written").count() == 1


def test_a_record_that_conflicts_repeatedly_errors(register, start_worker, monkeypatch):
    monkeypatch.setattr(record_attempt, "MAX_CONFLICTS", 3)
    register(complete)
    Upload.objects.create()
    start_worker(poll_seconds=0.05)
    until(lambda: stored() == ("errored", 1, 0, 3), what=stored)
    assert "could not serialize access" in (Upload.objects.get().failure_message or "")
    assert not Effect.objects.filter(label__startswith="written").exists()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_conflict_while_locking_costs_no_attempt(register, start_worker):
    """The lock conflicts with a transaction that writes the row, and its retry with another one."""
    is_written, is_done = Event(), Event()

    def handle(record, run):
        if record.lease_number == 1:
            Thread(target=on_own_connection, args=[write_while_awaited]).start()
            assert is_written.wait(10)
        with run.complete():
            is_done.set()

    def is_awaited():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
        return is_a_session_waiting() or is_done.is_set()

    def write_while_awaited():
        for _ in range(2):
            # If the retry is faster than the second transaction, it is this one that conflicts.
            with suppress(OperationalError), transaction.atomic():
                Upload.objects.update(size=1)
                is_written.set()
                until(is_awaited)

    register(handle)
    Upload.objects.create()
    start_worker(poll_seconds=0.05)
    until(lambda: Upload.objects.filter(state="completed").exists(), what=stored)
    assert stored()[1:3] == (0, 0)


def test_a_conflict_in_the_handlers_own_statement_is_an_error(register, start_worker):
    def handle(record, run):
        with run.complete():
            Effect.objects.count()
            on_own_connection(lambda: Effect.objects.update(label="changed"))
            Effect.objects.update(label="conflicts")

    Effect.objects.create(job_id=uuid4(), label="old")
    register(handle)
    Upload.objects.create()
    start_worker(poll_seconds=0.05)
    until(lambda: stored()[:2] == ("errored", 1), what=stored)
