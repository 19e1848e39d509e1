"""Indexes are built and replaced beside writers, and an interrupted migration is completed by the next run."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import NotSupportedError, OperationalError, connection, models, transaction
from django.db.migrations import Migration
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

from django_jobchains.models import Job
from django_jobchains.online_migrations import AddIndexOnline
from tests.worker.waiting import until

TABLE = Job._meta.db_table
INDEXES = ("jobchains_claimable", "jobchains_failed_type", "jobchains_failed_chain")


def execute(sql: str, using: Any = connection) -> list[Any]:
    with using.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def definitions() -> dict[str, str]:
    """Of the valid indexes."""
    if connection.vendor == "sqlite":
        return dict(execute(f"SELECT name, sql FROM sqlite_master WHERE tbl_name = '{TABLE}' AND type = 'index'"))
    return dict(
        execute(
            "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index "
            f"WHERE indrelid = '{TABLE}'::regclass AND indisvalid"
        )
    )


def interrupted(index: str, other: Any) -> None:
    """Leave an invalid index, as a concurrent build does that is cancelled."""
    other.set_autocommit(False)
    execute(f'LOCK TABLE "{TABLE}" IN ROW EXCLUSIVE MODE', other)
    execute("SET lock_timeout = '1ms'")
    with pytest.raises(OperationalError, match="lock timeout"):
        execute(f'CREATE INDEX CONCURRENTLY "{index}" ON "{TABLE}" (id)')
    execute("RESET lock_timeout")
    other.rollback()
    assert execute(f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{index}'::regclass") == [(False,)]


def unrecord() -> None:
    """The last step of a migration did not happen."""
    MigrationRecorder(connection).record_unapplied("django_jobchains", "0005_admin_indexes")


def test_forwards_and_backwards_and_forwards_again(migrate: Any) -> None:
    expected = definitions()
    migrate("0004")
    before = definitions()
    assert before.keys() == expected.keys() - {"jobchains_failed_type", "jobchains_failed_chain"}
    assert before["jobchains_claimable"] != expected["jobchains_claimable"]
    migrate()
    assert definitions() == expected


def test_a_run_that_was_interrupted_before_it_was_recorded_is_repeated(migrate: Any) -> None:
    migrate("0005")
    expected = definitions()
    unrecord()
    migrate("0005")
    assert definitions() == expected


@pytest.mark.postgresql
class TestOnPostgreSQL:
    @pytest.mark.parametrize("index", ["jobchains_claimable_new", "jobchains_failed_type", "jobchains_failed_chain"])
    def test_an_invalid_index_of_an_interrupted_build_is_replaced(self, migrate: Any, other: Any, index: str) -> None:
        expected = definitions()
        migrate("0004")
        interrupted(index, other)
        migrate()
        assert definitions() == expected
        assert execute("SELECT 1 FROM pg_index WHERE NOT indisvalid") == []

    def test_a_replacement_that_was_interrupted_before_it_was_renamed_is_completed(self, migrate: Any) -> None:
        expected = definitions()
        migrate("0004")
        definition = expected["jobchains_claimable"].replace("jobchains_claimable", "jobchains_claimable_new")
        execute(f"{definition}; DROP INDEX jobchains_claimable")
        migrate()
        assert definitions() == expected

    def test_writers_go_on_while_an_index_waits_for_an_old_transaction(self, migrate: Any, other: Any) -> None:
        """However long that takes: the connection's own time limits do not end it."""
        expected = definitions()
        migrate("0004")
        other.set_autocommit(False)
        execute(f'LOCK TABLE "{TABLE}" IN ROW EXCLUSIVE MODE', other)
        migrating = threading.Thread(target=self._migrate, args=(migrate,))
        migrating.start()
        try:
            until(self._waits, 30)
            execute("SET lock_timeout = '1s'")
            with transaction.atomic():
                execute(f'LOCK TABLE "{TABLE}" IN ROW EXCLUSIVE MODE')
            assert set(INDEXES[:1]) <= definitions().keys()
        finally:
            other.rollback()
            migrating.join(30)
            connection.close()
        assert definitions() == expected

    @staticmethod
    def _migrate(migrate: Any) -> None:
        try:
            execute("SET lock_timeout = '10ms'")
            execute("SET statement_timeout = '1s'")
            migrate()
        finally:
            connection.close()

    @staticmethod
    def _waits() -> bool:
        return bool(
            execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
                "AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND query_start < clock_timestamp() - interval '1.2 s'"
            )
        )

    def test_the_time_limits_of_the_connection_hold_again_afterwards(self, migrate: Any) -> None:
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

    def test_within_a_transaction_it_says_what_to_do(self, transactional_db: None) -> None:
        operation = AddIndexOnline("job", models.Index(fields=["queue"], name="jobchains_one_more"))
        migration = Migration("one_more", "django_jobchains")
        migration.operations = [operation]
        state = ProjectState.from_apps(apps)
        with connection.schema_editor() as editor, pytest.raises(NotSupportedError, match="Set atomic = False"):
            migration.apply(state, editor)


class NoRouter:
    """Keeps the tables off this database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return False


def test_a_router_that_keeps_the_tables_off_a_database_keeps_the_indexes_off_too(migrate: Any, settings: Any) -> None:
    migrate("0004")
    before = definitions()
    settings.DATABASE_ROUTERS = [NoRouter()]
    migrate("0005")
    assert definitions() == before
    settings.DATABASE_ROUTERS = []
    unrecord()


@pytest.fixture(autouse=True)
def _no_index_is_left(transactional_db: None) -> Iterator[None]:
    yield
    assert not {name for name in definitions() if name.endswith("_new")}
