"""A worker on a database that is not set up reports the remedy and ends."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection

from django_jobchains.db.setup import remedy_for
from django_jobchains.telemetry.events import ThreadFailed
from django_jobchains.worker import Worker
from tests.support.databases import database

pytestmark = pytest.mark.usefixtures("quick")


def test_command_names_the_missing_tables_and_how_to_create_them(empty_database):
    with pytest.raises(CommandError, match=r"django_jobchains_job,.*Run 'manage\.py migrate --database empty'"):
        call_command("run_jobworker", database=empty_database)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--processes", "2"]], ids=["one process", "a supervisor"])
def test_process_ends_with_code_1(start_process, arguments, tmp_path):
    empty = "postgres" if connection.vendor == "postgresql" else str(tmp_path / "empty")
    process = start_process(*arguments, JOBCHAINS_TEST_NAME=empty)
    assert process.wait(60) == 1
    assert process.output.count("Run 'manage.py migrate --database default'") == 1, process.output


def test_worker_without_the_command_gives_up_at_once(make_worker, empty_database, events):
    """An example is a worker whose database was unavailable when it started."""
    assert make_worker(using=empty_database).run() == 1
    failures = events.of(ThreadFailed)
    assert {(event.failures, event.fatal) for event in failures} == {(1, True)}
    assert all("Run 'manage.py migrate --database empty'" in event.error for event in failures)


def test_run_until_idle_raises_the_error_about_missing_tables(make_worker, empty_database):
    with pytest.raises(ImproperlyConfigured, match="Tables are missing"):
        make_worker(using=empty_database).run_until_idle(20)


def test_unavailable_database_is_not_reported_as_missing_tables(registry, django_db_blocker):
    engine = "django.db.backends.postgresql"
    unavailable = {"ENGINE": engine, "HOST": "127.0.0.1", "PORT": "1", "OPTIONS": {}, "NAME": "away"}
    with database("away", unavailable, django_db_blocker):
        Worker(registry=registry, using="away").check_database()


def test_worker_refuses_a_database_without_autocommit(registry, django_db_blocker):
    problem = r"DATABASES\['manual'\]\['AUTOCOMMIT'\] is False.*Set it to True"
    manual = database("manual", {"AUTOCOMMIT": False}, django_db_blocker)
    with manual, pytest.raises(ImproperlyConfigured, match=problem):
        Worker(registry=registry, using="manual")


def test_worker_refuses_a_database_that_its_threads_cannot_share(registry, private_memory):
    with pytest.raises(ImproperlyConfigured, match=r"each thread has its own, empty database\. Use a file"):
        Worker(registry=registry, using=private_memory)


def test_worker_refuses_the_database_of_a_test_in_memory_with_the_remedy(registry, memory):
    """Its threads could only use it one after the other."""
    with pytest.raises(ImproperlyConfigured, match=r"call django_jobchains\.testing\.run_due_jobs\(\).*\['TEST'\]"):
        Worker(registry=registry, using=memory)


@pytest.mark.parametrize(
    ("sql", "message", "remedy"),
    [
        ("SELECT unknown_column FROM django_jobchains_job", "unknown_column", "manage.py migrate"),
        ("SELECT FROM WHERE", "syntax", ""),
    ],
)
def test_missing_column_is_reported_like_a_missing_table(sql, message, remedy):
    with pytest.raises(Exception, match=message) as caught, connection.cursor() as cursor:
        cursor.execute(sql)
    found = remedy_for(caught.value, "default")
    assert remedy in found
    assert bool(found) == bool(remedy)
