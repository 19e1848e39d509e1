"""The page *Upgrading* has a row for each migration, with the locks that it takes on tables that existed before."""

import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests.online_migrations.test_lint import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "upgrading.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = {name: (locks, duration) for name, locks, duration in ROW.findall(PAGE.read_text())}


class Undo(Exception):
    pass


def test_each_migration_has_a_row():
    assert list(ROWS) == NAMES


@pytest.mark.postgresql
@pytest.mark.parametrize(("before", "name"), list(pairwise(NAMES)))
def test_locks_of_a_migration_are_documented(migrate, before, name):
    """Only of migrations that are one transaction: others hold each lock for one statement."""
    migrate(before)
    loader = MigrationLoader(connection)
    migration = loader.graph.nodes["django_jobchains", name]
    tables = connection.introspection.table_names(include_views=True)
    locks = None
    with suppress(Undo), connection.schema_editor(atomic=migration.atomic) as editor:
        migration.apply(loader.project_state([("django_jobchains", before)]), editor)
        if migration.atomic:
            locks = held_locks(tables)
            raise Undo
    documented = ROWS[name][0]
    assert locks in (None, set(re.findall(r"`([A-Z ]+)`", documented))), f"{locks} is not: {documented}"


def held_locks(tables):
    """Return the names of the locks of this transaction on these tables that writers notice."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation "
            "WHERE pid = pg_backend_pid() AND relname = ANY(%s) "
            "AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')",
            [tables],
        )
        return {re.sub(r"(?<!^)(?=[A-Z])", " ", mode.removesuffix("Lock")).upper() for (mode,) in cursor.fetchall()}
