"""What a PostgreSQL server was given, whoever gave it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.database import connect

#: A session that does nothing more has told how many transactions it had by then.
FLUSH_SECONDS = 11


class Counter:
    def __init__(self, bare: Any) -> None:
        self._bare = bare
        self._transactions = 0

    def statements(self) -> int:
        """By ``pg_stat_statements``, which knows of a statement when it ends."""
        return self._read("SELECT sum(calls)::bigint FROM pg_stat_statements")

    def transactions(self) -> int:
        """Without this session's; those that were told, see ``FLUSH_SECONDS``."""
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
