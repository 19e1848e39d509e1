"""Workers are replaced one at a time at their limits or on SIGHUP; a change of the code replaces all of them."""

import signal

import pytest
from django.db import connection

from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.shop.models import Effect
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs
from tests.worker.test_supervisor import until_gone, until_working

# These tests are about processes, not the database, so they run once.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(connection.vendor != "sqlite", reason="run on SQLite")]


def test_worker_replaced_after_max_jobs_finishes_its_running_jobs(start_process):
    """The shutdown timeout does not apply, because it limits only stopping."""
    arguments = ("--processes", "1", "--max-jobs", "1", "--slots", "2", "--shutdown-timeout", "0")
    process = start_process(*arguments, LEASE_SECONDS="60")
    (old,) = until_working(process, 1)
    held = jobs.hold.enqueue()
    until(lambda: Effect.objects.filter(label__startswith="started by").exists(), 60, lambda: process.output)
    until_working(process, 2)
    assert ", 1 jobs\n" in process.output
    until_completed(jobs.nothing.enqueue(), 60, lambda: process.output)
    assert stays(lambda: "Stopping" not in process.output, 1.5)
    Effect.objects.create(job_id=held.id, label="go on")
    until_completed(held, 60, lambda: process.output)
    assert held.output == old.pid
    until_gone([old])
    assert set(Job.objects.values_list("attempt", "lease_number")) == {(1, 1)}


def test_worker_that_grows_is_replaced(start_process):
    process = start_process("--processes", "1", "--max-rss", "400M")
    (old,) = until_working(process, 1)
    until_completed(jobs.grow.enqueue(1), 60, lambda: process.output)
    assert process.workers() == [old]
    until_completed(jobs.grow.enqueue(400), 60, lambda: process.output)
    until_gone([old])
    until(lambda: len(process.workers()) == 1, 60)
    assert "M of memory" in process.output


def test_without_a_supervisor_a_worker_that_grows_ends_with_code_0(start_process):
    process = start_process("--max-rss", "400M").until_ready()
    chain = jobs.grow.enqueue(400)
    assert process.wait(60) == 0
    assert chain.refresh().status == "completed"


@pytest.mark.usefixtures("heeded_hang_ups")
def test_sighup_replaces_workers_one_by_one(start_process):
    process = start_process("--processes", "2")
    old = until_working(process)
    process.signal(signal.SIGHUP)
    counts = set()

    def are_replaced() -> bool:
        workers = process.workers()
        counts.add(len(workers))
        return not set(old) & set(workers)

    until(are_replaced, 60, lambda: process.output)
    assert counts <= {2, 3, 4}  # each new worker starts before an old one ends
    until(lambda: len(process.workers()) == 2, 60)
    assert process.output.count("Worker ") == 4


@pytest.mark.usefixtures("heeded_hang_ups")
def test_broken_version_does_not_replace_a_working_one(start_process, tmp_path):
    broken = tmp_path / "broken"
    process = start_process("--processes", "2", BROKEN_IF=str(broken))
    old = until_working(process)
    broken.touch()
    process.signal(signal.SIGHUP)
    until(
        lambda: "is not replaced, the old one continues: it ended with 1" in process.output, 60, lambda: process.output
    )
    until_completed(jobs.nothing.enqueue(), 60, lambda: process.output)
    assert process.workers() == old


SETTINGS = """
from tests.support.worker_settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "letters"]
"""

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
execute_from_command_line(sys.argv)
"""

JOBS = """
from django_jobchains.processors import Processors
from tests.shop.models import Effect
from letters.text import TEXT

processors = Processors()

@processors.register("letters.send")
def send(job):
    Effect.objects.create(job_id=job.id, label=TEXT)
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "letters").mkdir(parents=True)
    (folder / "manage.py").write_text(MANAGE)
    (folder / "site_settings.py").write_text(SETTINGS)
    (folder / "letters/__init__.py").touch()
    (folder / "letters/jobs.py").write_text(JOBS)
    (folder / "letters/text.py").write_text('TEXT = "one"\n')
    return folder


def test_changed_code_restarts_the_workers_even_after_an_import_error(start_process, project):
    process = start_process("--reload", start=("manage.py",), cwd=project)
    text = project / "letters/text.py"

    def until_label(label: str) -> None:
        job = JobType("letters.send").enqueue()
        until(lambda: Effect.objects.filter(job_id=job.id, label=label).exists(), 60, lambda: process.output)

    until_working(process, 1)
    until_label("one")
    text.write_text('TEXT = "two, and longer"\n')
    until(lambda: process.output.count("Worker ") >= 2, 60, lambda: process.output)
    until_label("two, and longer")
    text.write_text("TEXT = (\n")
    until(lambda: "SyntaxError" in process.output, 60, lambda: process.output)
    until(lambda: not process.workers(), 60, lambda: process.output)
    assert stays(lambda: process.is_alive and not process.workers(), 1)
    (project / "letters/more.py").write_text('TEXT = "three"\n')
    text.write_text("from letters.more import TEXT\n")
    until_label("three")
    process.signal(signal.SIGINT)
    assert process.wait() == 0
