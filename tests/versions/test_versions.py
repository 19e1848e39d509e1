"""Workers and producers of two versions share one database: nothing is lost, and nothing is done twice.

The versions are the previous release and this one, and this one and a later one, which is the same package with one
more migration: it adds columns to all tables, as later migrations may. Each version is built into a wheel and installed
into a separate folder. Both use the other packages of the environment that runs the tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from uuid import UUID

import pytest
from django.db import connection, connections

from django_jobchains.models import FailedAttempt, Job
from tests.settings import DATABASE_NAME, DATABASES
from tests.support.databases import database
from tests.support.invariants import Oracle
from tests.support.waiting import until
from tests.support.worker_processes import ROOT, started_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

#: How long to wait for something that takes seconds, on a machine that runs other tests too.
PATIENCE_SECONDS = 240
SHELL = ("-m", "django", "shell", "--verbosity", "0", "--command")

LATER = """
from django.apps import apps
from django.db import migrations

from django_jobchains.db.online_migrations import OnlineMigration

TABLES = {model._meta.db_table for model in apps.get_app_config("django_jobchains").get_models() if model._meta.managed}


def add(column, definition):
    return migrations.RunSQL(
        [f'ALTER TABLE "{table}" ADD COLUMN "{column}" {definition}' for table in TABLES],
        [f'ALTER TABLE "{table}" DROP COLUMN "{column}"' for table in TABLES],
    )


class Migration(OnlineMigration):
    dependencies = [("django_jobchains", "LAST")]
    operations = [add("later", "integer NULL"), add("later_too", "varchar(9) DEFAULT 'none' NOT NULL")]
