"""Whether a database is set up for job chains: its tables exist, and every thread sees the same ones."""

import sqlite3
from collections.abc import Iterator

from django.apps import apps
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

#: PostgreSQL's SQLSTATEs for a missing table and a missing column.
_UNDEFINED = ("42P01", "42703")
#: SQLite has one code for them and for every other error in a statement.
_SQLITE_MESSAGES = ("no such table", "no such column", "has no column named")


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
    return f"{_problem(using)} Missing: {', '.join(missing)}." if missing else ""


def problem_of(error: BaseException, using: str) -> str:
    """What is wrong with the database, and what to do about it, when an error is about its tables; "" otherwise."""
    return _problem(using) if is_about_tables(error) else ""


def is_about_tables(error: BaseException) -> bool:
    """Whether a statement failed because a table or a column does not exist: trying it again is pointless."""
    cause = error.__cause__
    if getattr(cause, "sqlstate", None) in _UNDEFINED:
        return isinstance(error, DatabaseError)
    is_sqlite = isinstance(error, OperationalError) and isinstance(cause, sqlite3.Error)
    return is_sqlite and any(words in str(cause) for words in _SQLITE_MESSAGES)


def _problem(using: str) -> str:
    if is_in_memory(using):
        return f"The SQLite database {using!r} is in memory, and its tables are not there. Use a file."
    return (
        f"The database {using!r} has not the tables of this version of django_jobchains: run "
        f"'manage.py migrate --database {using}'."
    )


def _tables() -> Iterator[str]:
    for model in apps.get_app_config("django_jobchains").get_models():
        yield model._meta.db_table


def _existing(connection: BaseDatabaseWrapper) -> set[str]:
    with connection.cursor() as cursor:
        return set(connection.introspection.table_names(cursor, include_views=True))
