"""This thread's database connections around one attempt: usable before it, with nothing of it left open after it."""

import threading
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobchains.exceptions import ConnectionLost, TransactionLeftOpen

#: libpq's transaction status after an error, and that of a connection that is known to be broken.
_IN_ERROR = 3
_UNKNOWN = 4


class ThreadConnections:
    """Made on the attempt's thread before its handler runs. It mends the connections, and remembers which transactions
    were open already (a test's own), to know those that the handler leaves open."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        #: As ``check`` found them: no user code ran since.
        self._after: list[BaseDatabaseWrapper] = []
        for connection in _opened():
            _mend(connection)
            self._before[connection.alias] = _depth(connection)

    def check(self) -> None:
        """Raise ``TransactionLeftOpen`` if the handler left a transaction open.

        Raise ``ConnectionLost`` if a connection broke, because it may have had an open transaction.
        """
        self._after = _opened()
        for connection in self._after:
            self._check(connection)

    def check_others(self, own: BaseDatabaseWrapper) -> None:
        """The same for every connection except ``own``, which has the transaction of the attempt itself."""
        for connection in _opened():
            if connection is not own:
                self._check(connection)

    def _check(self, connection: BaseDatabaseWrapper) -> None:
        if self.is_left_open(connection):
            raise ConnectionLost(connection.alias) if is_lost(connection) else TransactionLeftOpen(connection.alias)

    def clean(self, *, suspicious: bool = False) -> None:
        """Ends what the handler left open, with its connection; mends the others, or if ``suspicious`` ends them."""
        for connection in self._after or _opened():
            if self.is_left_open(connection) or (suspicious and not connection.in_atomic_block):
                discard(connection)
            else:
                _mend(connection)

    def is_left_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether a transaction was opened on this connection since, in whatever way."""
        if before := self._before.get(connection.alias, 0):
            return _depth(connection) != before
        return connection.connection is not None and _has_open_transaction(connection)


def is_broken(connection: BaseDatabaseWrapper) -> bool:
    """Whether an error, though it was swallowed, broke the open transaction: its commit would be a rollback."""
    return connection.needs_rollback or _transaction_status(connection.connection) == _IN_ERROR


def is_lost(connection: BaseDatabaseWrapper) -> bool:
    """Whether the driver has noticed that the connection is broken."""
    return _transaction_status(connection.connection) == _UNKNOWN


def tidy() -> None:
    """After an error: mends every connection of this thread. If one is too broken to be looked at, all are closed, and
    the next use opens another."""
    try:
        for connection in _opened():
            _mend(connection)
    except BaseException:
        close_all()


def _mend(connection: BaseDatabaseWrapper) -> None:
    """As ``close_old_connections``: closes a connection that broke or grew too old. The worker keeps the others, also
    with ``CONN_MAX_AGE`` 0, which is made for requests. The log of statements that DEBUG keeps is emptied."""
    if connection.in_atomic_block:  # a test's own transaction
        return
    if not connection.settings_dict["CONN_MAX_AGE"]:
        connection.close_at = None
    connection.close_if_unusable_or_obsolete()
    connection.queries_log.clear()


def discard(connection: BaseDatabaseWrapper) -> None:
    """Closes a connection in whatever state it is; the thread's next use opens a new one."""
    raw, connection.connection = connection.connection, None
    del connections[connection.alias]
    with suppress(Exception):  # it may be broken already, and nobody uses it any more
        raw.rollback()  # SQLite keeps the lock of a closed connection while something still holds a cursor
    with suppress(Exception):
        raw.close()
        if pool := getattr(connection, "pool", None):
            pool.putconn(raw)


def close_all() -> None:
    """Closes every connection of this thread, when the thread ends."""
    for connection in _opened():
        discard(connection)


class _Opened(threading.local):
    """By alias, the connections this thread has opened. To ask Django, twice for each attempt, costs more than all else
    that an attempt does."""

    def __init__(self) -> None:
        self.by_alias = {connection.alias: connection for connection in connections.all(initialized_only=True)}


_this_thread = _Opened()


def _opened() -> list[BaseDatabaseWrapper]:
    return [connection for connection in _this_thread.by_alias.values() if connection.connection is not None]


def _note(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    _this_thread.by_alias[connection.alias] = connection


connection_created.connect(_note)


def _depth(connection: BaseDatabaseWrapper) -> int:
    return len(connection.savepoint_ids) + 1 if connection.in_atomic_block else 0


def _has_open_transaction(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        return True
    if not connection.settings_dict["AUTOCOMMIT"]:
        return False
    return not connection.get_autocommit() or _raw_transaction(connection.connection)


def _raw_transaction(raw: object) -> bool:
    """Whether the driver's connection is in a transaction that Django does not know of (``BEGIN`` through a cursor)."""
    if hasattr(raw, "in_transaction"):
        return bool(raw.in_transaction)
    return bool(_transaction_status(raw))


def _transaction_status(raw: object) -> int:
    """libpq's; 0 with a driver that does not use libpq."""
    status: int = getattr(getattr(raw, "info", None), "transaction_status", 0)
    return status
