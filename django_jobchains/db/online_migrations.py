"""Migrations that run on a live PostgreSQL database, while workers and requests continue.

``OnlineMigration`` gives up soon when it cannot lock a table, and ``AddIndexOnline`` and ``ReplaceIndexOnline`` build
indexes without blocking writes. On other databases they are ordinary migrations and operations.
See ``docs/decisions/0030-migrations-and-databases.md``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import NotSupportedError, OperationalError, migrations, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddIndex
from django.db.migrations.state import ProjectState

#: How long a statement waits for a table's lock, unless the connection sets a ``lock_timeout`` itself. All writers to
#: the table queue behind the waiting statement.
LOCK_TIMEOUT_SECONDS = 2

_LOCK_NOT_AVAILABLE = "55P03"


class OnlineMigration(migrations.Migration):
    """A migration that raises ``CommandError`` when another transaction keeps it from locking a table.

    Nothing is changed then, because the migration is one transaction. A migration that builds indexes sets
    ``atomic = False`` and consists of the operations of this module only.
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
        if schema_editor.connection.vendor != "postgresql" or not self.atomic:
            yield
            return
        try:
            _limit_lock_waits(schema_editor)
            yield
            _execute_deferred(schema_editor)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise CommandError(
                    f"Migration {self} changed nothing: another transaction holds a lock on a table that it alters. "
                    "Run migrate again. If that fails too, end long transactions or stop the workers first."
                ) from error
            raise


class AddIndexOnline(AddIndex):
    """Add an index, without blocking writes on PostgreSQL; the migration sets ``atomic = False``.

    When an earlier run was interrupted, it replaces an invalid index and keeps a valid one.
    """

    atomic = False

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model: Any = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            _add_index(schema_editor, model, self.index)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model: Any = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            _remove_index(schema_editor, model, self.index)

    def describe(self) -> str:
        return f"{super().describe()} without blocking writes"


class ReplaceIndexOnline(AddIndexOnline):
    """Replace the index of the same name; the old one serves queries until the new one is complete.

    An interrupted run is completed by the next one.
    """

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.remove_index(app_label, self.model_name_lower, self.index.name)
        super().state_forwards(app_label, state)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._replace(app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._replace(app_label, schema_editor, to_state)

    def describe(self) -> str:
        return f"Replace index {self.index.name} on model {self.model_name} without blocking writes"

    def _replace(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        model: Any = state.apps.get_model(app_label, self.model_name)
        index = state.models[app_label, self.model_name_lower].get_index_by_name(self.index.name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if schema_editor.connection.vendor != "postgresql":
            with transaction.atomic(using=schema_editor.connection.alias):
                schema_editor.remove_index(model, index)
                schema_editor.add_index(model, index)
            return
        new = index.clone()
        new.name = f"{index.name}_new"
        _add_index(schema_editor, model, new)
        _remove_index(schema_editor, model, index)
        schema_editor.rename_index(model, new, index)


def _limit_lock_waits(schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.collect_sql or _setting(schema_editor, "lock_timeout") == "0":
        schema_editor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'", params=None)


def _execute_deferred(schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Add foreign keys now. Django does so when the schema editor closes, where no migration sees the error."""
    while schema_editor.deferred_sql:
        schema_editor.execute(schema_editor.deferred_sql.pop(0), None)


def _add_index(schema_editor: Any, model: type[models.Model], index: models.Index) -> None:
    if schema_editor.connection.vendor != "postgresql":
        if not _has_index(schema_editor, model, index):
            schema_editor.add_index(model, index)
        return
    with _no_time_limits(schema_editor):
        is_valid = None if schema_editor.collect_sql else _is_valid(schema_editor, index)
        if is_valid is False:
            schema_editor.remove_index(model, index, concurrently=True)
        if not is_valid:
            schema_editor.add_index(model, index, concurrently=True)


def _remove_index(schema_editor: Any, model: type[models.Model], index: models.Index) -> None:
    if schema_editor.connection.vendor != "postgresql":
        if _has_index(schema_editor, model, index):
            schema_editor.remove_index(model, index)
        return
    with _no_time_limits(schema_editor):
        schema_editor.remove_index(model, index, concurrently=True)


def _has_index(schema_editor: BaseDatabaseSchemaEditor, model: type[models.Model], index: models.Index) -> bool:
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        return index.name in connection.introspection.get_constraints(cursor, model._meta.db_table)


def _is_valid(schema_editor: BaseDatabaseSchemaEditor, index: models.Index) -> bool | None:
    """Return None if there is no such index, and False if an earlier build of it did not finish."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)",
            [schema_editor.quote_name(index.name)],
        )
        row: tuple[bool] | None = cursor.fetchone()
    return row[0] if row else None


@contextmanager
def _no_time_limits(schema_editor: BaseDatabaseSchemaEditor) -> Iterator[None]:
    """Let concurrent statements wait for old transactions: nothing waits for these statements."""
    if schema_editor.connection.in_atomic_block:
        raise NotSupportedError(
            "PostgreSQL builds and drops indexes concurrently outside of transactions only. "
            "Set atomic = False on the migration, and run migrate outside of transaction.atomic()."
        )
    names = () if schema_editor.collect_sql else ("lock_timeout", "statement_timeout")
    before = {name: _setting(schema_editor, name) for name in names}
    for name in names:
        _set(schema_editor, name, "0")
    try:
        yield
    finally:
        for name, value in before.items():
            _set(schema_editor, name, value)


def _setting(schema_editor: BaseDatabaseSchemaEditor, name: str) -> str:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        row: tuple[str] = cursor.fetchone()
    return row[0]


def _set(schema_editor: BaseDatabaseSchemaEditor, name: str, value: str) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT set_config(%s, %s, false)", [name, value])
