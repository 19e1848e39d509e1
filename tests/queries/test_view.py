"""The view behind ``Chain``: a migration creates it, or a signal if tables were created without migrations."""

from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.models.signals import post_migrate

from django_jobchains.declare.checks import check_chain_view
from django_jobchains.models import Chain, chain_view
from django_jobchains.processors import JobType
from tests.support.chain_shapes import completed_in_three_steps

pytestmark = pytest.mark.django_db


def kind(using="default"):
    """Return the type of the relation in the database, "v" for a view; None if it does not exist."""
    with connections[using].cursor() as cursor:
        tables = connections[using].introspection.get_table_list(cursor)
    return next((table.type for table in tables if table.name == chain_view.NAME), None)


def exists():
    return kind() is not None


def run(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def _without_view(db):
    run(chain_view.DROP)
    assert not exists()


def test_its_columns_are_those_of_the_model():
    with connection.cursor() as cursor:
        columns = [column.name for column in connection.introspection.get_table_description(cursor, chain_view.NAME)]
    assert sorted(columns) == sorted(str(field.column) for field in Chain._meta.local_fields)


@pytest.mark.usefixtures("_without_view")
def test_the_signal_of_this_app_creates_it():
    chain = completed_in_three_steps()
    config = apps.get_app_config("auth")
    post_migrate.send(config, app_config=config, using="default", verbosity=0, interactive=False)
    assert not exists()
    config = apps.get_app_config("django_jobchains")
    post_migrate.send(config, app_config=config, using="default", verbosity=0, interactive=False)
    assert exists()
    assert Chain.objects.get(pk=chain.id).output == ["sent"]


def test_it_is_created_for_tables_without_migrations(second_alias, settings):
    """Test runners create them with ``MIGRATION_MODULES = {"django_jobchains": None}`` and ``run_syncdb``."""
    other = connections[second_alias]
    with other.cursor() as cursor:
        cursor.execute(chain_view.DROP)
        for model in reversed(list(apps.get_app_config("django_jobchains").get_models())):
            if model._meta.managed and not model._meta.proxy:
                cursor.execute(f"DROP TABLE {model._meta.db_table}")
        cursor.execute("DELETE FROM django_migrations WHERE app = 'django_jobchains'")
    settings.MIGRATION_MODULES = {**settings.MIGRATION_MODULES, "django_jobchains": None}
    call_command("migrate", database=second_alias, run_syncdb=True, verbosity=0)
    chain = completed_in_three_steps(using=second_alias)
    assert Chain.objects.using(second_alias).get(pk=chain.id).output == ["sent"]


@pytest.mark.slow
def test_migrating_to_zero_and_back_is_possible(second_alias):
    call_command("migrate", "django_jobchains", "zero", database=second_alias, verbosity=0)
    assert kind(second_alias) is None
    call_command("migrate", "django_jobchains", database=second_alias, verbosity=0)
    chain = completed_in_three_steps(using=second_alias)
    assert Chain.objects.using(second_alias).get(pk=chain.id).status == "completed"


def test_chains_cannot_be_written_by_a_queryset():
    """PostgreSQL would write through a view of a single table."""
    id_ = completed_in_three_steps().id
    for write in (lambda: Chain.objects.update(status="failed"), lambda: Chain.objects.filter(pk=id_).delete()):
        with pytest.raises((DatabaseError, TypeError)), transaction.atomic():
            write()
    with pytest.raises((DatabaseError, TypeError)), transaction.atomic():
        Chain.objects.bulk_update([Chain(id=id_, status="failed")], ["status"])
    chain = Chain.objects.get(pk=id_)
    assert (chain.status, chain.jobs.count()) == ("completed", 3)


@pytest.fixture
def restricted_role(db):
    """Create a role that may read the job table and the view; row-level security shows it chains of type ``shown``."""
    role = f"jobchains_reader_{uuid4().hex}"
    run(f"CREATE ROLE {role}")
    run(f"GRANT SELECT ON django_jobchains_job, {chain_view.NAME} TO {role}")
    run("ALTER TABLE django_jobchains_job ENABLE ROW LEVEL SECURITY")
    run(f"CREATE POLICY only_shown ON django_jobchains_job TO {role} USING (chain_type_name = 'shown')")
    yield role
    run("RESET ROLE")


def warnings():
    return [message.id for message in check_chain_view(databases=["default"])]


def chains_seen_by(role):
    with transaction.atomic():
        run(f"SET LOCAL ROLE {role}")
        seen = sorted(Chain.objects.values_list("type_name", flat=True))
        run("RESET ROLE")
    return seen


@pytest.mark.postgresql
def test_row_level_security_of_the_table_applies_to_the_view(restricted_role):
    """Views of PostgreSQL 14 cannot do that, so a check warns."""
    for name in ("shown", "hidden"):
        JobType[Any, Any](name).enqueue()
    if connection.pg_version >= 150_000:
        assert (chains_seen_by(restricted_role), warnings()) == (["shown"], [])
    else:
        assert (chains_seen_by(restricted_role), warnings()) == (["hidden", "shown"], ["jobchains.W005"])


@pytest.mark.postgresql
@pytest.mark.usefixtures("restricted_role")
def test_the_migration_secures_the_view_even_if_the_signal_is_not_sent():
    """A migration of another app that fails ends ``migrate`` before the signal."""
    executor = MigrationExecutor(connection)
    executor.migrate([("django_jobchains", "0001_initial")])
    run(chain_view.DROP)
    run(chain_view.CREATE)
    executor.loader.build_graph()
    executor.migrate([("django_jobchains", "0002_postgresql")])
    assert warnings() == ([] if connection.pg_version >= 150_000 else ["jobchains.W005"])


@pytest.mark.postgresql
def test_a_check_warns_of_a_view_that_shows_all_rows_and_migrate_secures_it(monkeypatch, request):
    run(chain_view.DROP)
    assert warnings() == []
    run(chain_view.CREATE)
    assert warnings() == []  # The table has no row-level security.
    request.getfixturevalue("restricted_role")
    for version in (140_000, 150_000):
        with monkeypatch.context() as patch:
            patch.setattr(connection, "pg_version", version)
            (message,) = check_chain_view(databases=["default"])
        assert "django_jobchains_chain shows all of its chains" in message.msg
        assert ("PostgreSQL 15" in str(message.hint)) == (version < 150_000)
        assert "Run manage.py migrate." in str(message.hint)
    chain_view.create_if_missing(using="default")
    assert warnings() == ([] if connection.pg_version >= 150_000 else ["jobchains.W005"])
