"""When the framework's signals are sent, and with what."""

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.exceptions import ChainCancelled
from django_jobchains.models import Job
from django_jobchains.tasks_backend import JobchainsBackend, framework
from django_jobchains.tasks_backend.framework import (
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_jobchains.testing import run_due_jobs
from tests.support.waiting import until
from tests.tasks_backend import tasks


def names(signals):
    return [(signal.name, str(signal.status)) for signal in signals]


def test_each_signal_is_sent_once(run, signals):
    result = tasks.add.enqueue(1, second=2)
    assert names(signals) == [("enqueued", "READY")]
    run()
    assert names(signals) == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    stored = tasks.add.get_result(result.id)
    for signal in signals:
        assert (signal.sender, signal.error) == (JobchainsBackend, None)
        assert (signal.result.id, signal.result.args, signal.result.kwargs) == (result.id, [1], {"second": 2})
    finished = signals[-1].result
    assert (finished.return_value, finished.worker_ids) == (3, stored.worker_ids)
    assert (finished.started_at, finished.enqueued_at) == (stored.started_at, stored.enqueued_at)
    assert finished.started_at <= finished.finished_at <= stored.finished_at


def test_signals_that_nobody_receives_are_not_prepared(caplog, request):
    observer = task_backends["default"].slice().type_of(tasks.add).processor.observer
    caplog.set_level("WARNING", framework.signal_logger.name)
    assert [observer.observes(status) for status in ("running", "completed")] == [False, False]
    assert [observer.observes(status) for status in ("failed", "cancelled")] == [True, True]  # Django logs an error.
    caplog.set_level("INFO", framework.signal_logger.name)
    assert [observer.observes(status) for status in ("running", "completed")] == [True, True]
    caplog.set_level("WARNING", framework.signal_logger.name)
    request.getfixturevalue("signals")
    assert [observer.observes(status) for status in ("running", "completed")] == [True, True]


def test_the_framework_logs_tasks_without_other_receivers(run, caplog):
    caplog.set_level("DEBUG", framework.signal_logger.name)
    results = [tasks.add.enqueue(1), tasks.fail.enqueue()]
    run()
    records = [record for record in caplog.records if record.name == framework.signal_logger.name]
    for result, states in zip(results, [["RUNNING", "SUCCESSFUL"], ["RUNNING", "FAILED"]], strict=True):
        texts = [record.getMessage() for record in records if result.id in record.getMessage()]
        start = f"Task id={result.id} path={result.task.module_path}"
        assert texts == [f"{start} enqueued backend=default", *[f"{start} state={state}" for state in states]]
    assert [record.exc_info[0] for record in records if record.exc_info] == [tasks.PaymentError]


def test_a_signal_without_any_receiver_is_not_prepared(caplog, monkeypatch):
    caplog.set_level("INFO", framework.signal_logger.name)
    monkeypatch.setattr(task_started, "receivers", [])
    observer = task_backends["default"].slice().type_of(tasks.add).processor.observer
    assert [observer.observes(status) for status in ("running", "completed")] == [False, True]


def test_a_rolled_back_task_sends_no_signal(signals, transactional_db):
    with transaction.atomic():
        tasks.add.enqueue(1)
        assert not signals
        transaction.set_rollback(True)
    assert not signals
    with transaction.atomic():
        tasks.add.enqueue(1)
    assert names(signals) == [("enqueued", "READY")]


def test_a_failed_task_sends_its_signal_while_the_error_is_handled(run, signals):
    tasks.fail.enqueue()
    run()
    signal = signals[-1]
    assert names([signal]) == [("finished", "FAILED")]
    assert isinstance(signal.error, tasks.PaymentError)
    assert signal.result.errors[0].exception_class is tasks.PaymentError
    assert signal.result.errors == tasks.fail.get_result(signal.result.id).errors


def test_a_retried_task_starts_with_each_attempt_and_finishes_once(run, signals):
    tasks.fail_twice.enqueue()
    run()
    assert names(signals) == [("enqueued", "READY"), *[("started", "RUNNING")] * 3, ("finished", "SUCCESSFUL")]
    assert [signal.result.attempts for signal in signals] == [0, 1, 2, 3, 3]
    assert [len(signal.result.errors) for signal in signals] == [0, 0, 1, 2, 2]


def test_coroutine_functions_send_signals_from_a_thread_that_may_use_the_database(run, signals):
    numbers = []

    def count(**kwargs):
        numbers.append(Job.objects.count())

    for signal in (task_started, task_finished):
        signal.connect(count)
    tasks.aadd.enqueue(1)
    run()
    for signal in (task_started, task_finished):
        signal.disconnect(count)
    assert names(signals) == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    assert numbers == [1, 1]


@pytest.mark.parametrize("signal", [task_enqueued, task_started, task_finished])
def test_receivers_that_raise_errors_lose_nothing(run, signal, caplog, request):
    def break_down(**kwargs):
        raise ZeroDivisionError("a receiver")

    signal.connect(break_down)
    signals = request.getfixturevalue("signals")  # later receivers
    try:
        result = tasks.add.enqueue(1)
        run()
    finally:
        signal.disconnect(break_down)
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert len(signals) == 3
    assert "ZeroDivisionError" in caplog.text


def test_a_task_that_was_stopped_finishes_as_cancelled(start_worker, signals):
    result = tasks.wait.using(backend="patient").enqueue()
    start_worker()
    until(lambda: tasks.calls)
    chains.cancel(Job.objects.get())
    tasks.gate.set()
    until(lambda: signals[-1].name == "finished")
    stored = task_backends["patient"].get_result(result.id)
    for found in (stored, signals[-1].result):
        assert (found.status, found.attempts) == (TaskResultStatus.FAILED, 1)
        assert [error.exception_class for error in found.errors] == [ChainCancelled]
    assert isinstance(signals[-1].error, ChainCancelled)


def test_tests_send_signals_in_their_own_thread(db, signals, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        tasks.add.enqueue(1)
        tasks.fail.enqueue()
    run_due_jobs()
    assert [name for name, _ in names(signals)] == ["enqueued", "enqueued", *["started", "finished"] * 2]
    assert isinstance(signals[-1].error, tasks.PaymentError)
