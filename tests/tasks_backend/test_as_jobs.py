"""Tasks are job types: what is built for jobs works for tasks."""

import subprocess
import sys
from datetime import timedelta

import pytest
from django.db.models import F
from django.test import override_settings

from django_jobchains import chains
from django_jobchains.exceptions import InvalidInput, LeaseLost
from django_jobchains.middleware import Middleware
from django_jobchains.models import Job, TaskName
from django_jobchains.processors import Processors
from django_jobchains.tasks_backend.framework import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_jobchains.testing import assert_enqueued, clock, fire_schedules, run_due_jobs
from tests.support.tracing import id_of, parent_of, recording
from tests.support.waiting import until
from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKEND

PATH = "tests.tasks_backend.tasks"
pytestmark = pytest.mark.django_db


def test_run_due_jobs_runs_tasks_that_were_enqueued_before_the_settings_changed():
    result = tasks.add.enqueue(1)
    with override_settings(JOBCHAINS={"POLL_SECONDS": 1}):
        run_due_jobs(raise_errors=True)
    assert tasks.add.get_result(result.id).return_value == 1


def test_a_schedule_takes_a_task(registry):
    part = Processors()
    part.schedule("with arguments", tasks.add, every=60, input={"args": [1], "kwargs": {"second": 2}})
    part.schedule("without", tasks.return_tuple, every=60)
    registry.add(part)
    fire_schedules()
    with clock() as time:
        time.advance(61)
        fired = fire_schedules()
        run_due_jobs(raise_errors=True)
    assert [chain.refresh().output for chain in fired] == [3, ["a", "b", {"c": [1]}]]
    assert {row.name for row in TaskName.objects.all()} == {f"{PATH}.add", f"{PATH}.return_tuple"}


def test_a_schedule_checks_the_arguments_of_a_task(registry):
    part = Processors()
    part.schedule("wrong", tasks.add, every=60, input=[1])
    registry.add(part)
    [problem] = registry.schedules()[1]
    assert 'pass {"args": […], "kwargs": {…}}' in str(problem)


def test_a_chain_may_start_with_a_task_or_continue_with_one(run, processors):
    @processors.register("tasks.first")
    def first(job):
        return job.continue_with(tasks.add, {"args": [1, 2]})

    chain, other = first.enqueue(), chains.enqueue(f"{PATH}.add", {"args": [1], "kwargs": {"second": 1}})
    run()
    assert [chain.refresh().output, other.refresh().output] == [3, 2]
    assert tasks.add.get_result(str(other.id)).return_value == 2
    with pytest.raises(InvalidInput):
        chains.enqueue(f"{PATH}.add", {"arguments": []})


def test_tasks_are_traced_like_jobs(run):
    with recording() as recorded:
        with recorded.tracer.start_as_current_span("view"):
            tasks.add.enqueue(1)
        run()
    sent, attempt = recorded.one(f"send {PATH}.add"), recorded.one(f"process {PATH}.add")
    assert parent_of(sent) == id_of(recorded.one("view"))
    assert parent_of(attempt) == id_of(sent)


def test_tasks_are_seen_in_the_admin(admin_client):
    result = tasks.add.enqueue("first argument")
    page = admin_client.get(f"/admin/django_jobchains/job/{result.id}/change/", follow=True).content.decode()
    assert f"{PATH}.add" in page
    assert "first argument" in page


def test_tasks_are_tested_like_jobs():
    tasks.add.enqueue(1, second=2)
    [job] = assert_enqueued(tasks.add, {"args": [1], "kwargs": {"second": 2}})
    [outcome] = run_due_jobs()
    assert (outcome.job.id, outcome.ending) == (job.id, "completed")


def test_a_failed_task_can_be_retried(run):
    result = tasks.fail.enqueue()
    run()
    chains.retry(Job.objects.get())
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 1)
    run()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)


def test_an_attempt_that_was_rescheduled_counts(run):
    result = tasks.reschedule_once.enqueue()
    run()
    result.refresh()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 2, [])
    assert result.worker_ids[1]


def test_an_expired_task_has_failed(run, processors):
    chain = tasks.add.job_type.enqueue({"args": [1]}, expires=timedelta(seconds=1))
    Job.objects.update(expires_at=F("created_at") - timedelta(hours=1))
    run()
    found = tasks.add.get_result(str(chain.id))
    assert (found.status, found.attempts) == (TaskResultStatus.FAILED, 0)
    [error] = found.errors
    assert error.exception_class_path == "django_jobchains.exceptions.ChainCancelled"
    assert error.traceback == f"Chain {chain.id} has expired: its job did not start in time."


def test_a_task_that_crashed_too_often_finishes_where_it_is_taken_back(start_worker, signals, store, settings):
    settings.JOBCHAINS = {"MAX_CRASHES": 1, "REAP_SECONDS": 0.05}
    result = tasks.add.enqueue(1)
    store.jobs.claim("dead", 1, {f"{PATH}.add": 0.001})
    start_worker()
    until(lambda: signals[-1].name == "finished")
    assert (signals[-1].result.id, signals[-1].result.worker_ids) == (result.id, ["dead"])
    assert signals[-1].result.errors[0].exception_class is type(signals[-1].error) is LeaseLost
    assert len(signals) == 2


def test_results_live_as_long_as_their_retention(run):
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"retention": 3600}}}):
        results = [tasks.add.enqueue(1), tasks.fail.enqueue()]
        run()
        chains.prune()
        assert all(task_backends["default"].get_result(result.id).is_finished for result in results)
        Job.objects.update(finished_at=F("finished_at") - timedelta(hours=2))
        chains.prune()
        for result in results:
            with pytest.raises(TaskResultDoesNotExist):
                task_backends["default"].get_result(result.id)


class Required(Middleware):
    pass


def test_required_middleware_surrounds_tasks(run):
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": [f"{__name__}.Required"]}):
        result = tasks.add.enqueue(1)
        run()
        assert tasks.add.get_result(result.id).is_finished
        [part] = tasks.add.job_type.processor.middleware
        assert isinstance(part, Required)


IMPORTS = """
from django_jobchains import Backoff, Concurrency, Lease, Rate, Retention
from django.conf import settings
assert Backoff(5) and Concurrency(5) and Lease(5) and Rate(5, 1) and Retention() and not settings.configured
"""


def test_a_settings_module_can_import_what_options_need():
    subprocess.run([sys.executable, "-W", "error", "-c", IMPORTS], check=True)


def test_a_worker_that_waits_for_tasks_and_signals_is_not_busy(start_worker):
    threads = start_worker().components.threads
    until(lambda: [threads[name].busy_seconds for name in ("observers", "tasks")] == [0, 0])


def test_a_worker_for_maintenance_finishes_tasks_that_it_takes_back(start_worker, signals, store, settings, registry):
    settings.JOBCHAINS = {"MAX_CRASHES": 1, "REAP_SECONDS": 0.05}
    tasks.add.enqueue(1)
    store.jobs.claim("dead", 1, {f"{PATH}.add": 0.001})
    registry.slices = []
    start_worker(maintenance_only=True, slots=None)
    until(lambda: signals[-1].name == "finished")
