"""Worker processes that run tasks, also in child processes, and that die."""

import os
import signal

import pytest

from django_jobchains.models import Job
from django_jobchains.tasks_backend.framework import TaskResultStatus
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.tasks_backend import tasks
from tests.tasks_backend.tasks import PaymentError

pytestmark = pytest.mark.slow


def finished(*results):
    for result in results:
        result.refresh()
    return all(result.is_finished for result in results)


def test_a_worker_finds_a_task_that_is_enqueued_while_it_runs(start_tasks):
    worker = start_tasks(jobchains={"POLL_SECONDS": 60}).until_ready()
    result = tasks.add.enqueue(1, 2)
    until(lambda: finished(result), 30, lambda: worker.output)
    assert result.return_value == 3


def test_a_task_runs_again_after_its_worker_was_killed(start_tasks):
    result = tasks.die_once.enqueue()
    first = start_tasks(jobchains={"LEASE_SECONDS": 2})
    until(lambda: not first.is_alive, 60, lambda: first.output)
    start_tasks(jobchains={"LEASE_SECONDS": 2})
    until(lambda: finished(result), 60)
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2, 2)
    assert len(set(result.worker_ids)) == 2
    assert [error.exception_class_path for error in result.errors] == ["django_jobchains.exceptions.LeaseLost"]
    assert Effect.objects.filter(job_id=result.id, label="written").count() == 1


def test_tasks_in_child_processes(start_tasks):
    results = [tasks.pid.enqueue(), tasks.fail_elsewhere.enqueue()]
    worker = start_tasks()
    until(lambda: finished(*results), 60, lambda: worker.output)
    assert results[0].return_value not in (os.getpid(), worker.pid)
    assert results[1].errors[0].exception_class is PaymentError
    assert Job.objects.filter(attempt=1).count() == 2


def test_a_task_whose_child_process_dies_after_the_commit_finishes_once(start_tasks):
    result = tasks.die_after_commit.enqueue()
    worker = start_tasks()
    until(lambda: finished(result), 60, lambda: worker.output)
    until(lambda: Effect.objects.exists(), 30, lambda: worker.output)
    worker.signal(signal.SIGTERM)
    worker.wait(60)
    assert [effect.label for effect in Effect.objects.filter(job_id=result.id)] == ["finished SUCCESSFUL"]
    assert result.return_value == "committed"


def test_processes_under_a_supervisor_run_tasks(start_tasks):
    results = [tasks.add.enqueue(number) for number in range(20)]
    worker = start_tasks("--processes", "2", "--burst")
    worker.wait(60)
    assert finished(*results), worker.output
