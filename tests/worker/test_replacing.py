"""Workers are replaced one at a time, by their limits or SIGHUP; a change of the code replaces them all."""

import signal
from pathlib import Path

import pytest
from django.db import connection

from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.chaos.app import jobs
from tests.shop.models import Effect
from tests.worker.processes import StartProcess
from tests.worker.test_supervisor import until_gone, until_working
from tests.worker.waiting import stays, until, until_completed

# About processes, not the database: once is enough.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(connection.vendor != "sqlite", reason="run on SQLite")]


def test_a_worker_that_is_replaced_after_max_jobs_finishes_what_it_runs(start_process: StartProcess) -> None:
    """However long it takes: the shutdown timeout is for stopping."""
    process = start_process("--processes", "1", "--max-jobs", "1", "--slots", "2", "--shutdown-timeout", "0")
    (old,) = until_working(process, 1)
    held = jobs.hold.enqueue()
    until(lambda: Effect.objects.filter(label__startswith="started by").exists(), 30, lambda: process.output)
    until_working(process, 2)
    assert ", 1 jobs\n" in process.output
    until_completed(jobs.nothing.enqueue(), 30, lambda: process.output)
    assert stays(lambda: "Stopping" not in process.output, 1.5)
    Effect.objects.create(job_id=held.id, label="go on")
    until_completed(held, 30, lambda: process.output)
    assert held.output == old.pid
    until_gone([old])
    assert set(Job.objects.values_list("attempt", "lease_number")) == {(1, 1)}


def test_a_worker_that_grows_is_replaced(start_process: StartProcess) -> None:
    process = start_process("--processes", "1", "--max-rss", "400M")
    (old,) = until_working(process, 1)
    until_completed(jobs.grow.enqueue(1), 30, lambda: process.output)
    assert process.workers() == [old]
    until_completed(jobs.grow.enqueue(400), 30, lambda: process.output)
    until_gone([old])
    until(lambda: len(process.workers()) == 1)
    assert "M of memory" in process.output


def test_without_a_supervisor_a_worker_that_grows_ends_with_code_0(start_process: StartProcess) -> None:
    process = start_process("--max-rss", "400M").until_ready()
    chain = jobs.grow.enqueue(400)
    assert process.wait() == 0
    assert chain.refresh().status == "completed"


def test_sighup_replaces_one_worker_after_the_other(start_process: StartProcess) -> None:
    process = start_process("--processes", "2")
    old = until_working(process)
    process.signal(signal.SIGHUP)
    counts = set()

    def are_replaced() -> bool:
        workers = process.workers()
        counts.add(len(workers))
        return not set(old) & set(workers)

    until(are_replaced, 40, lambda: process.output)
    assert counts <= {2, 3, 4}  # one comes, and the one before it goes
    until(lambda: len(process.workers()) == 2)
    assert process.output.count("Worker ") == 4


def test_a_version_that_cannot_start_does_not_replace_one_that_works(
    start_process: StartProcess, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    process = start_process("--processes", "2", BROKEN_IF=str(broken))
    old = until_working(process)
    broken.touch()
    process.signal(signal.SIGHUP)
    until(lambda: "is not replaced, the old one goes on: it ended with 1" in process.output, 30, lambda: process.output)
    until_completed(jobs.nothing.enqueue(), 30, lambda: process.output)
    assert process.workers() == old


SETTINGS = """
from tests.chaos.settings import *
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
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "letters").mkdir(parents=True)
    (folder / "manage.py").write_text(MANAGE)
    (folder / "site_settings.py").write_text(SETTINGS)
    (folder / "letters/__init__.py").touch()
    (folder / "letters/jobs.py").write_text(JOBS)
    (folder / "letters/text.py").write_text('TEXT = "one"\n')
    return folder


def test_a_change_of_the_code_restarts_the_workers_also_after_an_error_in_it(
    start_process: StartProcess, project: Path
) -> None:
    process = start_process("--reload", start=("manage.py",), cwd=project)
    text = project / "letters/text.py"

    def until_label(label: str) -> None:
        job = JobType("letters.send").enqueue()
        until(lambda: Effect.objects.filter(job_id=job.id, label=label).exists(), 40, lambda: process.output)

    until_working(process, 1)
    until_label("one")
    text.write_text('TEXT = "two, and longer"\n')
    until(lambda: process.output.count("Worker ") == 2, 40, lambda: process.output)
    until_label("two, and longer")
    text.write_text("TEXT = (\n")
    until(lambda: "SyntaxError" in process.output, 40, lambda: process.output)
    until(lambda: not process.workers(), 40, lambda: process.output)
    assert stays(lambda: process.is_alive and not process.workers(), 1)
    (project / "letters/more.py").write_text('TEXT = "three"\n')
    text.write_text("from letters.more import TEXT\n")
    until_label("three")
    process.signal(signal.SIGINT)
    assert process.wait() == 0
