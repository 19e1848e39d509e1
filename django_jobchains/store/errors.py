"""What database errors mean. After a conflict the whole transaction is tried again, when it is our own."""

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import InterfaceError, InternalError, OperationalError

#: serialization_failure, deadlock_detected
CONFLICTS = ("40001", "40P01")
#: A lock was not available within ``lock_timeout``.
LOCK_NOT_AVAILABLE = "55P03"
#: Among others by ``statement_timeout``.
QUERY_CANCELED = "57014"
#: transaction_rollback, program_limit_exceeded
STATEMENT_CLASSES = ("40", "54")
TRIES = 8
#: Before the second try, at most; twice as much before each of the next, so that a pile of conflicts falls apart.
FIRST_WAIT_SECONDS = 0.02

Params = ParamSpec("Params")
Result = TypeVar("Result")
Self = TypeVar("Self", bound=Any)


def retried(method: Callable[Concatenate[Self, Params], Result]) -> Callable[Concatenate[Self, Params], Result]:
    """Tries a store method again after a conflict, unless it runs in a transaction of the caller's."""
    return _retried(method, lambda store: nullcontext())


def retried_at_read_committed(
    method: Callable[Concatenate[Self, Params], Result],
) -> Callable[Concatenate[Self, Params], Result]:
    """As ``retried``, for methods that read and write nothing but leases, the next tries at READ COMMITTED.

    There a statement meets no serialisation failure. Other methods keep the project's level, see docs/decisions/0028.
    """
    return _retried(method, lambda store: store._at_read_committed())


def _retried(
    method: Callable[Concatenate[Self, Params], Result], again: Callable[[Any], AbstractContextManager[None]]
) -> Callable[Concatenate[Self, Params], Result]:
    @wraps(method)
    def run(store: Self, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        for tried in range(TRIES):
            try:
                with again(store) if tried else nullcontext():
                    return method(store, *args, **kwargs)
            except OperationalError as error:
                if tried == TRIES - 1 or store.connection.in_atomic_block or not store._is_conflict(error):
                    raise
                time.sleep(random.uniform(0.005, FIRST_WAIT_SECONDS * 2**tried))  # noqa: S311 - jitter
        raise AssertionError("unreachable")

    return run


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a statement waited for a lock for as long as it was allowed to."""
    return sqlstate(error) == LOCK_NOT_AVAILABLE


def is_out_of_time(error: BaseException) -> bool:
    """Whether a statement took longer than it was allowed to, or someone cancelled it."""
    return sqlstate(error) == QUERY_CANCELED


def blames_statement(error: BaseException) -> bool:
    """Whether a database error is about the statement, or what it met: a time limit, a conflict, a limit of its size.

    The database itself is there, and other statements may succeed.
    """
    state = sqlstate(error) or ""
    return state in (QUERY_CANCELED, LOCK_NOT_AVAILABLE) or state[:2] in STATEMENT_CLASSES


def is_database_away(error: BaseException) -> bool:
    """Whether the database, not the statement, is what failed: restarts, cut connections, full disks."""
    if blames_statement(error):
        return False
    if getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:  # "no such table" and the like
        return False
    return isinstance(error, OperationalError | InterfaceError | InternalError)


def is_conflict(error: BaseException) -> bool:
    """Whether a statement met another transaction, and may succeed when that has ended."""
    return (sqlstate(error) or "") in (*CONFLICTS, LOCK_NOT_AVAILABLE)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error that Django wrapped."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state if isinstance(state, str) else None
