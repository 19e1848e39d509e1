"""On PostgreSQL the lock of an attempt is sent together with BEGIN, where that makes no visible difference."""

from contextlib import nullcontext

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel, pq

from django_jobchains.store.postgresql import wire
from tests.support.connections import committing, holding
from tests.support.jobs import finished, running, running_job, stored

pytestmark = [committing, pytest.mark.postgresql]


@pytest.fixture
def raw(store):
    connection.ensure_connection()
    connection.connection.commit()
    return connection.connection


def status(raw):
    return pq.TransactionStatus(raw.pgconn.transaction_status)


def test_lock_outside_of_a_transaction_begins_none(store, raw):
    job = running_job(store)
    assert store.attempts.lock(job.id) == ("running", job.lease_number)
    assert status(raw) is pq.TransactionStatus.IDLE


def test_transaction_can_be_rolled_back(store):
    job = running_job(store)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        store.attempts.lock(job.id)
        assert store.attempts.finish([finished(job)], is_locked=True) == {job.key}
        raise ZeroDivisionError
    assert stored(job).status == "running"


def test_atomic_object_that_is_used_twice_opens_two_transactions(store):
    """A decorator is used repeatedly. The second use must not assume the transaction of the first."""
    job = running_job(store)
    connection.close()
    atomic = transaction.atomic()
    with atomic:
        store.attempts.lock(job.id)
    with pytest.raises(ZeroDivisionError), atomic:
        assert store.attempts.finish([finished(job)]) == {job.key}
        raise ZeroDivisionError
    assert stored(job).status == "running"


def test_savepoints_and_hooks_work_as_in_django(store):
    job, other = running(store, 2)
    statuses = []
    with transaction.atomic():
        store.attempts.lock(job.id)
        transaction.on_commit(lambda: statuses.append(stored(job).status))
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            store.attempts.finish([finished(other)])
            raise ZeroDivisionError
        store.attempts.finish([finished(job)], is_locked=True)
        assert not statuses
    assert statuses == ["completed"]
    assert stored(other).status == "running"


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_isolation_level_of_the_project_is_kept(store, raw, level):
    job = running_job(store)
    raw.isolation_level = level
    try:
        with transaction.atomic():
            store.attempts.lock(job.id)
            with connection.cursor() as cursor:
                cursor.execute("SHOW transaction_isolation")
                assert cursor.fetchone() == (level.name.lower().replace("_", " "),)
    finally:
        raw.isolation_level = None


@pytest.mark.parametrize("pooled", [False, True])
def test_execute_wrapper_is_called_for_every_statement(store, monkeypatch, pooled):
    job = running_job(store)
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", pooled)
    with CaptureQueriesContext(connection) if not pooled else nullcontext() as seen, transaction.atomic():
        store.attempts.lock(job.id)
        store.attempts.finish([finished(job)], is_locked=True)
    assert not pooled or not prepared()
    assert seen is None or [query["sql"].split()[0] for query in seen] == ["BEGIN", "SELECT", "UPDATE", "COMMIT"]


def test_if_the_driver_prepares_statements_it_also_prepares_those_of_the_store(store):
    """The driver may deallocate all prepared statements."""
    with transaction.atomic():
        job = running_job(store)
    with transaction.atomic():
        store.attempts.lock(job.id)
        store.attempts.finish([finished(job)], is_locked=True)
    assert prepared()
    assert not [name for name in prepared() if name.startswith("jobchains")]


def prepared():
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return [name for (name,) in cursor.fetchall()]


def test_lock_that_times_out_leaves_no_transaction_open(store, raw):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    raw.execute("SET lock_timeout = '20ms'")
    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        store.attempts.lock(job.id)
    assert status(raw) is pq.TransactionStatus.IDLE
    raw.execute("RESET lock_timeout")
    holder.go_on()
    holder.result()
    with transaction.atomic():
        store.attempts.lock(job.id)
        assert store.attempts.finish([finished(job)], is_locked=True) == {job.key}
    assert stored(job).status == "completed"


def test_number_of_prepared_statements_is_limited(store, monkeypatch):
    """Slow statements are prepared again under new names."""
    jobs = running(store, 25)
    connection.close()
    monkeypatch.setattr(wire, "MAX_PREPARED", 20)
    for number, job in enumerate(jobs):
        monkeypatch.setattr(store.db, "_plan_generation", number)
        with transaction.atomic():
            store.attempts.lock(job.id)
            store.attempts.finish([finished(job)], is_locked=True)
    assert 0 < len([name for name in prepared() if name.startswith("jobchains")]) <= 20
