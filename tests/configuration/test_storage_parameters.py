"""The migration with storage parameters: it sets them on PostgreSQL, for any table name, and can be reversed."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, models
from django.db.migrations.state import ModelState, ProjectState

from django_jobchains.db.storage_parameters import SetStorageParameters
from django_jobchains.models import FailedAttempt, Job, JobBlocker, JobProgress, KeyLock, LogLine

pytestmark = pytest.mark.django_db

OF_HISTORY = {
    "autovacuum_vacuum_scale_factor=0.05",
    "autovacuum_analyze_scale_factor=0.05",
    "autovacuum_vacuum_cost_limit=2000",
}


class NoRouter:
    """A router that excludes the tables from this database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return False


def parameters(table: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [connection.ops.quote_name(table)])
        return set(cursor.fetchone()[0] or ())


def sql_of_the_migration(**options: Any) -> str:
    output = StringIO()
    call_command("sqlmigrate", "django_jobchains", "0003", stdout=output, no_color=True, **options)
    return "".join(line for line in output.getvalue().splitlines(True) if not line.startswith("--"))


@pytest.mark.postgresql
class TestOnPostgreSQL:
    @pytest.fixture
    def _migrate_again(self) -> Iterator[None]:
        yield
        call_command("migrate", "django_jobchains", verbosity=0)

    def test_they_are_set(self) -> None:
        for model in (Job, JobBlocker, FailedAttempt):
            assert parameters(model._meta.db_table) == OF_HISTORY
        assert parameters(LogLine._meta.db_table) == OF_HISTORY
        assert parameters(JobProgress._meta.db_table) == OF_HISTORY | {"fillfactor=70"}

    def test_the_table_of_keys_is_unlogged(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT relpersistence FROM pg_class WHERE oid = %s::regclass", [KeyLock._meta.db_table])
            assert cursor.fetchone() == ("u",)

    @pytest.mark.usefixtures("_migrate_again")
    @pytest.mark.django_db(transaction=True)
    def test_the_reverse_migration_resets_them(self) -> None:
        call_command("migrate", "django_jobchains", "0002", verbosity=0)
        for model in (Job, JobBlocker, FailedAttempt):
            assert parameters(model._meta.db_table) == set()

    def test_they_apply_to_any_table_name_if_the_router_allows_it(self, settings: Any) -> None:
        state = ProjectState()
        name = "Things of ours"
        state.add_model(ModelState("shop", "Thing", [("id", models.AutoField(primary_key=True))], {"db_table": name}))
        operation = SetStorageParameters("Thing", {"fillfactor": 70})
        with connection.schema_editor() as editor:
            editor.create_model(state.apps.get_model("shop", "Thing"))
            settings.DATABASE_ROUTERS = [NoRouter()]
            operation.database_forwards("shop", editor, state, state)
            assert parameters(name) == set()
            settings.DATABASE_ROUTERS = []
            operation.database_forwards("shop", editor, state, state)
            assert parameters(name) == {"fillfactor=70"}
            operation.database_backwards("shop", editor, state, state)
            assert parameters(name) == set()


@pytest.mark.django_db(transaction=True)
def test_sqlmigrate_shows_them_only_on_postgresql() -> None:
    sql = sql_of_the_migration(), sql_of_the_migration(backwards=True)
    if connection.vendor == "postgresql":
        assert f'ALTER TABLE "{Job._meta.db_table}" SET (autovacuum_vacuum_scale_factor = 0.05' in sql[0]
        assert f'ALTER TABLE "{FailedAttempt._meta.db_table}" RESET (autovacuum_vacuum_scale_factor, ' in sql[1]
    else:
        assert "ALTER" not in "".join(sql)


def test_they_are_not_part_of_the_state_of_models() -> None:
    state = ProjectState.from_apps(apps)
    before = state.models["django_jobchains", "job"]
    SetStorageParameters("Job", {"fillfactor": 70}).state_forwards("django_jobchains", state)
    assert state.models["django_jobchains", "job"] is before
