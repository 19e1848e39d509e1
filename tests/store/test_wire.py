"""Statements have the same results whether the store or the driver prepares them, or Django's cursor sends them."""

import math
import os
import signal
import time
from contextlib import nullcontext
from threading import Thread

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from django_jobchains.db import connections, libpq
from django_jobchains.db.ids import new_id
from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store.postgresql import dialect, wire
from django_jobchains.testing.contracts.concurrency import DEADLINE_SECONDS
from tests.support.connections import committing, holding
from tests.support.jobs import (
    claim,
    create,
    expire,
    failed_try,
    finished,
    lease,
    lost,
    new_job,
    next_job,
    running,
    running_job,
    stored,
)

pytestmark = [committing, pytest.mark.postgresql]


@pytest.fixture(params=["driver", "django", "pooled"])
def _cursor(request):
    """The cursor that the store uses. Behind a transaction pooler nothing is prepared either."""
    connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = request.param == "pooled"
    watched = connection.execute_wrapper(lambda execute, *args: execute(*args))
    with watched if request.param == "django" else nullcontext():
        yield
    connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = False


with_every_cursor = pytest.mark.usefixtures("_cursor")


@with_every_cursor
def test_jobs_can_be_created_claimed_and_ended(store):
    ids = create(store, 3, input='{"a": [1, 2.5, "ü"]}')
    jobs = claim(store)
    assert [(job.id, job.input, job.attempt) for job in jobs] == [(id_, '{"a": [1, 2.5, "ü"]}', 1) for id_ in ids]
    assert store.attempts.lock(ids[0]) == ("running", 1)
    assert store.leases.renew([lease(job) for job in jobs]) == lost({})
    assert store.attempts.hand_back([jobs[0].key]) == {jobs[0].key}
    assert store.attempts.finish([finished(jobs[1], None, next_job(jobs[1]))]) == {jobs[1].key}
    expire(jobs[2])
    reaped = (jobs[2].id, jobs[2].chain_id, jobs[2].type_name, 1, "pending", 1, "default")
    assert store.leases.reap(10, Backoff(), 10) == [reaped]
    assert store.jobs.next_due({jobs[0].type_name: 60}) <= 0
    [again, _continuation] = claim(store)
    assert store.attempts.fail([failed_try(again, error="%s %% {}")]) == {again.key: "failed"}
    assert stored(again).last_error == "%s %% {}"
    assert Job.objects.count() == 4
    assert FailedAttempt.objects.count() == 2


@with_every_cursor
def test_errors_are_database_errors_of_django_and_leave_the_connection_usable(store):
    [job_id] = create(store)
    with pytest.raises(DuplicateJobId) as caught:
        store.jobs.create([new_job(id=job_id)])
    assert isinstance(caught.value.__cause__, DatabaseError)
    assert len(claim(store)) == 1


@with_every_cursor
def test_closed_connection_is_opened_again(store):
    create(store)
    connection.close()
    assert len(claim(store)) == 1


@pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_statement_that_is_no_longer_prepared_is_prepared_again(store, statement):
    create(store)
    with connection.cursor() as cursor:
        cursor.execute(statement)
    create(store)
    assert len(claim(store, 2)) == 2


def test_statements_of_two_connections_have_one_name_only_if_they_are_equal(store):
    """A pooler may pass a session on to another client."""
    connection.close()
    create(store)
    first = prepared()
    connection.close()
    claim(store)
    create(store)
    second = prepared()
    assert first
    assert set(second.values()) > set(first.values())
    assert all(second.get(name, text) == text for name, text in first.items())


def prepared():
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, statement FROM pg_prepared_statements")
        return dict(cursor.fetchall())


def test_statements_in_autocommit_leave_those_of_attempts_prepared(store):
    """If the driver prepared them, it could deallocate the statements of attempts: see ``Direct.is_alone``."""
    connection.close()
    job = running_job(store)
    with transaction.atomic():
        store.attempts.lock(job.id)
        assert store.db.can_commit


