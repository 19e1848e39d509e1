"""The migration with storage parameters: it sets them on PostgreSQL, and nothing on other databases."""

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


def stored(model):
    """Return the storage parameters of a model's table, and whether it is unlogged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions, relpersistence FROM pg_class WHERE relname = %s", [model._meta.db_table])
        parameters, persistence = cursor.fetchone()
    return set(parameters or ()), persistence == "u"


@pytest.mark.postgresql
def test_they_are_set():
    for model in (Job, JobBlocker, FailedAttempt, LogLine):
        assert stored(model) == (OF_HISTORY, False)
    assert stored(JobProgress) == (OF_HISTORY | {"fillfactor=70"}, False)
    assert stored(KeyLock) == (set(), True)


@pytest.mark.django_db(transaction=True)
def test_sqlmigrate_shows_them_only_on_postgresql():
    output = StringIO()
    call_command("sqlmigrate", "django_jobchains", "0002", stdout=output, no_color=True)
    assert ("ALTER TABLE" in output.getvalue()) == (connection.vendor == "postgresql")
