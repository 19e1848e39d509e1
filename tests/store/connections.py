"""Store calls on threads and connections of their own, stepped by the test."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store import Store, get_store

DEADLINE_SECONDS = 20
#: Marks a test that commits. Only the job tables are emptied after it, which is most of such a test's time.
committing = pytest.mark.django_db(transaction=True, available_apps=["django_jobchains"])
_started: "list[Actor]" = []
_TABLES = (Job._meta.db_table, FailedAttempt._meta.db_table)


class Actor:
    """Runs ``call(store)`` on a connection of its own, from ``start()`` on.

    ``holds``: it stops after the call, before the commit. ``stops_before``: it stops before its n-th statement on the
    job tables. Both until ``go_on()``.
    """

    def __init__(self, call: Callable[[Store], Any], *, holds: bool = False, stops_before: int = 0) -> None:
        self._call = call
        self._holds = holds
        self._stops_before = stops_before
        self._rolls_back = False
        self._statements = 0
        self._sent = threading.Event()
        self._stopped = threading.Event()
        self._released = threading.Event()
        self._ended = threading.Event()
        self._pid: int | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="actor")
        #: Deadlocks and the like, also those the store got over by another try.
        self.conflicts: list[str] = []

    def start(self) -> "Actor":
        _started.append(self)
        self._thread.start()
        return self

    def until_stopped(self) -> "Actor":
        assert self._stopped.wait(DEADLINE_SECONDS), "The actor did not get as far as its stop."
        return self

    def until_blocked_or_ended(self) -> "Actor":
        """Returns once the call waits for somebody's lock, or did not have to."""
        assert self._sent.wait(DEADLINE_SECONDS)
        for _ in range(DEADLINE_SECONDS * 100):
            if self._ended.wait(0.01) or self._is_blocked():
                return self
        raise AssertionError("The actor neither waits for a lock nor ends.")

    def go_on(self, *, roll_back: bool = False) -> None:
        self._rolls_back = roll_back
        self._released.set()

    def result(self) -> Any:
        """What the call returned, or its error."""
        self._released.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "The actor hangs."
        if self._error is not None:
            raise self._error
        return self._result

    def end(self) -> None:
        self._rolls_back = True
        self._released.set()
        self._thread.join(DEADLINE_SECONDS)

    def _run(self) -> None:
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
            self._ended.set()
            self._stopped.set()
            self._sent.set()

    def _prepare(self) -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '100ms'")
                cursor.execute("SELECT pg_backend_pid()")
                [self._pid] = cursor.fetchone()

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if any(table in sql for table in _TABLES):
            self._statements += 1
            if self._statements == self._stops_before:
                self._stop()
        self._sent.set()
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            if is_conflict(error):
                self.conflicts.append(str(error))
            raise

    def _stop(self) -> None:
        self._stopped.set()
        assert self._released.wait(DEADLINE_SECONDS), "The test did not let the actor go on."

    def _is_blocked(self) -> bool:
        if self._pid is None:
            return True  # SQLite does not tell who waits; whoever has to does so by now
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [self._pid])
            return bool(cursor.fetchone()[0])


def is_conflict(error: Exception) -> bool:
    """A deadlock, a serialisation failure, or a SQLite that stayed busy."""
    return getattr(error.__cause__, "sqlstate", None) in ("40001", "40P01") or "locked" in str(error)


def holding(call: Callable[[Store], Any]) -> Actor:
    """A started actor that has made its call and has not committed it. The test waits for its locks not for long."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '3s'")
    return Actor(call, holds=True).start().until_stopped()


def stopped_before(statement: int, call: Callable[[Store], Any]) -> Actor:
    """A started actor that stands before one of its statements."""
    return Actor(call, stops_before=statement).start().until_stopped()


def waiting(call: Callable[[Store], Any]) -> Actor:
    """A started actor that waits for a lock, or is through."""
    return Actor(call).start().until_blocked_or_ended()


def end_all() -> None:
    """Lets go of the actors a failed test left standing."""
    while _started:
        _started.pop().end()
