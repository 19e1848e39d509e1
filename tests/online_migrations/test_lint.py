"""No migration blocks the workers and requests of a live PostgreSQL database."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader

from django_jobchains.db.online_migrations import OnlineMigration
from tests.online_migrations.lint import problems

NAMES = sorted(name for app, name in MigrationLoader(None).graph.nodes if app == "django_jobchains")


@pytest.mark.parametrize("name", NAMES[1:])
def test_migrations_have_a_lock_timeout(name):
    """This includes migrations whose operations cannot be shown as SQL."""
    migration = MigrationLoader(None).graph.nodes["django_jobchains", name]
    assert isinstance(migration, OnlineMigration)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", NAMES[1:])
def test_sql_of_migrations_does_not_block_tables_in_use(name):
    """The first migration is exempt, because it only creates tables."""
    output = StringIO()
    call_command("sqlmigrate", "django_jobchains", name, stdout=output, no_color=True)
    assert list(problems(output.getvalue())) == []


def test_lint_reports_blocking_sql_and_unlimited_waits():
    limit, short = "SET LOCAL lock_timeout = '2s'", 'ALTER TABLE "job" ADD COLUMN "a" varchar(20) NULL'
    for blocking in ('CREATE INDEX "i" ON "job" ("a")', 'ALTER TABLE "job" ALTER COLUMN "a" SET NOT NULL'):
        assert len(list(problems(f"BEGIN;\n{limit};\n{short};\n{blocking};\nCOMMIT;"))) == 1
    assert len(list(problems(f"BEGIN;\n{short};\nCOMMIT;"))) == 1
