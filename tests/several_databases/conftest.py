"""A second database with job tables: on the same server, and on SQLite."""

from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.db.utils import ConnectionHandler

from django_jobchains import notifications, store
from django_jobchains.notifications import waiting
from tests.settings import DATABASE_NAME, sqlite
from tests.support.databases import migrate
from tests.support.tracing import recorded

__all__ = ("recorded",)

OTHER = "other"
NAME = f"{DATABASE_NAME}_other"
FILE = f"{sqlite()['NAME']}-other"


#: The second database is of the same vendor as the first one, or SQLite.
KINDS = ("same", "sqlite") if connection.vendor == "postgresql" else ("same",)


@pytest.fixture(scope="package", params=KINDS)
def _other_database(request, django_db_setup, django_db_blocker):
    is_server = connection.vendor == "postgresql" and request.param == "same"
    settings = {**connections.settings["default"], "NAME": NAME} if is_server else {**sqlite(), "NAME": FILE}
    connections.settings[OTHER] = ConnectionHandler({"default": settings}).settings["default"]
    with django_db_blocker.unblock():
        try:
            if is_server:
                _execute(f'CREATE DATABASE "{NAME}"')
                call_command("migrate", database=OTHER, run_syncdb=True, verbosity=0)
            else:
                migrate(OTHER)
            yield
        finally:
            _forget()
            if is_server:
                _execute(f'DROP DATABASE IF EXISTS "{NAME}" WITH (FORCE)')
            for suffix in ("", "-wal", "-shm"):
                Path(f"{FILE}{suffix}").unlink(missing_ok=True)


@pytest.fixture
def other(_other_database, transactional_db, monkeypatch):
    """The alias of the second database, whose tables are empty."""
    if connection.vendor == "postgresql":  # a listener is closed between two ticks
        monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    yield OTHER
    for alias in ("default", OTHER):
        waiting.get_watcher(alias).close(10)


def _execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
    connection.close()


def _forget():
    """Remove the connection and everything cached for it: the alias is used again with another vendor."""
    connections[OTHER].close()
    del connections[OTHER]
    del connections.settings[OTHER]
    store._store.cache_clear()
    store._stores.clear()
    notifications._notifiers.pop(OTHER, None)
