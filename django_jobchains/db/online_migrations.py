"""Migrations that run on a live PostgreSQL database, while workers and requests continue.

See ``docs/decisions/0030-migrations-and-databases.md``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import OperationalError, migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

#: How long a statement waits for a table's lock, unless the connection sets a ``lock_timeout`` itself. All writers to
#: the table queue behind the waiting statement.
LOCK_TIMEOUT_SECONDS = 2

_LOCK_NOT_AVAILABLE = "55P03"


class OnlineMigration(migrations.Migration):
    """A migration that raises ``CommandError`` when another transaction keeps it from locking a table.

    Nothing is changed then, because the migration is one transaction. On other databases it is an ordinary migration.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        with self._short_locks(schema_editor):
            return super().apply(project_state, schema_editor, collect_sql)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        with self._short_locks(schema_editor):
            return super().unapply(project_state, schema_editor, collect_sql)

    @contextmanager
    def _short_locks(self, schema_editor: BaseDatabaseSchemaEditor) -> Iterator[None]:
        if schema_editor.connection.vendor != "postgresql":
            yield
            return
        try:
            if schema_editor.collect_sql or _lock_timeout(schema_editor) == "0":
                schema_editor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'", params=None)
            yield
            # Add foreign keys now: Django does so when the schema editor closes, where no migration sees the error.
            while schema_editor.deferred_sql:
                schema_editor.execute(schema_editor.deferred_sql.pop(0), None)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise CommandError(
                    f"Migration {self} changed nothing: another transaction holds a lock on a table that it alters. "
                    "Run migrate again. If that fails too, end long transactions or stop the workers first."
                ) from error
            raise


class RunOnPostgreSQL(migrations.RunSQL):
    """Runs SQL on PostgreSQL, and nothing on other databases."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


def _lock_timeout(schema_editor: BaseDatabaseSchemaEditor) -> str:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        row: tuple[str] = cursor.fetchone()
    return row[0]
