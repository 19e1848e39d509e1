"""A migration that cannot lock a table soon fails with a clear error and changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection, transaction

from django_jobchains.models import Job

pytestmark = pytest.mark.postgresql


@contextmanager
def open_writer(other: Any) -> Iterator[None]:
    """Hold another connection's transaction open that has written to the job table."""
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute(f'LOCK TABLE "{Job._meta.db_table}" IN ROW EXCLUSIVE MODE')
    yield
    other.rollback()


def columns() -> set[str]:
    with connection.cursor() as cursor:
        return {column.name for column in connection.introspection.get_table_description(cursor, Job._meta.db_table)}


@pytest.mark.parametrize(("state", "name"), [("0001", "0002_workers"), ("0003", "0004_admin")])
def test_migration_that_gives_up_changes_nothing_and_can_be_repeated(
    migrate: Any, other: Any, state: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0002 adds a column. The foreign keys of 0004 are created after its last operation, and wait for the same lock."""
    monkeypatch.setattr("django_jobchains.db.online_migrations.LOCK_TIMEOUT_SECONDS", 0.1)
    migrate(state)
    before = connection.introspection.table_names(), columns()
    with open_writer(other), pytest.raises(CommandError, match=rf"{name} changed nothing: .* Run migrate again\."):
        migrate(name)
    assert (connection.introspection.table_names(), columns()) == before
    migrate(name)
    assert connection.introspection.table_names() != before[0]


def test_reverse_migration_gives_up_too(migrate: Any, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobchains.db.online_migrations.LOCK_TIMEOUT_SECONDS", 0.1)
    migrate("0002")
    with open_writer(other), pytest.raises(CommandError, match=r"Run migrate again\."):
        migrate("0001")
    assert "context" in columns()


def test_shorter_lock_timeout_of_the_connection_is_kept(
    migrate: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobchains.db.online_migrations.LOCK_TIMEOUT_SECONDS", 600)
    migrate("0001")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
    try:
        with open_writer(other), pytest.raises(CommandError, match=r"Run migrate again\."):
            migrate("0002")
    finally:
        connection.close()


def test_lock_timeout_ends_with_the_migration(migrate: Any) -> None:
    migrate("0001")
    migrate("0002")
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_other_errors_are_not_replaced(migrate: Any, other: Any) -> None:
    migrate("0001")
    with other.cursor() as cursor:
        cursor.execute("CREATE TABLE django_jobchains_queuestate ()")
    try:
        with pytest.raises(Exception, match="already exists"):
            migrate("0002")
    finally:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("DROP TABLE django_jobchains_queuestate")
