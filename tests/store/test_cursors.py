"""On PostgreSQL, statements that the driver prepares and statements on Django's cursor have the same results."""

import os
import signal
import time
from contextlib import nullcontext
from threading import Thread

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus

from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import FailedAttempt, Job
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


def wrapped():
    return connection.execute_wrapper(lambda execute, *args: execute(*args))


@pytest.fixture(params=["driver", "django", "pooled"])
def _cursor(request):
    """The cursor that the store uses. Behind a transaction pooler nothing is prepared either."""
    connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = request.param == "pooled"
    with wrapped() if request.param == "django" else nullcontext():
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
    assert store.leases.reap(10, Backoff(), 10) == [(jobs[2].id, jobs[2].chain_id, jobs[2].type_name, 1, "pending", 1)]
    assert store.jobs.next_due({jobs[0].type_name: 60}) <= 0
    [again, _continuation] = claim(store)
    assert store.attempts.fail([failed_try(again, error="%s %% {}")]) == {again.key: "failed"}
    assert stored(again).last_error == "%s %% {}"
    assert Job.objects.count() == 4
    assert FailedAttempt.objects.count() == 2


@with_every_cursor
def test_statements_can_be_repeated(store):
    for _ in range(12):  # PostgreSQL uses a generic plan from the sixth time on
        [job] = running(store)
        assert store.attempts.finish([finished(job)]) == {job.key}
    assert claim(store) == []


@with_every_cursor
def test_errors_are_database_errors_of_django_and_leave_the_connection_usable(store):
    [job_id] = create(store)
    with pytest.raises(DuplicateJobId) as caught:
        store.jobs.create([new_job(id=job_id)])
    assert isinstance(caught.value.__cause__, DatabaseError)
    assert len(claim(store)) == 1


@with_every_cursor
def test_broken_transaction_is_reported(store):
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            create(store)


@with_every_cursor
def test_rollback_discards_the_writes(store):
    [job] = running(store)
    with transaction.atomic():
        store.attempts.finish([finished(job)])
        transaction.set_rollback(True)
    assert stored(job).status == "running"


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


@pytest.mark.parametrize("call", ["wrapped", "logged"])
def test_execute_wrapper_is_called_for_statements_of_the_store(store, call, settings):
    seen = []

    def watch(execute, sql, *args):
        seen.append(sql)
        return execute(sql, *args)

    if call == "wrapped":
        with connection.execute_wrapper(watch):
            create(store)
    else:
        settings.DEBUG = True
        connection.queries_log.clear()
        create(store)
        seen += [query["sql"] for query in connection.queries]
    assert any("INSERT" in sql and Job._meta.db_table in sql for sql in seen)
