"""The database connections of a thread: usable before an attempt, and without open transactions after it.

Also distinguishes the library's own statements from statements of handlers.
"""

import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from logging import getLogger
from typing import Any, ParamSpec, TypeVar

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobchains.db import libpq
from django_jobchains.db.setup import is_session_read_only
from django_jobchains.exceptions import ConnectionLost, TransactionLeftOpen

logger = getLogger("django_jobchains")

#: Values of libpq's transaction status: after an error, and of a broken connection.
_IN_ERROR = 3
_UNKNOWN = 4


class ThreadConnections:
    """The connections of an attempt's thread, created before the handler runs.

    Repairs the connections, and remembers the transactions that are already open, as in a test, to find transactions
    that the handler leaves open.
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        #: The connections that ``check`` has found without an open transaction, unless user code runs afterwards.
        self.checked: list[BaseDatabaseWrapper] | None = None
        for connection in opened_connections():
            _repair(connection)
            self._before[connection.alias] = _depth(connection)

    def check(self) -> None:
        """Raise ``TransactionLeftOpen`` if the handler left a transaction open.

        Raise ``ConnectionLost`` if a connection broke, because it may have had an open transaction.
        """
        found = opened_connections()
        for connection in found:
            self._check(connection)
        self.checked = found

    def check_others(self, own: BaseDatabaseWrapper) -> None:
        """Check every connection except ``own``, which has the transaction of the attempt itself."""
        for connection in opened_connections():
            if connection is not own:
                self._check(connection)

    def _check(self, connection: BaseDatabaseWrapper) -> None:
        if self.is_left_open(connection):
            raise ConnectionLost(connection.alias) if is_lost(connection) else TransactionLeftOpen(connection.alias)

    def clean(self, *, suspicious: bool = False) -> None:
        """Drop connections with a transaction that the handler left open; if ``suspicious``, the others, too.

        Those that are kept are repaired before their next use.
        """
        for connection in opened_connections() if self.checked is None else self.checked:
            is_left_open = self.checked is None and self.is_left_open(connection)
            if is_left_open or (suspicious and not connection.in_atomic_block):
                drop_connection(connection)

    def is_left_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether a transaction was opened on this connection since the beginning, in any way."""
        if before := self._before.get(connection.alias, 0):
            return _depth(connection) != before
        if connection.in_atomic_block:
            return True
        if connection.connection is None or not connection.settings_dict["AUTOCOMMIT"]:
            return False
        return not connection.get_autocommit() or _raw_transaction(connection.connection)


def usable_connections() -> ThreadConnections:
    """Return the connections of this thread. Close all of them if one cannot even be checked."""
    try:
        return ThreadConnections()
    except Exception:
        close_thread_connections()
        return ThreadConnections()


