"""Workers are replaced one at a time at their limits or on SIGHUP; a change of the code replaces all of them."""

import signal

import pytest

from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.shop.models import Effect
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs
from tests.support.worker_processes import until_gone

pytestmark = pytest.mark.slow


def test_worker_replaced_after_max_jobs_finishes_its_running_jobs(start_process):
    """The shutdown timeout does not apply, because it limits only stopping."""
    arguments = ("--processes", "1", "--max-jobs", "1", "--slots", "2", "--shutdown-timeout", "0")
    process = start_process(*arguments, LEASE_SECONDS="60")
    (old,) = process.until_working()
    held = jobs.hold.enqueue()
    until(lambda: Effect.objects.filter(label__startswith="started by").exists(), 60, lambda: process.output)
    process.until_working(2)
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
    (old,) = process.until_working()
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
    old = process.until_working(2)
    process.signal(signal.SIGHUP)
    counts = set()

    def are_replaced():
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
    old = process.until_working(2)
    broken.touch()
    process.signal(signal.SIGHUP)
    process.until_output("is not replaced, the old one continues: it ended with 1")
    until_completed(jobs.nothing.enqueue(), 60, lambda: process.output)
    assert process.workers() == old


SITE = {
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
execute_from_command_line(sys.argv)
""",
    "site_settings.py": """
from tests.support.worker_settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "letters"]
""",
    "letters/__init__.py": "",
    "letters/jobs.py": """
from django_jobchains.processors import Processors
from tests.shop.models import Effect
from letters.text import TEXT

processors = Processors()

@processors.register("letters.send")
def send(job):
    Effect.objects.create(job_id=job.id, label=TEXT)
""",
    "letters/text.py": 'TEXT = "one"\n',
}


def test_changed_code_restarts_the_workers_even_after_an_import_error(start_process, tmp_path):
    (tmp_path / "letters").mkdir()
    for name, content in SITE.items():
        (tmp_path / name).write_text(content)
    process = start_process("--reload", start=("manage.py",), cwd=tmp_path)
    text = tmp_path / "letters/text.py"

    def until_label(label):
        job = JobType("letters.send").enqueue()
        until(lambda: Effect.objects.filter(job_id=job.id, label=label).exists(), 60, lambda: process.output)

    process.until_working()
    until_label("one")
    text.write_text('TEXT = "two, and longer"\n')
    process.until_output("Worker ", 2)
    until_label("two, and longer")
    text.write_text("TEXT = (\n")
    process.until_output("SyntaxError")
    until(lambda: not process.workers(), 60, lambda: process.output)
    assert stays(lambda: process.is_alive and not process.workers(), 1)
    (tmp_path / "letters/more.py").write_text('TEXT = "three"\n')
    text.write_text("from letters.more import TEXT\n")
    until_label("three")
    process.signal(signal.SIGINT)
    assert process.wait() == 0
