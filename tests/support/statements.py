"""Count the statements of other threads, and how often they connect."""

import threading
from contextlib import contextmanager

from django.db.backends.signals import connection_created


class Statements:
    """Record the statements of connections that are opened from now on."""

    def __init__(self):
        self.texts = []
        self.connections = 0
        self._watched = []

    def __len__(self):
        return len(self.texts)

    def __call__(self, execute, sql, params, many, context):
        self.texts.append(sql)
        return execute(sql, params, many, context)

    def count(self, part):
        return sum(part in text for text in self.texts)

    def per_second(self):
        """Return the number of statements in a second, without the reads of memory by SQLite's listener."""
        before = len(self) - self.count("data_version")
        threading.Event().wait(1)
        return len(self) - self.count("data_version") - before

    def watch(self, connection, **kwargs):
        self.connections += 1
        if self not in connection.execute_wrappers:
            connection.execute_wrappers.append(self)
            self._watched.append(connection)

    def leave(self):
        """Stop recording. The connection of this thread may remain open."""
        for connection in self._watched:
            connection.execute_wrappers.remove(self)


@contextmanager
def statements_of_others():
    statements = Statements()
    connection_created.connect(statements.watch)
    try:
        yield statements
    finally:
        connection_created.disconnect(statements.watch)
        statements.leave()
