"""How workers find tasks that nothing in their process has imported, and what they do with those that do not exist."""

import sys
import threading
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_jobchains.exceptions import JobTypeNotFound, TaskNotImported
from django_jobchains.models import Job, TaskName
from django_jobchains.tasks_backend.framework import TaskResultStatus, task_backends
from django_jobchains.telemetry.events import WorkerStarted
from django_jobchains.worker import components, task_finder
from django_jobchains.worker.components import Components
from tests.support.waiting import until
from tests.support.worker_rows import worker as worker_row
from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKEND, BACKENDS

PATH = "tests.tasks_backend.tasks"
MISSING = "tests.tasks_backend.gone.send"


@pytest.fixture
def forget(registry):
    """Forget what this process knows of the tasks, as another process would."""

    def clear():
        registry.slices = []

    return clear


@pytest.fixture
def missing(transactional_db):
    """A task whose module exists only while it is enqueued."""
    module = sys.modules["tests.tasks_backend.gone"] = ModuleType("tests.tasks_backend.gone")
    exec("def send(): pass", vars(module))
    module.send = tasks.task(module.send)
    result = module.send.enqueue()
    del sys.modules["tests.tasks_backend.gone"]
    return result


def test_a_worker_finds_the_tasks_that_were_enqueued_before_it_started(run, forget, events):
    results = [tasks.add.enqueue(1), tasks.aadd.enqueue(2), tasks.renamed.enqueue()]
    forget()
    run()
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [1, 2, "plain"]
    [started] = events.of(WorkerStarted)
    assert started.type_names == (f"{PATH}.aadd", f"{PATH}.add", f"{PATH}.plain")


def test_a_running_worker_finds_new_tasks(start_worker, forget):
    start_worker()
    for task in (tasks.add, tasks.aadd):
        result = task.enqueue(1)
        forget()
        until(lambda result=result: task_backends["default"].get_result(result.id).is_finished)


def test_a_burst_runs_tasks_that_its_tasks_enqueue(run, forget):
    tasks.enqueue_another.enqueue()
    forget()
    run()
    assert Job.objects.filter(status="completed").count() == 2


def test_a_burst_does_not_end_while_its_thread_begins_to_serve_a_task(run, forget, monkeypatch):
    """The thread for tasks finds one just before the main thread looks, for which nothing is new then."""
    serving, looked = threading.Event(), threading.Event()
    retention_rules, find = components.retention_rules, task_finder.TaskFinder.find

    def rules(registry):
        if threading.current_thread() is not threading.main_thread():
            serving.set()
            assert looked.wait(30)
        return retention_rules(registry)

    def found(finder, **options):
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and TaskName.objects.filter(name=f"{PATH}.note").exists():
            assert serving.wait(30)
            looked.set()
        return find(finder, **options)

    monkeypatch.setattr(components, "retention_rules", rules)
    monkeypatch.setattr(task_finder.TaskFinder, "find", found)
    tasks.enqueue_another.enqueue()
    forget()
    run()
    assert Job.objects.filter(status="completed").count() == 2


def test_a_worker_serves_only_its_types_and_queues(run, forget):
    results = [tasks.add.enqueue(1), tasks.note.enqueue("x"), tasks.add.using(queue_name="mail").enqueue(1)]
    forget()
    run(types=[f"{PATH}.a*"], queues=["mail"])
    for result in results:
        result.refresh()
    assert [result.is_finished for result in results] == [False, False, True]


def test_a_backend_need_not_accept_the_queue_of_a_declaration(run, forget):
    send = tasks.send.using(backend="patient", queue_name="default")
    results = [send.enqueue("x")]
    with override_settings(TASKS={**BACKENDS, "patient": {"BACKEND": BACKEND, "QUEUES": ["mail"]}}):
        results.append(tasks.send.using(backend="patient").enqueue("y"))
    forget()
    run()
    assert [task_backends["patient"].get_result(result.id).is_finished for result in results] == [True, True]
    assert sorted(tasks.calls) == ["x", "y"]


@pytest.mark.parametrize("queue", ["default", "mail"])
def test_a_task_runs_and_has_a_result_after_its_queue_was_removed(run, forget, signals, store, queue):
    later = datetime.now(UTC) + timedelta(hours=1)
    task = tasks.refresh.using(queue_name=queue, run_after=later)
    result = task.enqueue()
    with override_settings(TASKS={**BACKENDS, "default": {"BACKEND": BACKEND, "QUEUES": ["other"]}}):
        forget()
        store.db.ahead_seconds += 3601
        run()
        found = tasks.refresh.get_result(result.id)
    assert (found.return_value, found.task) == ("default", task)
    assert [sent.name for sent in signals] == ["enqueued", "started", "finished"]


