"""Migration operations for storage settings of PostgreSQL. A project may change the settings afterwards."""

from collections.abc import Mapping
from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class _AlterTable(Operation):
    """Alters the table of the model ``model_name`` on PostgreSQL. Does nothing on other databases."""

    reduces_to_sql = True
    reversible = True
    model_name: str

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Do nothing: the settings are not part of the model."""

    def _alter(self, what: str, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        connection = schema_editor.connection
        model: Any = state.apps.get_model(app_label, self.model_name)
        if connection.vendor == "postgresql" and router.allow_migrate_model(connection.alias, model):
            schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(model._meta.db_table)} {what}")


class SetStorageParameters(_AlterTable):
    """Sets storage parameters of a model's table, or resets them when it is reversed. On PostgreSQL only.

    It blocks neither readers nor writers of the table, and writes no rows.
    """

    def __init__(self, model_name: str, parameters: Mapping[str, float]) -> None:
        self.model_name = model_name
        self.parameters = dict(parameters)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        values = ", ".join(f"{name} = {value}" for name, value in self.parameters.items())
        self._alter(f"SET ({values})", app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._alter(f"RESET ({', '.join(self.parameters)})", app_label, schema_editor, to_state)

    def describe(self) -> str:
        return f"Set storage parameters of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name.lower()}_storage"


class SetUnlogged(_AlterTable):
    """Excludes a model's table from the write-ahead log: faster, but empty after a crash. On PostgreSQL only.

    The table is rewritten under an exclusive lock, so use it in the migration that creates the table.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._alter("SET UNLOGGED", app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._alter("SET LOGGED", app_label, schema_editor, to_state)

    def describe(self) -> str:
        return f"Keep {self.model_name} out of the write-ahead log"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name.lower()}_unlogged"
