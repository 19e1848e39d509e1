"""Store calls on separate threads and connections, stepped by the test."""

import threading
from collections.abc import Callable
from typing import Any, Self

import pytest
from django.db import connection

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store import Store, get_store
from django_jobchains.testing.contracts import concurrency
from django_jobchains.testing.contracts.concurrency import DEADLINE_SECONDS

#: Marks a test that commits. All tables are emptied after it.
committing = pytest.mark.django_db(transaction=True)
_started: "list[Actor]" = []
_TABLES = (Job._meta.db_table, FailedAttempt._meta.db_table)


class Actor(concurrency.Actor):
    """Calls ``call(store)``, records conflicts, and can stop before a statement.

    ``stops_before``: stop before the n-th statement on the job tables, until ``go_on()``.
    """

    def __init__(self, call: Callable[[Store], Any], *, holds: bool = False, stops_before: int = 0) -> None:
        super().__init__("default", lambda: call(get_store()), holds=holds)
        self._stops_before = stops_before
        self._statements = 0
        self._sent = threading.Event()
        #: Deadlocks and other conflicts, even if a retry of the store succeeded.
        self.conflicts: list[str] = []

    def start(self) -> Self:
        _started.append(self)
        return super().start()

    def until_blocked_or_ended(self) -> Self:
        assert self._sent.wait(DEADLINE_SECONDS)
        return super().until_blocked_or_ended()

    def _make_call(self) -> None:
        try:
            with connection.execute_wrapper(self._execute):
                super()._make_call()
        finally:
            self._sent.set()

    def _prepare(self) -> None:
        super()._prepare()
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '100ms'")

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


def is_conflict(error: Exception) -> bool:
    """Return whether the error is a deadlock, a serialization failure, or a SQLite database that stayed locked."""
    return getattr(error.__cause__, "sqlstate", None) in ("40001", "40P01") or "locked" in str(error)


def holding(call: Callable[[Store], Any]) -> Actor:
    """Return an actor that has made its call and has not committed it. The test must not wait for its locks."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{DEADLINE_SECONDS:.0f}s'")
    return Actor(call, holds=True).start().until_stopped()


def stopped_before(statement: int, call: Callable[[Store], Any]) -> Actor:
    """Return an actor that has stopped before one of its statements."""
    return Actor(call, stops_before=statement).start().until_stopped()


def waiting(call: Callable[[Store], Any]) -> Actor:
    """Return an actor that waits for a lock, or has returned."""
    return Actor(call).start().until_blocked_or_ended()


def end_all() -> None:
    """End the actors that a failed test has left waiting."""
    while _started:
        _started.pop().end()
