"""Indexes are built without blocking writers, and an interrupted migration is completed by the next run."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import NotSupportedError, OperationalError, connection, models, transaction
from django.db.migrations import Migration
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

from django_jobchains.db.online_migrations import AddIndexOnline
from django_jobchains.models import Job
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TABLE = Job._meta.db_table
INDEXES = ("jobchains_claimable", "jobchains_failed_type", "jobchains_failed_chain")


def execute(sql: str, using: Any = connection) -> list[Any]:
    with using.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def index_definitions() -> dict[str, str]:
    """Return the SQL of the valid indexes of the job table by name."""
    if connection.vendor == "sqlite":
        return dict(execute(f"SELECT name, sql FROM sqlite_master WHERE tbl_name = '{TABLE}' AND type = 'index'"))
    return dict(
        execute(
            "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index "
            f"WHERE indrelid = '{TABLE}'::regclass AND indisvalid"
        )
    )


def interrupt_build(index: str, other: Any) -> None:
    """Create an invalid index, as a cancelled concurrent build does."""
    other.set_autocommit(False)
    execute(f'LOCK TABLE "{TABLE}" IN ROW EXCLUSIVE MODE', other)
    execute("SET lock_timeout = '1ms'")
    with pytest.raises(OperationalError, match="lock timeout"):
        execute(f'CREATE INDEX CONCURRENTLY "{index}" ON "{TABLE}" (id)')
    execute("RESET lock_timeout")
    other.rollback()
    assert execute(f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{index}'::regclass") == [(False,)]


def unrecord_migration() -> None:
    """Undo the last step of a migration, as if it had been interrupted before."""
    MigrationRecorder(connection).record_unapplied("django_jobchains", "0005_admin_indexes")


def test_migrations_can_be_reversed_and_repeated(migrate: Any) -> None:
    expected = index_definitions()
    migrate("0004")
    before = index_definitions()
    assert expected.keys() - before.keys() >= {"jobchains_failed_type", "jobchains_failed_chain", "jobchains_queue"}
    assert before.keys() < expected.keys()
    assert before["jobchains_claimable"] != expected["jobchains_claimable"]
    migrate()
    assert index_definitions() == expected


def test_migration_that_was_not_recorded_can_be_repeated(migrate: Any) -> None:
    migrate("0005")
    expected = index_definitions()
    unrecord_migration()
    migrate("0005")
    assert index_definitions() == expected


@pytest.mark.postgresql
class TestOnPostgreSQL:
    @pytest.mark.parametrize("index", ["jobchains_claimable_new", "jobchains_failed_type", "jobchains_failed_chain"])
    def test_invalid_index_is_replaced(self, migrate: Any, other: Any, index: str) -> None:
        expected = index_definitions()
        migrate("0004")
        interrupt_build(index, other)
        migrate()
        assert index_definitions() == expected
        assert execute("SELECT 1 FROM pg_index WHERE NOT indisvalid") == []

    def test_replacement_that_was_not_renamed_is_completed(self, migrate: Any) -> None:
        expected = index_definitions()
        migrate("0004")
        definition = expected["jobchains_claimable"].replace("jobchains_claimable", "jobchains_claimable_new")
        execute(f"{definition}; DROP INDEX jobchains_claimable")
        migrate()
        assert index_definitions() == expected

    def test_writers_are_not_blocked_while_an_index_is_built(self, migrate: Any, other: Any) -> None:
        """The build waits for an old transaction, and the timeouts of its connection do not end it."""
        expected = index_definitions()
        migrate("0004")
        other.set_autocommit(False)
        execute(f'LOCK TABLE "{TABLE}" IN ROW EXCLUSIVE MODE', other)
        migrating = threading.Thread(target=self._migrate, args=(migrate,))
        migrating.start()
        try:
            until(self._build_is_waiting, 30)
            execute("SET lock_timeout = '1s'")
            with transaction.atomic():
                execute(f'LOCK TABLE "{TABLE}" IN ROW EXCLUSIVE MODE')
            assert set(INDEXES[:1]) <= index_definitions().keys()
        finally:
            other.rollback()
            migrating.join(30)
            connection.close()
        assert index_definitions() == expected

    @staticmethod
    def _migrate(migrate: Any) -> None:
        try:
            execute("SET lock_timeout = '10ms'")
            execute("SET statement_timeout = '1s'")
            migrate()
        finally:
            connection.close()

    @staticmethod
    def _build_is_waiting() -> bool:
        return bool(
            execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
                "AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND query_start < clock_timestamp() - interval '1.2 s'"
            )
        )

    def test_timeouts_of_the_connection_are_restored(self, migrate: Any) -> None:
        migrate("0004")
        execute("SET lock_timeout = '7s'")
        execute("SET statement_timeout = '70s'")
        try:
            migrate()
            assert execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')") == [
                ("7s", "70s")
            ]
        finally:
            connection.close()

    def test_operation_in_a_transaction_is_refused(self, transactional_db: None) -> None:
        operation = AddIndexOnline("job", models.Index(fields=["queue"], name="jobchains_one_more"))
        migration = Migration("one_more", "django_jobchains")
        migration.operations = [operation]
        state = ProjectState.from_apps(apps)
        with connection.schema_editor() as editor, pytest.raises(NotSupportedError, match="Set atomic = False"):
            migration.apply(state, editor)


class RefusingRouter:
    """A router that allows no migration of this database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return False


def test_router_that_refuses_the_tables_refuses_the_indexes(migrate: Any, settings: Any) -> None:
    migrate("0004")
    before = index_definitions()
    settings.DATABASE_ROUTERS = [RefusingRouter()]
    migrate("0005")
    assert index_definitions() == before
    settings.DATABASE_ROUTERS = []
    unrecord_migration()


@pytest.fixture(autouse=True)
def _no_temporary_index_remains(transactional_db: None) -> Iterator[None]:
    yield
    assert not {name for name in index_definitions() if name.endswith("_new")}
