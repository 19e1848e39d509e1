"""Checks whether a database is set up: its tables exist, and every thread sees the same ones."""

import sqlite3

from django.apps import apps
from django.db import DatabaseError, connections


def is_in_memory(using: str) -> bool:
    """Return whether it is an SQLite database in memory, where other threads do not see open transactions."""
    connection = connections[using]
    if connection.vendor != "sqlite":
        return False
    return connection.creation.is_in_memory_db(connection.settings_dict["NAME"])  # type: ignore[attr-defined,no-any-return]


def thread_problem(using: str) -> str:
    """Return the reason why other threads do not see this thread's database, or ""."""
    name = str(connections[using].settings_dict["NAME"])
    if not is_in_memory(using) or "cache=shared" in name:
        return ""
    return (
        f"The SQLite database {using!r} is in memory ({name}), where each thread has its own, empty database. Use a "
        f"file: set DATABASES[{using!r}]['NAME'] to a path."
    )


def worker_problem(using: str) -> str:
    """Return the reason why the threads of a worker cannot use this database, or ""."""
    if not connections[using].settings_dict["AUTOCOMMIT"]:
        name = f"DATABASES[{using!r}]['AUTOCOMMIT']"
        return f"{name} is False, so the worker's writes would not be committed. Set it to True, or remove it."
    if not is_in_memory(using):
        return ""
    # Connections that share a cache do not wait for each other's locks: their statements fail immediately.
    return thread_problem(using) or (
        f"The SQLite database {using!r} is in memory, as in Django's tests, where threads cannot wait for each other's "
        "locks. In a test, call django_jobchains.testing.run_due_jobs() instead of a worker, or let the tests use a "
        f"file: DATABASES[{using!r}]['TEST'] = {{'NAME': BASE_DIR / 'test.sqlite3'}}."
    )


def setup_problem(using: str) -> str:
    """Return why workers cannot use this database, with a remedy, or "".

    Reads the database's catalog. Raises the database's error if it is unavailable.
    """
    if problem := worker_problem(using):
        return problem
    with connections[using].cursor() as cursor:
        found = connections[using].introspection.table_names(cursor, include_views=True)
    models = apps.get_app_config("django_jobchains").get_models()
    missing = sorted({model._meta.db_table for model in models}.difference(found))
    return f"Tables are missing: {', '.join(missing)}. {_remedy(using)}" if missing else ""


def remedy_for(error: BaseException, using: str) -> str:
    """Return the remedy for an error due to missing tables or columns or a read-only session, "" for any other one."""
    if is_session_read_only(error):
        return (
            "The session is read-only: check that it leads to the primary, and default_transaction_read_only. A new "
            "session is opened."
        )
    return _remedy(using) if is_table_missing(error) or is_column_missing(error) else ""


def is_table_missing(error: BaseException) -> bool:
    return _is_undefined(error, "42P01", "no such table")


def is_column_missing(error: BaseException) -> bool:
    return _is_undefined(error, "42703", "no such column") or _is_undefined(error, "", "has no column named")


def is_session_read_only(error: BaseException) -> bool:
    """Return whether PostgreSQL rejected a write, on a standby or due to ``default_transaction_read_only``."""
    return getattr(error.__cause__, "sqlstate", None) == "25006"


def _is_undefined(error: BaseException, sqlstate: str, words: str) -> bool:
    """Check the SQLSTATE of PostgreSQL, or the message of SQLite, which has one code for all errors in a statement."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return words in str(cause)
    return isinstance(error, DatabaseError) and getattr(cause, "sqlstate", None) == sqlstate


def _remedy(using: str) -> str:
    if is_in_memory(using):
        return f"The SQLite database {using!r} is in memory, where other processes do not see it. Use a file."
    return (
        f"The database {using!r} does not have the tables of this version of django_jobchains. Run 'manage.py migrate "
        f"--database {using}'."
    )
