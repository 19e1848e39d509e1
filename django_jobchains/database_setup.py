"""Whether a database is set up for job chains: its tables exist, and every thread sees the same ones."""

import sqlite3
from collections.abc import Iterator

from django.apps import apps
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper


def is_in_memory(using: str) -> bool:
    """Whether it is an SQLite database in memory, as tests use it: there other threads see no open transaction."""
    connection = connections[using]
    if connection.vendor != "sqlite":
        return False
    return connection.creation.is_in_memory_db(connection.settings_dict["NAME"])  # type: ignore[attr-defined,no-any-return]


def thread_problem(using: str) -> str:
    """Why other threads do not see this thread's database; "" when they do."""
    name = str(connections[using].settings_dict["NAME"])
    if not is_in_memory(using) or "cache=shared" in name:
        return ""
    return (
        f"The SQLite database {using!r} is in memory ({name}), where each thread has its own, empty database. Use a "
        f"file: set DATABASES[{using!r}]['NAME'] to a path."
    )


def setup_problem(using: str) -> str:
    """Why no worker can work on this database, and what to do about it; "" when one can.

    Reads the database's catalogue; raises the database's error when it is away.
    """
    if problem := thread_problem(using):
        return problem
    missing = sorted(set(_tables()) - _existing(connections[using]))
    return f"Tables are missing: {', '.join(missing)}. {_remedy(using)}" if missing else ""


def remedy_for(error: BaseException, using: str) -> str:
    """What to do about an error of a statement on tables that do not fit; "" for any other error."""
    return _remedy(using) if is_table_missing(error) or is_column_missing(error) else ""


def is_table_missing(error: BaseException) -> bool:
    return _is_undefined(error, "42P01", "no such table")


def is_column_missing(error: BaseException) -> bool:
    return _is_undefined(error, "42703", "no such column") or _is_undefined(error, "", "has no column named")


def _is_undefined(error: BaseException, sqlstate: str, words: str) -> bool:
    """PostgreSQL has a SQLSTATE for it. SQLite has one code for all errors in a statement, and a message."""
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


def _tables() -> Iterator[str]:
    for model in apps.get_app_config("django_jobchains").get_models():
        yield model._meta.db_table


def _existing(connection: BaseDatabaseWrapper) -> set[str]:
    with connection.cursor() as cursor:
        return set(connection.introspection.table_names(cursor, include_views=True))
