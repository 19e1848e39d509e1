"""A worker as a separate process: how it starts, and how it ends by itself."""

import signal

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = pytest.mark.slow


def test_burst_and_max_jobs_end_the_process_with_code_0(start_process):
    chains.enqueue_many([jobs.nothing.item() for _ in range(10)])
    assert start_process("--max-jobs", "4").wait(60) == 0
    assert Job.objects.with_status("completed").count() == 4
    assert start_process("--burst").wait(60) == 0
    assert Job.objects.with_status("completed").count() == 10


def test_max_active_ends_the_process_with_code_0(start_process):
    assert start_process("--max-active", "0.1").wait(60) == 0


def test_worker_that_gives_up_ends_the_process_with_code_1(start_process):
    jobs.nothing.enqueue()
    process = start_process("--burst", FAILING="jobs.claim")
    assert process.wait(60) == 1
    assert "10 in a row), the worker gives up: ValueError" in process.output
    assert Job.objects.with_status("pending").count() == 1


def test_crash_and_error_are_each_recorded_as_one_failed_attempt(start_process):
    job = jobs.dies_then_fails.enqueue().current_job
    assert start_process().wait(60) == -signal.SIGKILL
    start_process()
    until(lambda: Job.objects.filter(pk=job.pk, status="completed").exists(), 60)
    job.refresh_from_db()
    assert (job.attempt, job.crashes) == (3, 1)
    assert [failed.kind for failed in job.failed_attempts.order_by("attempt")] == ["crash", "error"]


def test_invalid_notifier_is_reported_before_any_job_runs(start_process):
    job = jobs.write.enqueue(0.2).current_job
    process = start_process(jobchains={"NOTIFIER": {"BACKEND": "no.such.Notifier"}})
    assert process.wait(60) == 1
    assert "NOTIFIER" in process.output
    assert "Traceback" not in process.output
    job.refresh_from_db()
    assert (job.status, job.lease_number) == ("pending", 0)
