"""The lock of an attempt begins its transaction on PostgreSQL, and only where nobody would notice a difference."""

from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel, pq

from django_jobchains.store import Store
from tests.store.connections import committing, holding
from tests.store.jobs import finished, running, running_job, stored

pytestmark = [committing, pytest.mark.postgresql]


@pytest.fixture
def raw(store: Store) -> "psycopg.Connection[Any]":
    connection.ensure_connection()
    connection.connection.commit()
    return connection.connection  # type: ignore[no-any-return]


def status(raw: "psycopg.Connection[Any]") -> pq.TransactionStatus:
    return pq.TransactionStatus(raw.pgconn.transaction_status)


def test_without_a_transaction_none_is_begun(store: Store, raw: "psycopg.Connection[Any]") -> None:
    job = running_job(store)
    assert store.lock(job.id) == ("running", job.lease_number)
    assert status(raw) is pq.TransactionStatus.IDLE


def test_what_is_rolled_back_was_begun(store: Store) -> None:
    job = running_job(store)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        store.lock(job.id)
        assert store.finish([finished(job)], is_locked=True) == {job.key}
        raise ZeroDivisionError
    assert stored(job).status == "running"


def test_an_atomic_object_that_is_used_twice_opens_two_transactions(store: Store) -> None:
    """As a decorator is: the transaction of its first use is over in the second."""
    job = running_job(store)
    connection.close()
    atomic = transaction.atomic()
    with atomic:
        store.lock(job.id)
    with pytest.raises(ZeroDivisionError), atomic:
        assert store.finish([finished(job)]) == {job.key}
        raise ZeroDivisionError
    assert stored(job).status == "running"


def test_savepoints_and_hooks_are_djangos(store: Store) -> None:
    job, other = running(store, 2)
    heard: list[str] = []
    with transaction.atomic():
        store.lock(job.id)
        transaction.on_commit(lambda: heard.append(stored(job).status))
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            store.finish([finished(other)])
            raise ZeroDivisionError
        store.finish([finished(job)], is_locked=True)
        assert not heard
    assert heard == ["completed"]
    assert stored(other).status == "running"


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_level_that_the_project_asks_for_is_kept(
    store: Store, raw: "psycopg.Connection[Any]", level: IsolationLevel
) -> None:
    job = running_job(store)
    raw.isolation_level = level
    try:
        with transaction.atomic():
            store.lock(job.id)
            with connection.cursor() as cursor:
                cursor.execute("SHOW transaction_isolation")
                assert cursor.fetchone() == (level.name.lower().replace("_", " "),)
    finally:
        raw.isolation_level = None


@pytest.mark.parametrize("pooled", [False, True])
def test_who_watches_sees_every_statement(store: Store, monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    job = running_job(store)
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", pooled)
    with CaptureQueriesContext(connection) if not pooled else nullcontext() as seen, transaction.atomic():
        store.lock(job.id)
        store.finish([finished(job)], is_locked=True)
    assert not pooled or not prepared()
    assert seen is None or [query["sql"].split()[0] for query in seen] == ["BEGIN", "SELECT", "UPDATE", "COMMIT"]


def test_where_the_driver_has_prepared_statements_ours_are_its_own(store: Store) -> None:
    """It may give up all that there are."""
    job = running_job(store)
    with transaction.atomic():
        store.lock(job.id)
        store.finish([finished(job)], is_locked=True)
    assert prepared()
    assert not [name for name in prepared() if name.startswith("jobchains")]


def prepared() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return [name for (name,) in cursor.fetchall()]


def test_a_lock_that_is_refused_leaves_nothing_open(store: Store, raw: "psycopg.Connection[Any]") -> None:
    job = running_job(store)
    holder = holding(lambda store: store.lock(job.id))
    raw.execute("SET lock_timeout = '20ms'")
    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        store.lock(job.id)
    assert status(raw) is pq.TransactionStatus.IDLE
    raw.execute("RESET lock_timeout")
    holder.go_on()
    holder.result()
    with transaction.atomic():
        store.lock(job.id)
        assert store.finish([finished(job)], is_locked=True) == {job.key}
    assert stored(job).status == "completed"


def test_few_statements_stay_prepared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their plans are made anew now and then, under new names."""
    jobs = running(store, 25)
    connection.close()
    for number, job in enumerate(jobs):
        monkeypatch.setattr(store, "_slow_statements", number)
        with transaction.atomic():
            store.lock(job.id)
            store.finish([finished(job)], is_locked=True)
    assert 0 < len([name for name in prepared() if name.startswith("jobchains")]) <= 20
