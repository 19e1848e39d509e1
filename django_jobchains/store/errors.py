"""Classifies database errors. After a conflict, the store runs its own transactions again."""

import random
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import DatabaseError, DataError, Error, InterfaceError, InternalError, OperationalError

#: serialization_failure, deadlock_detected
CONFLICTS = ("40001", "40P01")
UNIQUE_VIOLATION = "23505"
DIVISION_BY_ZERO = "22012"
#: The error invalid_argument_for_power_function, also of square roots.
ROOT_OF_NEGATIVE = "2201F"
#: A lock was not available within ``lock_timeout``.
LOCK_NOT_AVAILABLE = "55P03"
#: A statement was cancelled, for example by ``statement_timeout``.
QUERY_CANCELED = "57014"
FEATURE_NOT_SUPPORTED = "0A000"
#: The function of the server that finds that the plan of a prepared statement has become invalid.
REVALIDATION = "RevalidateCachedQuery"
#: transaction_rollback, program_limit_exceeded
STATEMENT_CLASSES = ("40", "54")
INSUFFICIENT_PRIVILEGE = "42501"
#: syntax_error_or_access_rule_violation
INVALID_CLASS = "42"
TRIES = 8
#: The longest wait before the second try. It doubles before each of the next, so that repeated conflicts spread out.
FIRST_WAIT_SECONDS = 0.02
#: How long ``call_in_parts`` calls again after errors, because the thread has other work.
MAX_PARTS_SECONDS = 0.5

Params = ParamSpec("Params")
Result = TypeVar("Result")
Item = TypeVar("Item")
Self = TypeVar("Self", bound=Any)


def retried(method: Callable[Concatenate[Self, Params], Result]) -> Callable[Concatenate[Self, Params], Result]:
    """Run a method of the store again after a conflict, unless it has joined the caller's transaction."""
    return _retried(method, lambda part: nullcontext())


def retried_at_read_committed(
    method: Callable[Concatenate[Self, Params], Result],
) -> Callable[Concatenate[Self, Params], Result]:
    """Like ``retried``, but retry at READ COMMITTED: for methods that read and write only leases.

    Statements do not fail to serialize at that level. Other methods keep the project's level, see docs/decisions/0028.
    """
    return _retried(method, lambda part: part.db.at_read_committed())


def _retried(
    method: Callable[Concatenate[Self, Params], Result], again: Callable[[Any], AbstractContextManager[None]]
) -> Callable[Concatenate[Self, Params], Result]:
    @wraps(method)
    def run(part: Self, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        began = time.monotonic()
        for tried in range(TRIES):
            try:
                with again(part) if tried else nullcontext():
                    return method(part, *args, **kwargs)
            except DatabaseError as error:
                if tried == TRIES - 1 or not part.db.is_conflict(error) or part.db.is_in_transaction:
                    raise
                if time.monotonic() - began > part.db.busy_seconds:
                    raise
                time.sleep(random.uniform(0.005, FIRST_WAIT_SECONDS * 2**tried))  # noqa: S311 - jitter
        raise AssertionError("unreachable")

    return run


def call_in_parts(
    call: Callable[[list[Item]], Iterable[Result]], items: list[Item], failed: dict[Item, OperationalError]
) -> list[Result]:
    """Make a call with these items, and return its results. While its statement is blamed, call with fewer items.

    A lock that one of them waits for must not delay the others. An item that fails alone is added to ``failed``. If it
    is not empty, the first call has one item. The rest is skipped if the calls take longer than ``MAX_PARTS_SECONDS``.
    """
    results: list[Result] = []
    began = time.monotonic()
    size = 1 if failed else len(items)
    while items:
        part = items[:size]
        try:
            results += call(part)
            size *= 2
        except OperationalError as error:
            if not blames_statement(error):
                raise
            if len(part) > 1:
                size = len(part) // 2
                continue
            failed[part[0]] = error
            if time.monotonic() - began > MAX_PARTS_SECONDS:
                break
        items = items[len(part) :]
    return results


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement reached the time limit for its lock."""
    return sqlstate(error) == LOCK_NOT_AVAILABLE


def is_out_of_time(error: BaseException) -> bool:
    """Return whether a statement reached its time limit or was cancelled."""
    return sqlstate(error) == QUERY_CANCELED


def blames_statement(error: BaseException) -> bool:
    """Return whether an error concerns only one statement: a time limit, a conflict or a size limit.

    The database is available, and other statements may succeed.
    """
    state = sqlstate(error) or ""
    return state in (QUERY_CANCELED, LOCK_NOT_AVAILABLE) or state[:2] in STATEMENT_CLASSES


def is_statement_invalid(error: BaseException) -> bool:
    """Return whether a statement does not fit the tables, for example before a migration, or is not permitted."""
    is_sqlite = getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return is_sqlite or (sqlstate(error) or "").startswith(INVALID_CLASS)


def is_database_away(error: BaseException) -> bool:
    """Return whether the database failed, not the statement: restarts, lost connections, full disks."""
    if blames_statement(error):
        return False
    if is_statement_invalid(error):
        return False
    return isinstance(error, OperationalError | InterfaceError | InternalError)


def blames_row(error: BaseException) -> bool:
    """Return whether an error while a row was loaded is about this row: its values, or the code that receives them.

    Any other error of the database concerns the statement, and may disappear, for example after a migration.
    """
    return isinstance(error, DataError) or not isinstance(error, Error)


def is_conflict(error: BaseException) -> bool:
    """Return whether a statement conflicted with another transaction, and may succeed once that has ended."""
    return is_lock_timeout(error) or is_serialization_conflict(error)


def is_serialization_conflict(error: BaseException) -> bool:
    """Return whether a transaction failed because of a concurrent one or a deadlock, and may be run again."""
    return sqlstate(error) in CONFLICTS or is_plan_outdated(error)


def is_plan_outdated(error: BaseException) -> bool:
    """Return whether ALTER TABLE has changed the types that a prepared statement returns. Nothing has been written.

    The next try prepares it again. The SQLSTATE has other meanings, and the message may be translated.
    """
    details = getattr(error.__cause__, "diag", None)
    return sqlstate(error) == FEATURE_NOT_SUPPORTED and getattr(details, "source_function", "") == REVALIDATION


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of a database error that Django wrapped."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state if isinstance(state, str) else None


def sqlstate_of_statement(error: BaseException) -> str | None:
    """Return the code of an error of a statement, and not of a function, such as a deferred trigger at the commit."""
    details = getattr(error.__cause__, "diag", None)
    return None if details and details.context else sqlstate(error)