def is_broken(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an error, even a swallowed one, broke the transaction, so that its commit would roll back."""
    return connection.needs_rollback or _transaction_status(connection.connection) == _IN_ERROR


def is_lost(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the driver has noticed that the connection is broken, or it was closed in its transaction."""
    return connection.closed_in_transaction or _transaction_status(connection.connection) == _UNKNOWN


def repair_connections(error: BaseException | None = None) -> None:
    """Repair every connection of this thread after an error. If that fails, drop all of them.

    After ``error`` of a read-only session, drop the connections without a transaction: their queries would succeed.
    """
    is_read_only = error is not None and is_session_read_only(error)
    try:
        for connection in opened_connections():
            if is_read_only and not connection.in_atomic_block:
                drop_connection(connection)
            else:
                _repair(connection)
    except BaseException:
        close_thread_connections()


def _repair(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that is broken or too old, and clear the query log of DEBUG.

    Unlike ``close_old_connections``, keep connections with ``CONN_MAX_AGE`` 0, which is meant for requests.
    """
    if connection.in_atomic_block:  # the transaction of a test
        return
    if not connection.settings_dict["CONN_MAX_AGE"]:
        connection.close_at = None
    connection.errors_occurred = connection.errors_occurred or _has_input(connection.connection)
    connection.close_if_unusable_or_obsolete()
    connection.queries_log.clear()


def _has_input(raw: Any) -> bool:
    """Return whether the server has sent something without a statement, as when it ended the session. Takes 1 µs.

    It may also be a notification for a handler that listens, so Django asks the server before it closes a connection.
    """
    if (pgconn := getattr(raw, "pgconn", None)) is None:
        return False
    if sys.platform == "win32":
        return bool(select.select([pgconn.socket], [], [], 0)[0])
    poll = select.poll()  # select() accepts no descriptors above 1023
    poll.register(pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def drop_connection(connection: BaseDatabaseWrapper) -> None:
    """Close a connection in any state. The next use in this thread opens a new one."""
    raw, connection.connection = connection.connection, None
    del connections[connection.alias]
    with suppress(Exception):  # it may be broken, and is not used again
        raw.rollback()  # SQLite keeps the lock of a closed connection while something still holds a cursor
    with suppress(Exception):
        raw.close()
        if pool := getattr(connection, "pool", None):
            pool.putconn(raw)


def close_thread_connections() -> None:
    """Close every connection of this thread, in any state, when the thread ends.

    Sound connections are returned to their pool, which would log a warning for each closed one.
    """
    for connection in opened_connections():
        is_pooled = getattr(connection, "pool", None) and not connection.in_atomic_block
        if is_pooled and not _raw_transaction(connection.connection) and connection.is_usable():
            connection.close()
        else:
            drop_connection(connection)


def call_after_commit(using: str, call: Callable[[], object]) -> None:
    """Call a function after the outermost commit, and not at all after a rollback, including one to a savepoint.

    With manual transaction management, the commit cannot be detected, and the function is not called.
    """
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        connection.on_commit(call, robust=True)


class _Opened(threading.local):
    """The connections that this thread has opened, by alias. Asking Django twice per attempt would be slow."""

    def __init__(self) -> None:
        # A settings module may import this one. Then there are no connections yet.
        opened = connections.all(initialized_only=True) if settings.configured else []
        self.by_alias = {connection.alias: connection for connection in opened}


_this_thread = _Opened()


def opened_connections() -> list[BaseDatabaseWrapper]:
    """Return the connections of this thread. Faster than asking Django."""
    if not _this_thread.by_alias:
        return []
    return [connection for connection in _this_thread.by_alias.values() if connection.connection is not None]


def _on_connection_created(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    # A copy of a connection has the same alias, and belongs to the code that made it.
    own = {each.alias: each for each in connections.all(initialized_only=True)}
    if own.get(connection.alias, connection) is connection:
        _this_thread.by_alias[connection.alias] = connection


connection_created.connect(_on_connection_created)


def _depth(connection: BaseDatabaseWrapper) -> int:
    return len(connection.savepoint_ids) + 1 if connection.in_atomic_block else 0


def _raw_transaction(raw: object) -> bool:
    """Return whether the driver is in a transaction that Django does not know of, as after ``BEGIN`` in a cursor."""
    if hasattr(raw, "in_transaction"):
        return bool(raw.in_transaction)
    return bool(_transaction_status(raw))


def _transaction_status(raw: object) -> int:
    """Return libpq's transaction status, or 0 for a driver without libpq.

    psycopg's ``pgconn`` is several times faster than ``info``, which older drivers have.
    """
    status: int = getattr(getattr(raw, "pgconn", None) or getattr(raw, "info", None), "transaction_status", 0)
    return status


Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")

_is_own: ContextVar[bool] = ContextVar("jobchains_own_statements", default=False)

#: Entries of Django's ``execute_wrappers`` that ignore own statements. The store may bypass them.
ignoring_own_statements: set[Callable[..., Any]] = set()
#: Whether each alias leads through a pooler, as far as this process knows.
_pooled: dict[str, bool] = {}
_POOLER_NOTICED = (
    "Database %r is reached through a pooler, so statements are not prepared. If it pools transactions, add "
    '"DISABLE_SERVER_SIDE_CURSORS": True to DATABASES: Django\'s own server-side cursors do not work there.'
)


def is_watched(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements go through Django's cursor, without being prepared.

    This is the case behind a transaction pooler (Django's ``DISABLE_SERVER_SIDE_CURSORS``), where the next statement
    may reach another session, and while Django's statements are logged or wrapped, so that these are included.
    """
    is_pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS") or _is_pooled(connection)
    return is_pooled or connection.queries_logged or not ignoring_own_statements.issuperset(connection.execute_wrappers)


def _is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server's process is not the announced one. See docs/decisions/0116-poolers.md."""
    alias, raw = connection.alias, connection.connection
    if alias not in _pooled:
        announced = getattr(getattr(raw, "pgconn", None), "backend_pid", 0)
        if not announced or _transaction_status(raw) in (_IN_ERROR, _UNKNOWN):
            return False
        with connection.wrap_database_errors:
            process = libpq.execute(raw, "SELECT pg_backend_pid()").get_value(0, 0)
        _pooled[alias] = process != str(announced).encode()
        if _pooled[alias]:
            logger.warning(_POOLER_NOTICED, alias)
    return _pooled[alias]


def own_statements(function: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
    """Mark all statements that the function executes as the library's own."""

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        token = _is_own.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _is_own.reset(token)

    return run


def is_own_statement() -> bool:
    """Return whether the statement that is being executed is the library's own."""
    return _is_own.get()
