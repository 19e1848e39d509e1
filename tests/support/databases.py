"""Additional databases, for tests of one kind of database."""

import fcntl
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from django.core.management import call_command
from django.db import connections

from django_jobchains.db.connections import drop_connection
from tests.settings import TEMPLATE_NAME

#: An SQLite database after all migrations, which the processes of a run share.
TEMPLATE = Path(tempfile.gettempdir()) / f"{TEMPLATE_NAME}.sqlite3"


@contextmanager
def database(alias, settings, blocker):
    """Add an alias with the settings of the test database, overridden by these."""
    connections.settings[alias] = {**connections["default"].settings_dict, **settings}
    with blocker.unblock():  # this test's list of allowed aliases does not contain the new one
        yield alias
    drop_connection(connections[alias])  # Django's own close() leaves a database in memory open
    del connections.settings[alias]


@contextmanager
def sqlite_database(alias, name, blocker, *, is_migrated=True):
    """Add an alias for an SQLite database of this name."""
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    with database(alias, settings, blocker):
        if is_migrated:
            migrate(alias)
        yield alias


def migrate(alias):
    """Give an empty SQLite database all tables, in much less time than its migrations take."""
    connections[alias].ensure_connection()
    with closing(sqlite3.connect(":memory:")) as source:
        source.deserialize(_migrated())
        source.backup(connections[alias].connection)


@contextmanager
def copied_database():
    """Return the path of the SQLite database of this process."""
    path = Path(connections["default"].settings_dict["NAME"])
    path.write_bytes(_migrated())
    yield
    connections.close_all()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@cache
def _migrated():
    """Return the template, which the first process that needs it creates."""
    with TEMPLATE.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        content = file.read()
        if not content:
            content = _migrate_in_memory()
            file.write(content)
    return content


def _migrate_in_memory():
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}
    connections.settings["migrated"] = {**connections["default"].settings_dict, **settings}
    try:
        call_command("migrate", database="migrated", run_syncdb=True, verbosity=0)
        return bytes(connections["migrated"].connection.serialize())
    finally:
        drop_connection(connections["migrated"])
        del connections.settings["migrated"]


@contextmanager
def without_table(name):
    """Rename a table for the time of the block."""
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {name} RENAME TO elsewhere")
    yield
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE elsewhere RENAME TO {name}")


@contextmanager
def without_column(table, name):
    """Rename a column for the time of the block, as before a migration."""
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO elsewhere")
    try:
        yield
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} RENAME COLUMN elsewhere TO {name}")