"""


def previous_release():
    """Return the tag of the newest release before this commit. There is none before the first release."""
    command = ("git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def install_previous_release(folder):
    source = folder.with_name("source")
    source.mkdir()
    archive = subprocess.run(["git", "archive", TAG], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    install(source, folder)


def install_this_version(folder):
    install(ROOT, folder)


def install_later_version(folder):
    install(ROOT, folder)
    package = folder / "django_jobchains"
    init = package / "__init__.py"
    init.write_text(re.sub(r'(?m)^__version__ = ".*"$', '__version__ = "99.0"', init.read_text()))
    last = max(path.stem for path in (package / "migrations").glob("0*.py"))
    (package / "migrations" / "9999_later.py").write_text(LATER.replace("LAST", last))


def install(source, folder):
    built = folder.with_name(f"wheel-{folder.name}")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=source, check=True)
    options = ("--quiet", "--no-deps", "--no-index", "--target", folder)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *built.iterdir()], check=True)


TAG = previous_release()
PAIRS = {"this version and a later one": (install_this_version, install_later_version)}
if TAG:
    PAIRS[f"{TAG} and this version"] = (install_previous_release, install_this_version)


class Depot:
    """The project in the folder ``depot``. Each side, old and new, runs it with its own version of the package."""

    def __init__(self, folder, settings, start):
        self.folder = folder
        self.settings = settings
        self.start = start

    def environment(self, side):
        return {
            "PYTHONPATH": f"{self.folder / side}:{self.folder}",
            "DJANGO_SETTINGS_MODULE": "depot.settings",
            "DEPOT_SIDE": side,
            "DEPOT_PACKAGE": str(self.folder / side),
            "DEPOT_DATABASE": json.dumps(self.settings),
        }

    def begin(self, side, *arguments):
        environment = {**os.environ, **self.environment(side)}
        return subprocess.Popen([sys.executable, *arguments], cwd=self.folder, env=environment)

    def run(self, side, *arguments):
        assert self.begin(side, *arguments).wait(PATIENCE_SECONDS) == 0

    def migrate(self, side):
        """Do what a project does when it upgrades to the version of this side."""
        self.run(side, "-m", "django", "makemigrations", "depot", "--verbosity", "0")
        self.run(side, "-m", "django", "migrate", "--verbosity", "0")

    def worker(self, side):
        queues = ("--queue", side, "--queue", "default")
        return self.start("--slots", "4", *queues, cwd=self.folder, **self.environment(side)).until_ready()

    @contextmanager
    def producer(self, side):
        process = self.begin(side, *SHELL, "from depot.produce import produce; produce()")
        try:
            yield
        finally:
            (self.folder / "stop").touch()
            exit_code = process.wait(PATIENCE_SECONDS)
        assert exit_code == 0

    def hold(self, side):
        """Let the worker of this side begin a job that it never ends."""
        self.run(side, *SHELL, f"from depot.jobs import hold; hold.enqueue('{side}')")
        until(lambda: self.count("label = 'held' AND side = %s", side), PATIENCE_SECONDS)

    def count(self, condition, *parameters):
        return self.rows(f"SELECT count(*) FROM depot_delivery WHERE {condition}", *parameters)[0][0]

    def until_delivered(self, side, more=60):
        goal = self.count("side = %s", side) + more
        until(lambda: self.count("side = %s", side) >= goal, PATIENCE_SECONDS)

    def until_taken_over(self, side):
        until(lambda: self.count("label = 'taken over' AND side = %s", side), PATIENCE_SECONDS)

    def rows(self, sql, *parameters):
        with connections["depot"].cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()


@contextmanager
def new_database(folder):
    """Yield the settings of an empty database."""
    name = f"{DATABASE_NAME}_depot"
    if connection.vendor == "sqlite":
        yield {**DATABASES["default"], "NAME": str(folder / "depot.sqlite3")}
        return
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    try:
        yield {**DATABASES["default"], "NAME": name}
    finally:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(params=PAIRS)
def depot(request, tmp_path, django_db_blocker):
    copytree(Path(__file__).with_name("depot"), tmp_path / "depot")
    for side, install_version in zip(("old", "new"), PAIRS[request.param], strict=True):
        install_version(tmp_path / side)
    with (
        django_db_blocker.unblock(),
        new_database(tmp_path) as settings,
        database("depot", settings, django_db_blocker),
        started_processes(tmp_path, {}) as start,
    ):
        yield Depot(tmp_path, settings, start)


def test_workers_of_two_versions_share_a_database(depot):
    """The steps are those of an upgrade, of which each side is killed once, and of a rollback."""
    depot.migrate("old")
    old = depot.worker("old")
    with depot.producer("old"):
        depot.until_delivered("old")
        depot.migrate("new")
        depot.until_delivered("old")
        depot.hold("old")
        new = depot.worker("new")
        with depot.producer("new"):
            depot.until_delivered("old")
            depot.until_delivered("new")
            old.kill()
            depot.until_taken_over("new")
            depot.hold("new")
            old = depot.worker("old")  # a rollback: the newer tables stay
            new.kill()
            depot.until_taken_over("old")
            new = depot.worker("new")
            depot.until_delivered("new")
    unfinished = Job.objects.using("depot").incomplete().exclude(type_name="depot.tick")
    until(lambda: not unfinished.exists(), PATIENCE_SECONDS, lambda: old.output + new.output)
    until(lambda: not depot.rows("SELECT 1 FROM depot_upload WHERE state <> 'completed'"), PATIENCE_SECONDS)
    for worker in (old, new):
        worker.signal(signal.SIGTERM)
    assert [old.wait(60), new.wait(60)] == [0, 0]
    assert_nothing_is_lost_or_done_twice(depot)


def assert_nothing_is_lost_or_done_twice(depot):
    twice = depot.rows(
        "SELECT label, key FROM depot_delivery WHERE label <> 'held' GROUP BY label, key HAVING count(*) > 1"
    )
    assert twice == []

    jobs = list(Job.objects.using("depot"))
    failures = FailedAttempt.objects.using("depot").values_list("job_id", "kind")
    oracle = Oracle(jobs, Counter(failures), Counter())
    oracle.check_states()
    oracle.check_counters()
    oracle.check_chains()
    assert oracle.violations == []

    ends = {job.chain_id: (job.status, job.output) for job in sorted(jobs, key=lambda job: job.chain_index)}
    promises = depot.rows("SELECT chain_id, output FROM depot_promise")
    assert [key for key, output in promises if ends.get(UUID(str(key))) != ("completed", json.loads(output))] == []

    jobs = [job for job in jobs if (job.type_name, job.status) != ("depot.tick", "pending")]  # those of the last second
    done = Counter(label for (label,) in depot.rows("SELECT label FROM depot_delivery"))
    types = Counter(job.type_name for job in jobs)
    kinds = {"step": "pass_on", "total": "total", "of a batch": "batch", "third attempt": "stumble", "alone": "alone"}
    kinds |= {"repaired": "breaks", "once": "once", "tick": "tick", "taken over": "hold"}
    assert {label: done[label] for label in kinds} == {label: types[f"depot.{name}"] for label, name in kinds.items()}
    assert depot.rows("SELECT state, count(*) FROM depot_upload GROUP BY state") == [("completed", done["upload"])]
    assert done["not alone"] == 0
    assert {job.type_name for job in jobs if job.status != "completed"} == {"depot.breaks"}
    assert len({job.scheduled_for for job in jobs if job.type_name == "depot.tick"}) == types["depot.tick"] > 3
