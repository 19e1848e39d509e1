"""Threads that use the database at the same time."""

import threading

from django.db import connection, connections

from tests.support.connections import READ_COMMITTED, is_conflict

JOIN_SECONDS = 100
CHECK_SECONDS = 0.01
COUNT = 8


class ThreadGroup:
    """Eight threads that call the same function, each with its own connection."""

    def __init__(self, work, level=READ_COMMITTED):
        self._work = work
        self._level = level
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,), name=f"test-{n}") for n in range(COUNT)]
        self.errors = []
        #: The number of deadlocks and other conflicts, including those after which a retry succeeded.
        self.conflicts = 0

    def start(self):
        for thread in self._threads:
            thread.start()
        return self

    @property
    def is_busy(self):
        """Return whether a thread still runs. If so, wait a moment first, so that the threads can work."""
        for thread in self._threads:
            thread.join(CHECK_SECONDS / COUNT)
        return any(thread.is_alive() for thread in self._threads)

    def join(self):
        """Wait for the threads, and raise the first error that one of them raised."""
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        assert not self.is_busy, f"A thread still runs after {JOIN_SECONDS} seconds."
        if self.errors:
            raise self.errors[0]

    def _run(self, number):
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

    def _execute(self, execute, sql, params, many, context):
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            if is_conflict(error):
                with self._lock:
                    self.conflicts += 1
            raise
