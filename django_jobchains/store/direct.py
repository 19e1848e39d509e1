"""Statements of an attempt's transaction by libpq's own calls, one wait each: docs/decisions/0017-no-pipelines.md.

The threads of a worker wait for each other more than for the database. psycopg's ``execute`` makes a cursor, and lets
go of the interpreter several times for one statement; these calls do so once.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from django_jobchains import libpq

#: Prepared statements of a connection. They change with the age of their plans.
MOST_PREPARED = 20


class Direct:
    """One connection, as attempts use it."""

    def __init__(self, raw: "psycopg.Connection[Any]") -> None:
        self._names: dict[str, bytes] = {}
        self._prepared = 0
        #: The outermost ``atomic`` of the attempt at hand.
        self.transaction: object = None
        #: No other statement is prepared here. psycopg, when it has any, may say ``DEALLOCATE ALL`` whenever something
        #: is rolled back, dropped or altered, and ours would be gone in the middle of a transaction.
        self.is_alone = raw.prepare_threshold is None

    def begin(self, raw: "psycopg.Connection[Any]", transaction: object, select: str) -> list[tuple[Any, ...]]:
        """Begins the transaction that Django has opened, together with its first statement, which has no parameters, if
        there is one.

        psycopg sends no other BEGIN: it looks whether one is open.
        """
        rows = _rows(raw, libpq.execute(raw, f"BEGIN; {select}"))
        self.transaction = transaction
        return rows

    def has_begun(self, raw: "psycopg.Connection[Any]", atomic_blocks: Sequence[object]) -> bool:
        """Return whether the transaction that ``begin`` began is open.

        Django's atomic object alone does not tell: a decorator uses one object for many transactions.
        """
        is_same = atomic_blocks[:1] == [self.transaction]
        return is_same and raw.pgconn.transaction_status != pq.TransactionStatus.IDLE

    def fetch(self, raw: "psycopg.Connection[Any]", sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """A statement of that transaction, prepared once."""
        name = self._names.get(sql) or self._prepare(raw, sql)
        return _rows(raw, libpq.checked(raw, raw.pgconn.exec_prepared(name, [_text(param) for param in params])))

    def _prepare(self, raw: "psycopg.Connection[Any]", sql: str) -> bytes:
        if len(self._names) >= MOST_PREPARED:
            oldest = next(iter(self._names))
            libpq.execute(raw, f"DEALLOCATE {self._names.pop(oldest).decode()}")
        self._prepared += 1
        name = b"jobchains_%d" % self._prepared
        libpq.checked(raw, raw.pgconn.prepare(name, _numbered(sql).encode()))
        self._names[sql] = name
        return name


def _rows(raw: "psycopg.Connection[Any]", result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
    rows = Transformer(raw)
    rows.set_pgresult(result)
    return rows.load_rows(0, result.ntuples, tuple)


def is_possible(raw: "psycopg.Connection[Any]") -> bool:
    """Whether no transaction has begun, and psycopg would begin a plain one."""
    pgconn = raw.pgconn
    return (
        pgconn.transaction_status == pq.TransactionStatus.IDLE
        and pgconn.pipeline_status == pq.PipelineStatus.OFF
        and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        and raw.isolation_level is None
        and raw.read_only is None
        and raw.deferrable is None
    )


def _numbered(sql: str) -> str:
    first, *parts = sql.split("%s")
    return first + "".join(f"${number}{part}" for number, part in enumerate(parts, 1))


def _text(param: Any) -> Any:
    """As the server reads it; the type is the one that the statement asks for."""
    if param is None:
        return None
    return (_array(param) if isinstance(param, list) else str(param)).encode()


def _array(ids: Iterable[str]) -> str:
    return f"{{{','.join(ids)}}}"
