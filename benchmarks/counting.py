"""Counts the statements and transactions that a PostgreSQL server receives from all clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.database import connect

#: After this time an idle session has reported the number of its transactions to the server's statistics.
FLUSH_SECONDS = 11


class Counter:
    def __init__(self, bare: Any) -> None:
        self._bare = bare
        self._transactions = 0

    def statements(self) -> int:
        """Return the number of statements from ``pg_stat_statements``, which counts a statement when it ends."""
        return self._read("SELECT sum(calls)::bigint FROM pg_stat_statements")

    def transactions(self) -> int:
        """Return the number of reported transactions of all other sessions, see ``FLUSH_SECONDS``."""
        sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        return self._read(sql) - self._transactions

    def _read(self, sql: str) -> int:
        self._transactions += 1
        (number,) = self._bare.execute(sql).fetchone()
        return int(number)


@contextmanager
def counter() -> Iterator[Counter]:
    with connect() as bare:
        bare.execute("SET pg_stat_statements.track = 'none'")
        yield Counter(bare)
