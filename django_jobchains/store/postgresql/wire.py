"""Sends statements with libpq calls: those of an attempt's or a worker's transaction, and those in autocommit.

psycopg's ``execute`` takes more time than the rest of an enqueue: docs/decisions/0062-direct-autocommit.md. The threads
of a worker also wait for each other more than for the database. psycopg releases the interpreter's lock several times
for one statement; the calls in attempts release it once: docs/decisions/0017-no-pipelines.md.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import Any

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import InvalidSqlStatementName

from django_jobchains.db import libpq
from django_jobchains.db.connections import is_watched

#: The limit of prepared statements of a connection. Statements change with the age of their plans.
MAX_PREPARED = 50


class Direct:
    """The prepared statements of one connection, and the transaction of an attempt on it."""

    def __init__(self, raw: "psycopg.Connection[Any]") -> None:
        #: The names of statements, by their text and the age of their plans.
        self._names: dict[tuple[str, str], bytes] = {}
        self._prepared = 0
        #: The outermost ``atomic`` of the current transaction of an attempt or a worker.
        self.transaction: object = None
        #: SQL that begins this transaction, until it is sent together with the first statement.
        self._opening = ""
        #: Whether the store has sent nothing in that transaction since it began.
        self.is_untouched = False
        #: The age of the plans in that transaction. If a handler has removed the statements of this age, the
        #: transaction's first one fails, before anything is written.
        self.age = ""
        #: Whether psycopg has prepared no statement here. If it has, it may send ``DEALLOCATE ALL`` whenever something
        #: is rolled back, dropped or altered, which would remove these statements in the middle of a transaction.
        self.is_alone = raw.prepare_threshold is None

    def begin(self, raw: "psycopg.Connection[Any]", transaction: object, first: str) -> list[tuple[Any, ...]]:
        """Begin the transaction that Django has opened, together with its first statements, if any.

        Return the rows of the last one. psycopg does not send another BEGIN: it checks whether a transaction is open.
        """
        opening = self._opening if self._is_opening([transaction]) else "BEGIN"
        rows = _rows(raw, libpq.execute(raw, f"{opening}; {first}"))
        self.transaction, self.is_untouched, self._opening = transaction, True, ""
        return rows

    def begin_with_next(self, transaction: object, first: str) -> None:
        """Begin the transaction that Django has opened together with ``first`` and the next statement of the store."""
        self.transaction, self._opening = transaction, f"BEGIN; {first}"

    def can_commit(self, raw: "psycopg.Connection[Any]", atomic_blocks: Sequence[object]) -> bool:
        """Return whether that transaction is the only open block."""
        return len(atomic_blocks) == 1 and self.is_alone and self.has_begun(raw, atomic_blocks)

    def commit(self, raw: "psycopg.Connection[Any]", sql: str, params: Sequence[Any]) -> None:
        """Commit that transaction together with its last statement, unless that fails.

        psycopg does not send another COMMIT: it checks whether a transaction is open.
        """
        libpq.execute(raw, f"{self.call(raw, sql, self.age, params)}; COMMIT")

    def has_begun(self, raw: "psycopg.Connection[Any]", atomic_blocks: Sequence[object]) -> bool:
        """Return whether the transaction that ``begin`` started is open, and statements are still encoded as UTF-8.

        Django's atomic object does not suffice: a decorator uses one object for many transactions.
        """
        is_same = atomic_blocks[:1] == [self.transaction]
        return is_same and raw.pgconn.transaction_status != pq.TransactionStatus.IDLE and _is_utf8(raw)

    def fetch(
        self,
        raw: "psycopg.Connection[Any]",
        atomic_blocks: Sequence[object],
        sql: str,
        age: str,
        params: Sequence[Any],
    ) -> list[tuple[Any, ...]]:
        """Run a statement, which is prepared once for each age of its plan.

        It is sent directly in the transaction that ``begin`` started and in autocommit, and by psycopg in other
        transactions.
        """
        if self._is_opening(atomic_blocks):
            if self.is_alone:
                return self._fetch_first(raw, sql, age, params)
            self.begin(raw, self.transaction, "")
        if self.is_alone and self.has_begun(raw, atomic_blocks):
            name = self._names.get((sql, age)) or self._prepare(raw, sql, age)
            return _rows(raw, libpq.checked(raw, raw.pgconn.exec_prepared(name, [_text(param) for param in params])))
        if not (raw.autocommit and is_idle(raw)):
            return self._fetch_with_cursor(raw, sql, age, params)
        try:
            return self._fetch_alone(raw, sql, age, params)
        except InvalidSqlStatementName:
            # psycopg, or the project with DISCARD ALL, has deallocated it. Nothing has been executed.
            self._names.clear()
            return self._fetch_alone(raw, sql, age, params)

    def _is_opening(self, atomic_blocks: Sequence[object]) -> bool:
        return bool(self._opening) and atomic_blocks[:1] == [self.transaction]

    def _fetch_first(
        self, raw: "psycopg.Connection[Any]", sql: str, age: str, params: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Begin the transaction and run its first statement."""
        opening, self._opening, self.age = self._opening, "", age
        try:
            return _rows(raw, libpq.execute(raw, f"{opening}; {self.call(raw, sql, age, params)}"))
        except InvalidSqlStatementName:
            # It was deallocated, as in ``fetch``. Nothing has been written.
            libpq.execute(raw, "ROLLBACK")
            self._names.clear()
            return _rows(raw, libpq.execute(raw, f"{opening}; {self.call(raw, sql, age, params)}"))

    def _fetch_alone(
        self, raw: "psycopg.Connection[Any]", sql: str, age: str, params: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Run a statement in its own transaction."""
        name = self._names.get((sql, age)) or self._prepare(raw, sql, age)
        raw.pgconn.send_query_prepared(name, [_text(param) for param in params])
        return _rows(raw, libpq.awaited(raw))

    def _fetch_with_cursor(
        self, raw: "psycopg.Connection[Any]", sql: str, age: str, params: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        self.is_alone = False
        threshold, raw.prepare_threshold = raw.prepare_threshold, 0
        try:
            # In a comment, so that psycopg prepares the statement again when its plan is too old.
            return psycopg.Cursor(raw).execute(f"{sql} -- {age}", params).fetchall()
        finally:
            raw.prepare_threshold = threshold

    def call(self, raw: "psycopg.Connection[Any]", sql: str, age: str, params: Sequence[Any]) -> str:
        """Return SQL that runs a statement, prepared as in ``fetch``, to be sent with others."""
        name = self._names.get((sql, age)) or self._prepare(raw, sql, age)
        quote = pq.Escaping(raw.pgconn).escape_literal
        texts = [param if param is None or isinstance(param, int) else quote(_text(param)).decode() for param in params]
        arguments = ", ".join("NULL" if text is None else str(text) for text in texts)
        return f"EXECUTE {name.decode()}({arguments})" if params else f"EXECUTE {name.decode()}"

    def _prepare(self, raw: "psycopg.Connection[Any]", sql: str, age: str) -> bytes:
        if len(self._names) >= MAX_PREPARED:
            oldest = next(iter(self._names))
            libpq.execute(raw, f"DEALLOCATE {self._names.pop(oldest).decode()}")
        self._prepared += 1
        numbers = count(1)
        text = re.sub("%[s%]", lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", sql).encode()
        # With a hash, so that a session which a pooler passes on never runs another client's statement instead.
        name = b"jobchains_%d_%s" % (self._prepared, blake2b(text, digest_size=8).hexdigest().encode())
        raw.pgconn.send_prepare(name, text)
        libpq.awaited(raw)
        self._names[sql, age] = name
        return name


def _rows(raw: "psycopg.Connection[Any]", result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
    rows = Transformer(raw)
    rows.set_pgresult(result)
    return rows.load_rows(0, result.ntuples, tuple)


def is_idle(raw: "psycopg.Connection[Any]") -> bool:
    """Return whether no transaction has begun, and statements can be sent directly."""
    pgconn = raw.pgconn
    return (
        pgconn.transaction_status == pq.TransactionStatus.IDLE
        and pgconn.pipeline_status == pq.PipelineStatus.OFF
        and _is_utf8(raw)
    )


def is_possible(raw: "psycopg.Connection[Any]") -> bool:
    """Return whether no transaction has begun, and psycopg would begin a plain one."""
    return is_idle(raw) and raw.isolation_level is None and raw.read_only is None and raw.deferrable is None


def can_begin(connection: BaseDatabaseWrapper) -> bool:
    """Return whether Django has opened a transaction whose BEGIN can still be sent directly."""
    return bool(connection.atomic_blocks) and not is_watched(connection) and is_possible(connection.connection)


def _is_utf8(raw: "psycopg.Connection[Any]") -> bool:
    return raw.pgconn.parameter_status(b"client_encoding") == b"UTF8"


def _text(param: Any) -> Any:
    """Return a value in the text format of the server; the statement determines its type."""
    if param is None:
        return None
    return (f"{{{','.join(param)}}}" if isinstance(param, list) else str(param)).encode()
