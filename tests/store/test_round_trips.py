"""On PostgreSQL, a worker sends BEGIN with the first statement of its transactions, and COMMIT with the last one."""

import tempfile
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.models import Job
from django_jobchains.store.rows import Effects
from tests.support.connections import committing
from tests.support.jobs import MAIL, finished, next_job, running, running_job, stored

pytestmark = [committing, pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def a_worker(store):
    connection.close()
    with store.db.waits_at_most(2):
        yield


def continued(job, **changes):
    return finished(job, None, next_job(job, **changes))


@contextmanager
def counting_round_trips():
    """Yield a list that contains an element for each answer of the server, at the end."""
    raw = connection.connection
    answers = []
    with tempfile.TemporaryFile() as trace:
        raw.pgconn.trace(trace.fileno())
        yield answers
        raw.pgconn.untrace()
        trace.seek(0)
        answers += [line for line in trace.read().decode().splitlines() if "ReadyForQuery" in line]


@pytest.mark.parametrize("count", [1, 3])
def test_attempts_that_continue_are_written_in_two_round_trips(store, count):
    others = running(store, 2 * count)
    jobs = [others.pop() for _ in range(count)]
    store.attempts.finish([continued(job) for job in others])  # It prepares the statements.
    with counting_round_trips() as answers:
        assert len(store.attempts.finish([continued(job) for job in jobs])) == count
    assert len(answers) == 2
    assert {stored(job).status for job in jobs} == {"completed"}
    assert Job.objects.filter(chain_id=jobs[0].chain_id, status="pending").count() == 1


def test_every_statement_of_the_transaction_has_the_lock_timeout(store):
    for _ in range(2):  # prepared in the first transaction
        with store.db.transaction():
            assert [lock_timeout(store) for _ in range(2)] == ["2s", "2s"]
        assert connection.connection.execute("SHOW lock_timeout").fetchone() == ("0",)


def lock_timeout(store):
    return store.db.fetch("SELECT current_setting('lock_timeout')", [])[0][0]


def test_statement_that_is_sent_differently_has_the_lock_timeout(store):
    with store.db.transaction():
        store.db.execute("CREATE TEMPORARY TABLE seen ON COMMIT DROP AS SELECT current_setting('lock_timeout')", [])
        assert store.db.fetch("SELECT * FROM seen", []) == [("2s",)]


def test_statement_of_the_project_has_the_lock_timeout(store):
    with store.db.limited(), connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("2s",)


def test_transaction_without_statements_is_not_begun(store):
    connection.ensure_connection()
    with counting_round_trips() as answers, store.db.transaction():
        pass
    assert not answers
    with transaction.atomic():
        assert lock_timeout(store) == "0"


def test_statements_that_were_deallocated_are_prepared_again(store):
    other, job = running(store, 2)
    store.attempts.finish([continued(other)])
    connection.connection.execute("DEALLOCATE ALL")
    assert store.attempts.finish([continued(job)]) == {job.key}
    assert stored(job).status == "completed"


def test_driver_that_prepares_statements_itself_gets_the_lock_timeout(store):
    with transaction.atomic():
        job = running_job(store)  # The driver prepares the statements of a transaction that is not the store's.
    with store.db.transaction():
        assert lock_timeout(store) == "2s"
    assert store.attempts.finish([continued(job)]) == {job.key}


def test_jobs_whose_commit_got_no_reply_are_announced(store, monkeypatch):
    commit = store.db.commit_with

    def commit_without_reply(sql, params):
        commit(sql, params)
        raise OperationalError

    monkeypatch.setattr(store.db, "commit_with", commit_without_reply)
    job, effects = running_job(store), Effects()
    with pytest.raises(OperationalError):
        store.attempts.finish([continued(job)], effects)
    assert stored(job).status == "completed"
    assert effects.due_types == {MAIL}


def test_transaction_of_the_caller_is_not_committed(store):
    job = running_job(store)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        store.attempts.lock(job.id)
        assert store.attempts.finish([continued(job)]) == {job.key}
        raise ZeroDivisionError
    assert stored(job).status == "running"
