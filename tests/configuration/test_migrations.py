"""The migrations match the models, and set storage parameters on PostgreSQL only."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from django_jobchains.models import FailedAttempt, Job, JobBlocker, JobProgress, KeyLock, LogLine

pytestmark = pytest.mark.django_db

OF_HISTORY = {
    "autovacuum_vacuum_scale_factor=0.05",
    "autovacuum_analyze_scale_factor=0.05",
    "autovacuum_vacuum_cost_limit=2000",
}


@pytest.mark.parametrize("name", ["AutoField", "BigAutoField"])
def test_no_migration_is_missing_whatever_the_default_type_of_primary_keys_is(settings, capsys, name):
    settings.DEFAULT_AUTO_FIELD = f"django.db.models.{name}"
    call_command("makemigrations", "django_jobchains", check_changes=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out


@pytest.mark.postgresql
def test_storage_parameters_are_set():
    assert stored(Job) == (OF_HISTORY | {"fillfactor=90"}, False)
    for model in (JobBlocker, FailedAttempt, LogLine):
        assert stored(model) == (OF_HISTORY, False)
    assert stored(JobProgress) == (OF_HISTORY | {"fillfactor=70"}, False)
    assert stored(KeyLock) == (set(), True)


def stored(model):
    """Return the storage parameters of a model's table, and whether it is unlogged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions, relpersistence FROM pg_class WHERE relname = %s", [model._meta.db_table])
        parameters, persistence = cursor.fetchone()
    return set(parameters or ()), persistence == "u"


@pytest.mark.django_db(transaction=True)
def test_sqlmigrate_shows_them_only_on_postgresql():
    output = StringIO()
    call_command("sqlmigrate", "django_jobchains", "0002", stdout=output, no_color=True)
    assert ("ALTER TABLE" in output.getvalue()) == (connection.vendor == "postgresql")