def test_error_of_a_commit_is_raised(store):
    """The server sends the error after the rows of the statement."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE numbers (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(IntegrityError):
        store.db.fetch("INSERT INTO numbers VALUES (1), (%s) RETURNING n", ["1"])
    assert store.db.fetch("SELECT count(*) FROM numbers", []) == [(0,)]


def test_signal_interrupts_a_statement_that_waits(store):
    [job_id] = create(store)
    lock = f"SELECT 1 FROM {Job._meta.db_table} WHERE id = %s FOR UPDATE"
    holder = holding(lambda other: other.db.fetch(lock, [job_id.hex]))
    raw = connection.connection
    interrupter = Thread(target=interrupt_when_blocked, args=[raw.info.backend_pid])
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        store.db.fetch(lock, [job_id.hex])
    interrupter.join()
    holder.go_on()
    holder.result()
    assert raw.info.transaction_status is TransactionStatus.IDLE
    assert len(claim(store)) == 1


def interrupt_when_blocked(pid):
    try:
        with connection.cursor() as cursor:
            for _ in range(int(DEADLINE_SECONDS * 100)):
                cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
                if cursor.fetchone() == (True,):
                    break
                time.sleep(0.01)
    finally:
        connection.close()
        os.kill(os.getpid(), signal.SIGINT)


def test_prepare_threshold_of_the_connection_is_not_changed(store):
    create(store)
    threshold = connection.connection.prepare_threshold
    claim(store)
    assert connection.connection.prepare_threshold == threshold


# A lock that is sent together with BEGIN makes no visible difference


@pytest.fixture
def raw(store):
    connection.ensure_connection()
    connection.connection.commit()
    return connection.connection


def test_lock_outside_of_a_transaction_begins_none(store, raw):
    job = running_job(store)
    assert store.attempts.lock(job.id) == ("running", job.lease_number)
    assert raw.info.transaction_status is TransactionStatus.IDLE


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


@pytest.mark.parametrize("how", ["wrapped", "logged", "pooled"])
def test_every_statement_can_be_watched_and_is_not_prepared_behind_a_pooler(store, monkeypatch, settings, how):
    job = running_job(store)
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", how == "pooled")
    settings.DEBUG = how == "logged"
    connection.queries_log.clear()
    with CaptureQueriesContext(connection) if how == "wrapped" else nullcontext(), transaction.atomic():
        store.attempts.lock(job.id)
        store.attempts.finish([finished(job)], is_locked=True)
    seen = [query["sql"].split()[0] for query in connection.queries_log if "jobchains" in query["sql"]]
    assert seen == ([] if how == "pooled" else ["SELECT", "UPDATE"])
    assert how != "pooled" or not prepared()


def test_nothing_is_prepared_behind_a_pooler_that_the_settings_do_not_mention(store, monkeypatch, caplog):
    job = running_job(store)
    connection.close()
    execute = libpq.execute
    monkeypatch.setattr(libpq, "execute", lambda raw, sql: execute(raw, sql.replace("pg_backend_pid()", "1")))
    monkeypatch.setattr(connections, "_pooled", {})
    with transaction.atomic():
        store.attempts.lock(job.id)
        store.attempts.finish([finished(job)], is_locked=True)
    assert not prepared()
    (record,) = caplog.records
    assert "'default' is reached through a pooler" in record.getMessage()


def test_if_the_driver_prepares_statements_it_also_prepares_those_of_the_store(store):
    """The driver may deallocate all prepared statements."""
    with transaction.atomic():
        job = running_job(store)
    with transaction.atomic():
        store.attempts.lock(job.id)
        store.attempts.finish([finished(job)], is_locked=True)
    assert prepared()
    assert not any(name.startswith("jobchains") for name in prepared())


def test_lock_that_times_out_leaves_no_transaction_open(store, raw):
    job = running_job(store)
    holder = holding(lambda store: store.attempts.lock(job.id))
    raw.execute("SET lock_timeout = '20ms'")
    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        store.attempts.lock(job.id)
    assert raw.info.transaction_status is TransactionStatus.IDLE
    raw.execute("RESET lock_timeout")
    holder.go_on()
    holder.result()
    with transaction.atomic():
        store.attempts.lock(job.id)
        assert store.attempts.finish([finished(job)], is_locked=True) == {job.key}
    assert stored(job).status == "completed"


def test_slow_statements_are_not_prepared_at_each_call(store, monkeypatch):
    """Where the network is slow, preparing them takes long too."""
    monkeypatch.setattr(dialect, "SLOW_SECONDS", 0)
    monkeypatch.setattr(dialect, "PLAN_SECONDS", 10**9)
    monkeypatch.setattr(store.db, "_slow_at", -math.inf)
    connection.close()
    for _ in range(5):
        assert store.jobs.state_of(new_id()) is None
    assert len([name for name in prepared() if name.startswith("jobchains")]) == 2


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
