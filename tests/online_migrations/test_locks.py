"""A migration that cannot lock a table soon fails with a clear error and changes nothing."""

from contextlib import contextmanager

import pytest
from django.apps import apps
from django.core.management import CommandError
from django.db import connection, migrations, models
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

from django_jobchains.db.online_migrations import OnlineMigration
from django_jobchains.models import Job

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

JOB = Job._meta.db_table


def later(*operations):
    """Return a migration of a later version."""
    migration = OnlineMigration("0099_later", "django_jobchains")
    migration.operations = list(operations)
    return migration


COLUMN = later(migrations.AddField("job", "later", models.IntegerField(null=True)))
#: The foreign key is created after the last operation, and waits for the same lock.
TABLE = later(
    migrations.CreateModel(
        "Later",
        [
            ("id", models.AutoField(primary_key=True)),
            ("job", models.ForeignKey("django_jobchains.job", models.CASCADE, related_name="+")),
        ],
    )
)


def run(migration, *, backwards=False):
    with connection.schema_editor(atomic=True) as editor:
        call = migration.unapply if backwards else migration.apply
        call(ProjectState.from_apps(apps), editor)


def execute(sql, using=connection):
    with using.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone() if cursor.description else None


def schema():
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, JOB)
        return connection.introspection.table_names(cursor), [column.name for column in columns]


@contextmanager
def locked(mode="ROW EXCLUSIVE"):
    """Hold another connection's transaction open that has written to the job table."""
    other = connection.copy()
    try:
        other.set_autocommit(False)
        execute(f'LOCK TABLE "{JOB}" IN {mode} MODE', other)
        yield
    finally:
        other.close()


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr("django_jobchains.db.online_migrations.LOCK_TIMEOUT_SECONDS", 0.1)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("migration", [COLUMN, TABLE], ids=["column", "foreign key"])
def test_migration_that_gives_up_changes_nothing_and_can_be_repeated(migration):
    before = schema()
    with locked(), pytest.raises(CommandError, match=r"0099_later changed nothing: .* Run migrate again\."):
        run(migration)
    assert schema() == before
    run(migration)
    after = schema()
    try:
        with locked(), pytest.raises(CommandError, match=r"Run migrate again\."):
            run(migration, backwards=True)
        assert schema() == after != before
    finally:
        run(migration, backwards=True)
    assert schema() == before


@pytest.mark.usefixtures("short_limit")
def test_the_command_gives_up_too(migrate):
    migrate("0001")
    with locked("SHARE UPDATE EXCLUSIVE"), pytest.raises(CommandError, match=r"0002_postgresql changed nothing: "):
        migrate()
    assert ("django_jobchains", "0002_postgresql") not in MigrationRecorder(connection).applied_migrations()
    migrate()
    assert ("django_jobchains", "0002_postgresql") in MigrationRecorder(connection).applied_migrations()
    assert execute("SHOW lock_timeout") == ("0",)


def test_lock_timeout_of_the_connection_is_kept(monkeypatch):
    monkeypatch.setattr("django_jobchains.db.online_migrations.LOCK_TIMEOUT_SECONDS", 600)
    execute("SET lock_timeout = '100ms'")
    try:
        with locked(), pytest.raises(CommandError, match=r"Run migrate again\."):
            run(COLUMN)
    finally:
        connection.close()
