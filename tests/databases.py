"""Further databases of the project, for tests of what holds of a kind of database alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_jobchains.hygiene import discard


@contextmanager
def database(alias: str, settings: dict[str, Any], blocker: Any) -> Iterator[str]:
    """An alias with these settings, and with the others of the test's database."""
    connections.settings[alias] = {**connections["default"].settings_dict, **settings}
    with blocker.unblock():  # the alias is newer than the list of those that this test may use
        yield alias
    discard(connections[alias])  # Django's own close() leaves a database in memory open
    del connections.settings[alias]


@contextmanager
def sqlite_database(alias: str, name: str, blocker: Any, *, is_migrated: bool = True) -> Iterator[str]:
    """An SQLite database of this name under an alias."""
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    with database(alias, settings, blocker):
        if is_migrated:
            call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        yield alias


@pytest.fixture
def empty_database(transactional_db: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[str]:
    """A database of the test's vendor without tables."""
    if connections["default"].vendor == "sqlite":
        settings: dict[str, Any] = {"NAME": str(tmp_path / "empty.sqlite3")}
    else:
        settings = {"OPTIONS": {"options": "-c search_path=nowhere"}}
    with database("empty", settings, django_db_blocker) as alias:
        yield alias


@pytest.fixture
def private_memory(transactional_db: None, django_db_blocker: Any) -> Iterator[str]:
    """A database in memory that each thread has to itself."""
    with sqlite_database("memory", ":memory:", django_db_blocker) as alias:
        yield alias


@pytest.fixture
def memory(transactional_db: None, django_db_blocker: Any) -> Iterator[str]:
    """A database in memory that the threads of this process share, as Django's own test databases are."""
    with sqlite_database("memory", "file:jobchains?mode=memory&cache=shared", django_db_blocker) as alias:
        yield alias
