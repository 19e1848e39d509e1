"""Threads with connections of their own, and the errors they end with."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection, connections

from tests.blockers.actors import READ_COMMITTED
from tests.store.connections import is_conflict

JOIN_SECONDS = 100
LOOK_SECONDS = 0.01
COUNT = 8


class Crew:
    """Eight threads that do the same until they are through."""

    def __init__(self, work: Callable[[int], object], level: str = READ_COMMITTED) -> None:
        self._work = work
        self._level = level
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,), name=f"crew-{n}") for n in range(COUNT)]
        self.errors: list[BaseException] = []
        #: Deadlocks and the like, also those that were got over by another try.
        self.conflicts = 0

    def start(self) -> "Crew":
        for thread in self._threads:
            thread.start()
        return self

    @property
    def is_busy(self) -> bool:
        """False at once when they are through; else after a moment, so that who asks does not hold them up."""
        for thread in self._threads:
            thread.join(LOOK_SECONDS / COUNT)
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Raises the first error of a thread."""
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        assert not self.is_busy, "The crew hangs."
        if self.errors:
            raise self.errors[0]

    def _run(self, number: int) -> None:
        try:
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET deadlock_timeout = '100ms'")
                    cursor.execute("SELECT set_config('default_transaction_isolation', %s, false)", [self._level])
            with connection.execute_wrapper(self._execute):
                self._work(number)
        except BaseException as error:
            self.errors.append(error)
        finally:
            connections.close_all()

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            if is_conflict(error):
                with self._lock:
                    self.conflicts += 1
            raise
