"""Store calls on separate threads and connections, stepped by the test."""

import threading
from contextlib import contextmanager, nullcontext

import pytest
from django.db import connection, connections, transaction

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store import get_store
from django_jobchains.testing.contracts.concurrency import DEADLINE_SECONDS, until

#: Marks a test that commits. All tables are emptied after it.
committing = pytest.mark.django_db(transaction=True)
READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE = "read committed", "repeatable read", "serializable"
#: If the database does not report lock waits, a call that has not returned after this time is assumed to wait for a
#: lock. On a slow machine, tests become weaker but do not fail.
BLOCKED_SECONDS = 0.1
_started = []
_TABLES = (Job._meta.db_table, FailedAttempt._meta.db_table)


class Actor:
    """Calls ``call(store)`` on a separate thread and connection, which ``start()`` starts.

    With ``holds``, it waits after the call until ``go_on()`` or ``result()``, and then commits. With ``stops_before``,
    it waits before the n-th statement on the job tables, until ``go_on()``. ``level`` is the isolation level of its
    transactions on PostgreSQL.
    """

    def __init__(self, call, *, holds=False, stops_before=0, level=None):
        self._call = call
        self._holds = holds
        self._stops_before = stops_before
        self._level = level
        self._statements = 0
        self._rolls_back = False
        #: The call's process of the PostgreSQL server.
        self._pid = None
        self._begun = threading.Event()
        self._stopped = threading.Event()
        self._released = threading.Event()
        self._ended = threading.Event()
        self._result = None
        self._error = None
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)
        #: Deadlocks and other conflicts, even if a retry of the store succeeded.
        self.conflicts = []

    def start(self):
        _started.append(self)
        self._thread.start()
        return self

    @property
    def has_ended(self):
        return self._ended.is_set()

    def until_stopped(self):
        """Wait until it has made its call or stopped before its statement, or has failed."""
        assert self._stopped.wait(DEADLINE_SECONDS), "The call does not return. It may wait for a lock."
        return self

    def until_blocked_or_ended(self):
        """Wait until the call waits for a lock, or has returned."""
        assert self._begun.wait(DEADLINE_SECONDS), "The call does not begin."
        if self._pid is None:
            self._ended.wait(BLOCKED_SECONDS)
        else:
            until(lambda: self.has_ended or self._is_blocked(), what="the call waits for a lock, or has returned")
        return self

    def go_on(self, *, roll_back=False):
        self._rolls_back = roll_back
        self._released.set()

    def result(self):
        """Return what the call returned, or raise what it raised."""
        self._released.set()
        assert self._ended.wait(DEADLINE_SECONDS), "The call hangs: it waits for a lock."
        if self._error is not None:
            raise self._error
        return self._result

    def end(self):
        """End the call, even after a failed test."""
        self._rolls_back = True
        self._released.set()
        self._ended.wait(DEADLINE_SECONDS)

    def _run(self):
        try:
            self._prepare()
            with connection.execute_wrapper(self._execute), transaction.atomic() if self._holds else nullcontext():
                self._result = self._call(get_store())
                if self._holds:
                    self._stop()
                    transaction.set_rollback(self._rolls_back)
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()
            for event in (self._ended, self._begun, self._stopped):
                event.set()

    def _prepare(self):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '100ms'")
                if self._level:
                    cursor.execute("SELECT set_config('default_transaction_isolation', %s, false)", [self._level])
                cursor.execute("SELECT pg_backend_pid()")
                [self._pid] = cursor.fetchone()
            self._begun.set()

    def _is_blocked(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [self._pid])
            return bool(cursor.fetchone()[0])

    def _execute(self, execute, sql, params, many, context):
        if any(table in sql for table in _TABLES):
            self._statements += 1
            if self._statements == self._stops_before:
                self._stop()
        self._begun.set()
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            if is_conflict(error):
                self.conflicts.append(str(error))
            raise

    def _stop(self):
        self._stopped.set()
        assert self._released.wait(2 * DEADLINE_SECONDS), "The test did not let the actor go on."


def is_conflict(error):
    """Return whether the error is a deadlock, a serialization failure, or a SQLite database that stayed locked."""
    return getattr(error.__cause__, "sqlstate", None) in ("40001", "40P01") or "locked" in str(error)


def holding(call, level=None):
    """Return an actor that has made its call and has not committed it. The test must not wait for its locks."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{DEADLINE_SECONDS:.0f}s'")
    return Actor(call, holds=True, level=level).start().until_stopped()


def stopped_before(statement, call, level=None):
    """Return an actor that has stopped before one of its statements, or has ended because it has fewer."""
    return Actor(call, stops_before=statement, level=level).start().until_stopped()


def waiting(call, level=None):
    """Return an actor that waits for a lock, or has returned."""
    return Actor(call, level=level).start().until_blocked_or_ended()


@contextmanager
def without_autocommit():
    """Manage transactions manually, and roll back the last one."""
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def elsewhere(call):
    """Return the result of a call on another connection. It must not wait for a lock."""
    return Actor(call).start().result()


def in_turn(first, second):
    """Let the second call wait for the transaction of the first one, and return both results."""
    before, after = holding(first), waiting(second)
    return before.result(), after.result()


def is_a_session_waiting():
    """Return whether any session of PostgreSQL waits for a lock in this database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


def end_session(raw):
    """End a session of PostgreSQL from another one, as an administrator does."""
    import psycopg

    info = raw.info
    with psycopg.connect(info.dsn, password=info.password, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [info.backend_pid])


def end_all():
    """End the actors that a failed test has left waiting."""
    while _started:
        _started.pop().end()