def test_a_task_that_does_not_exist_fails_with_the_reason(run, forget, missing):
    forget()
    run()
    found = task_backends["default"].get_result(missing.id)
    assert found.status == TaskResultStatus.FAILED
    assert found.task.module_path == MISSING
    [error] = found.errors
    assert error.exception_class_path == "django_jobchains.exceptions.TaskNotImported"
    assert f"The task {MISSING!r} cannot be imported: ModuleNotFoundError: No module named" in error.traceback


def test_the_traceback_of_a_missing_task_does_not_grow_with_each_job():
    """It would keep the frames of all attempts, with their inputs."""
    task = task_backends["default"].missing_task(MISSING, TaskNotImported(MISSING, "gone"))
    for _ in range(2):
        with pytest.raises(TaskNotImported, match=r"gone\.send' cannot be imported: gone$") as caught:
            task.func()
        assert len(caught.traceback) == 2


def test_a_module_that_raises_fails_its_tasks(run, forget, missing, tmp_path, monkeypatch):
    (tmp_path / "broken_tasks.py").write_text("raise ZeroDivisionError('at import')")
    monkeypatch.syspath_prepend(tmp_path)
    Job.objects.update(type_name="broken_tasks.send", chain_type_name="broken_tasks.send")
    TaskName.objects.update(name="broken_tasks.send")
    forget()
    run()
    [error] = task_backends["default"].get_result(missing.id).errors
    assert "cannot be imported: ZeroDivisionError: at import" in error.traceback


def test_a_running_worker_leaves_missing_tasks_to_others_for_a_while(
    start_worker, forget, missing, monkeypatch, caplog
):
    monkeypatch.setattr(task_finder, "HINT_SECONDS", 0.01)
    forget()
    worker = start_worker()
    finder = worker.components.task_finder
    until(lambda: "Its jobs are left to other workers for 300 seconds" in caplog.text)
    assert Job.objects.get().status == "pending"
    finder._fails_at[MISSING] = 0.0
    worker.components.finding.run_soon(finder)
    until(lambda: Job.objects.get().status == "failed")
    assert MISSING not in worker.options.type_names


def test_missing_tasks_are_left_to_a_live_worker_that_serves_them(make_worker, forget, missing, store):
    """The other worker has found the task while it ran."""
    forget()
    worker_row(store, "other", type_names=())
    worker = make_worker()
    worker.components.heartbeat.step()
    worker_row(store, "other", type_names=(MISSING,))
    worker.components.heartbeat.step()
    finder = worker.components.task_finder
    assert not finder.find(grace_seconds=0)
    store.workers.leave("other")
    worker.components.heartbeat.step()
    assert finder.find(grace_seconds=0)
    assert worker.components.lanes[0].leases.keys() == {MISSING}
    worker_row(store, "other", type_names=(MISSING,))
    worker.components.heartbeat.step()
    assert not finder.find(grace_seconds=0)
    assert not worker.components.lanes[0].leases
    assert not worker.options.policies


def test_a_type_that_is_no_task_is_not_touched(run, processors, forget, store):
    other = processors.register("tests.tasks_backend.tasks.not_a_task")(lambda job: None)
    other.enqueue()
    forget()
    result = tasks.add.enqueue(1)
    run()
    result.refresh()
    assert result.is_finished
    assert Job.objects.get(type_name=other.name).status == "pending"


def test_unknown_types_are_still_unknown(registry):
    with pytest.raises(JobTypeNotFound):
        registry.job_type("shop.no_such_type")
    with pytest.raises(JobTypeNotFound):
        registry.job_type("nothing")
    assert registry.job_type(f"{PATH}.add").task == tasks.add


def test_a_worker_without_types_starts_for_tasks(start_worker):
    start_worker()
    result = tasks.add.enqueue(1)
    until(lambda: tasks.add.get_result(result.id).is_finished)


def test_a_task_that_cannot_run_here_does_not_stop_others(run, forget, monkeypatch, caplog):
    strict, other = tasks.add.enqueue(1), tasks.note.enqueue("note")
    forget()
    serve = Components.serve

    def refuse(components, name, policy):
        if name.endswith(".add"):
            raise ImproperlyConfigured("isolation='process' is strict")
        serve(components, name, policy)

    monkeypatch.setattr(Components, "serve", refuse)
    run()
    for result in (strict, other):
        result.refresh()
    assert [strict.is_finished, other.is_finished] == [False, True]
    assert "is not served by this worker: ImproperlyConfigured: isolation='process' is strict" in caplog.text
