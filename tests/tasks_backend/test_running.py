"""Tasks that workers run, and their results."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Job, TaskName
from django_jobchains.tasks_backend.framework import TaskResultDoesNotExist, TaskResultStatus, task_backends
from tests.tasks_backend import tasks

PATH = "tests.tasks_backend.tasks"


def test_a_task_is_a_job_of_a_type_named_by_its_module_path(run):
    result = tasks.add.enqueue(1, second=2)
    assert result.status == TaskResultStatus.READY
    job = Job.objects.get()
    assert (str(job.id), job.type_name, job.queue) == (result.id, f"{PATH}.add", "default")
    assert job.input == {"args": [1], "kwargs": {"second": 2}}
    assert result.enqueued_at == job.created_at
    run()
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert len(result.worker_ids) == result.attempts == 1
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


def test_coroutine_functions_run_too(run):
    result = tasks.aadd.enqueue(1, second=2)
    run()
    result.refresh()
    assert result.return_value == 3


def test_tasks_are_enqueued_and_read_in_coroutines(run):
    result = async_to_sync(tasks.add.aenqueue)(1, second=2)
    run()
    async_to_sync(result.arefresh)()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert async_to_sync(tasks.add.aget_result)(result.id).return_value == 3


def test_a_result_is_read_by_its_id_with_two_queries(run):
    result = tasks.add.using(priority=7, queue_name="mail").enqueue(1)
    backend = task_backends["default"]
    with CaptureQueriesContext(connection) as queries:
        found = backend.get_result(result.id)
    assert len(queries) == 1
    assert (found.status, found.args, found.kwargs, found.worker_ids) == (TaskResultStatus.READY, [1], {}, [])
    assert found.task == tasks.add.using(priority=7, queue_name="mail")
    run()
    with CaptureQueriesContext(connection) as queries:
        found = tasks.add.get_result(result.id)
    assert len(queries) == 2
    assert found.return_value == 1


@pytest.mark.parametrize("id", ["", "x", "123", None, 5])
def test_an_id_that_is_not_a_uuid_needs_no_query(id):  # The database is not available.
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(id)


def test_results_of_other_jobs_do_not_exist(processors, quick):
    backend = task_backends["default"]
    other = tasks.fail_twice.enqueue()
    for id_ in (uuid4(), quick.enqueue().id, other.id):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(str(id_))
    assert task_backends["patient"].get_result(other.id).task == tasks.fail_twice


def test_failures_have_the_path_of_their_class_and_a_traceback(run):
    results = [
        tasks.fail.enqueue(),
        tasks.fail_with_value_error.enqueue(),
        tasks.afail.enqueue(),
        tasks.return_object.enqueue(),
    ]
    run()
    for result in results:
        result.refresh()
        assert (result.status, len(result.errors), result.attempts) == (TaskResultStatus.FAILED, 1, 1)
    paths = [result.errors[0].exception_class_path for result in results]
    assert paths == [f"{PATH}.PaymentError", "builtins.ValueError", f"{PATH}.PaymentError", "builtins.TypeError"]
    assert results[0].errors[0].exception_class is tasks.PaymentError
    assert "raise PaymentError(message)" in results[0].errors[0].traceback
    with pytest.raises(ValueError, match="Task failed"):
        results[0].return_value  # noqa: B018


def test_return_values_are_normalized(run):
    result = tasks.return_tuple.enqueue()
    run()
    result.refresh()
    assert result.return_value == ["a", "b", {"c": [1]}]


def test_keys_become_texts_as_json_writes_them(run):
    keys = {1: {None: [{1.5: True, False: 2}]}}
    results = [
        tasks.echo.enqueue(keys),
        tasks.echo.enqueue(value=keys),
        chains.enqueue(f"{PATH}.echo", {"args": [keys]}),
        tasks.return_keys.enqueue(),
    ]
    run()
    texts = {"1": {"null": [{"1.5": True, "false": 2}]}}
    returned = [task_backends["default"].get_result(str(result.id)).return_value for result in results]
    assert returned == [texts, texts, texts, {"1": {"null": [{"1.5": True, "false": 2, "b": 3}]}}]


def test_a_task_may_be_retried(run):
    result = tasks.fail_twice.enqueue()
    assert Job.objects.get().type_name == f"patient:{PATH}.fail_twice"
    run()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.SUCCESSFUL, 3, 2)
    assert result.return_value == result.worker_ids
    assert len(set(result.worker_ids)) == 1
    assert [error.exception_class_path for error in result.errors] == [f"{PATH}.PaymentError"] * 2
    assert result.started_at < result.last_attempted_at


def test_the_context_has_the_attempt(run):
    result, other = tasks.describe.enqueue(1, a=2), tasks.adescribe.enqueue()
    run()
    result.refresh()
    other.refresh()
    assert result.return_value == [1, result.id, result.worker_ids, [1], {"a": 2}]
    assert other.return_value == [2, 1]


@pytest.mark.parametrize("task", [tasks.refresh, tasks.arefresh], ids=["sync", "async"])
def test_the_context_has_the_backend_that_runs_the_task(run, task):
    result = task.using(backend="patient").enqueue()
    run()
    result.refresh()
    assert result.return_value == "patient"


def test_a_rolled_back_task_never_existed(transactional_db):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.add.enqueue(1)
        1 / 0  # noqa: B018
    assert not Job.objects.exists()
    assert not TaskName.objects.exists()
    tasks.add.enqueue(1)
    tasks.add.enqueue(1)
    assert [row.name for row in TaskName.objects.all()] == [f"{PATH}.add"]


def test_a_task_runs_after_its_time(run):
    later = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.add.using(run_after=later).enqueue(1)
    run()
    found = tasks.add.get_result(result.id)
    assert (found.status, found.task.run_after) == (TaskResultStatus.READY, later)


def test_higher_priorities_run_first(run):
    for priority in (0, 100, -100, 5):
        tasks.note.using(priority=priority).enqueue(priority)
    run(slots=1)
    assert tasks.calls == [100, 5, 0, -100]


def test_a_cancelled_task_has_failed(run):
    result = tasks.add.enqueue(1)
    chains.cancel(Job.objects.get())
    result.refresh()
    assert (result.status, result.attempts, result.started_at) == (TaskResultStatus.FAILED, 0, None)
    assert [error.exception_class_path for error in result.errors] == ["django_jobchains.exceptions.ChainCancelled"]
    assert result.finished_at


def test_a_name_is_stored_again_after_the_test_that_stored_it_was_rolled_back(django_capture_on_commit_callbacks, db):
    with django_capture_on_commit_callbacks(execute=True):
        tasks.add.enqueue(1)
    TaskName.objects.all().delete()
    tasks.add.enqueue(1)
    assert TaskName.objects.exists()
