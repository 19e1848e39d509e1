"""The results of tasks, which are read from their jobs and failed attempts, and the signals that carry them."""

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from logging import ERROR, INFO, getLogger
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.dispatch import Signal
from django.utils import timezone

from django_jobchains import exceptions
from django_jobchains.db.connections import own_statements
from django_jobchains.declare.job_types import AttemptObserver
from django_jobchains.exceptions import (
    ChainCancelled,
    ChainFailed,
    InvalidInput,
    InvalidOutput,
    InvalidPayload,
    LeaseLost,
)
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.payloads.codecs import Unreadable, decode_json
from django_jobchains.payloads.strict_json import decode
from django_jobchains.statuses import Status
from django_jobchains.store import get_store
from django_jobchains.store.rows import ClaimedJob, FailedTry, FinishedJob
from django_jobchains.tasks_backend.framework import (
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
    framework_signals,
    signal_logger,
    task_finished,
    task_started,
)
from django_jobchains.text.errors import log_error, redacted_error

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult

logger = getLogger("django_jobchains")

_STATUSES = {
    Status.BLOCKED: TaskResultStatus.READY,
    Status.PENDING: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}
#: What identifies the receivers with which the framework logs signals.
_OWN_RECEIVERS = {
    id(receiver)
    for receiver in (
        framework_signals.log_task_enqueued,
        framework_signals.log_task_started,
        framework_signals.log_task_finished,
    )
}
#: The errors of attempts that raised none, and of jobs that did not start, by their class.
_OWN = f"{exceptions.__name__}."


@own_statements
def read_job(job_id: UUID) -> Job | None:
    """Return the job of a result, or None if it does not exist."""
    return Job.objects.using(get_store().using).filter(pk=job_id).defer("context").first()


@own_statements
def result_of(task: AnyTask, job: Job) -> AnyResult:
    """Return the result of a task that was read, with one more query if the task has been attempted.

    Raises ``InvalidInput`` or ``InvalidOutput`` if its arguments or its return value cannot be decoded.
    """
    failed: list[FailedAttempt] = []
    if job.attempt:
        failed = [*FailedAttempt.objects.using(job._state.db).filter(job_id=job.pk).order_by("lease_number")]
    workers = {row.attempt: row.worker for row in failed}
    if job.attempt:
        # An attempt that was rescheduled or cancelled, or that its worker did not end, leaves no trace of its worker.
        workers.setdefault(job.attempt, job.leased_by or job.completed_by or "")
    is_unchanged = not failed and job.run_at > job.created_at
    given = _readable(job.input, InvalidInput)
    result = _make(
        _as_enqueued(task, job.priority, job.queue, job.run_at if is_unchanged else None),
        job,
        _STATUSES[Status(job.status)],
        given if isinstance(given, dict) else {},
        worker_ids=[workers.get(number, "") for number in range(1, job.attempt + 1)],
        started_at=min((row.started_at for row in failed), default=job.last_attempt_at),
        finished_at=job.finished_at,
        errors=list(_errors(job, failed)),
    )
    if job.status == Status.COMPLETED:
        object.__setattr__(result, "_return_value", _readable(job.output, InvalidOutput))
    return result


def started_result(task: AnyTask, job: ClaimedJob | RunningJob[Any], given: Mapping[str, Any]) -> AnyResult:
    """Return the result of a task whose attempt begins. ``given``: its input. Only a retry needs queries."""
    if job.attempt > 1 and (row := read_job(job.id)):
        return result_of(task, row)
    task = _as_enqueued(task, job.priority, job.queue, job.run_at if job.run_at > job.created_at else None)
    return _make(task, job, TaskResultStatus.RUNNING, given, worker_ids=[job.worker], started_at=job.last_attempt_at)


def _make(
    task: AnyTask,
    job: Job | ClaimedJob | RunningJob[Any],
    status: TaskResultStatus,
    given: Mapping[str, Any],
    *,
    worker_ids: list[str],
    started_at: datetime | None,
    finished_at: datetime | None = None,
    errors: Sequence[TaskError] = (),
) -> AnyResult:
    was_started = job.attempt > 0
    return TaskResult(
        task=task,
        id=str(job.id),
        status=status,
        enqueued_at=shown(job.created_at),
        started_at=shown(started_at) if was_started else None,
        last_attempted_at=shown(job.last_attempt_at) if was_started else None,
        finished_at=shown(finished_at),
        args=given.get("args", []),
        kwargs=given.get("kwargs", {}),
        backend=task.backend,
        errors=list(errors),
        worker_ids=worker_ids,
    )


def shown(time: datetime | None) -> datetime | None:
    """Return a time as Django's framework has it: without a time zone if the project uses none."""
    if time is None or settings.USE_TZ:
        return time
    if timezone.is_naive(time):  # Django has read it. SQLite stores times in UTC, and PostgreSQL converts them.
        if not get_store().db.has_one_writer:
            return time
        time = time.replace(tzinfo=UTC)
    return timezone.make_naive(time)


def _as_enqueued(task: AnyTask, priority: int, queue: str, run_after: datetime | None) -> AnyTask:
    if (task.priority, task.queue_name, run_after) == (priority, queue, None):
        return task
    return changed(task, priority=priority, queue_name=queue, run_after=shown(run_after))


def changed(task: AnyTask, **values: Any) -> AnyTask:
    """Return a copy of a task with other attributes.

    ``task.using`` and ``copy`` would validate the task again, and refuse it if its backend does not accept the queue.
    But a call may name another queue than the declaration, and a stored job may be older than the setting.
    """
    copied = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(copied, field.name, values.get(field.name, getattr(task, field.name)))
    return copied


def _readable(value: Any, error: type[InvalidPayload]) -> Any:
    if isinstance(value, Unreadable):
        raise error(str(value.reason))
    return value


# Errors


def _errors(job: Job, failed: Sequence[FailedAttempt]) -> list[TaskError]:
    errors = [error_of(row.error, row.traceback, is_crash=row.kind == FailedAttempt.Kind.CRASH) for row in failed]
    if job.status == Status.CANCELLED:
        # The attempt that was running then failed because of that.
        last = failed[-1] if failed else None
        was_stopped = last and job.cancel_requested_at and last.finished_at >= job.cancel_requested_at
        reason = ChainCancelled(job.chain_id, is_expired=job.is_expired)
        text = errors.pop().traceback if was_stopped else str(reason)
        errors.append(TaskError(exception_class_path=f"{_OWN}ChainCancelled", traceback=text))
    elif job.status == Status.FAILED and not failed:
        errors.append(error_of(job.last_error or "", ""))
    return errors


def error_of(error: str, text: str, *, is_crash: bool = False) -> TaskError:
    """Return a stored error. ``error``: in one line, which begins with the name of its class; ``text``: its traceback.

    The module of the class is in the traceback. A crash raised no error, unless a child process died.
    """
    name = error.partition(":")[0]
    found = re.findall(rf"^[ |+]*((?:\w+\.)*{re.escape(name)})(?=:|$)", text, re.MULTILINE) if name else []
    if found and found[-1] != name:
        path = found[-1]
    elif isinstance(getattr(exceptions, name, None), type):
        path = f"{_OWN}{name}"
    elif hasattr(builtins, name):
        path = f"builtins.{name}"
    else:
        path = f"{_OWN}LeaseLost" if is_crash else f"{_OWN}ChainFailed"
    return TaskError(exception_class_path=path, traceback=text or error)


# Signals


def is_heard(signal: Signal, level: int) -> bool:
    """Return whether a signal has any effect. The framework's own receiver logs it at this level."""
    return _has_receivers(signal) or (bool(signal.receivers) and signal_logger.isEnabledFor(level))


def _has_receivers(signal: Signal) -> bool:
    """Return whether a signal has other receivers than the framework's own, to which only ids and names matter."""
    receivers = signal.receivers
    return len(receivers) > 1 or (len(receivers) == 1 and receivers[0][0][0] not in _OWN_RECEIVERS)


def _logged_result(task: AnyTask, job_id: UUID, status: TaskResultStatus) -> AnyResult:
    """Return a result with only the values that the framework's receivers log. A whole one takes ten times as long."""
    result: AnyResult = object.__new__(TaskResult)
    object.__setattr__(result, "task", task)
    object.__setattr__(result, "id", str(job_id))
    object.__setattr__(result, "status", status)
    return result


class TaskSignals(AttemptObserver):
    """Sends the signals of one task. ``sender``: the class of its backend."""

    def __init__(self, task: AnyTask, sender: type) -> None:
        self._task = task
        self._sender = sender

    def observes(self, status: str) -> bool:
        if status == Status.RUNNING:
            return is_heard(task_started, INFO)
        return is_heard(task_finished, INFO if status == Status.COMPLETED else ERROR)

    def started(self, job: ClaimedJob) -> None:
        try:
            if _has_receivers(task_started):
                result = started_result(self._task, job, _input_of(job))
            else:
                result = _logged_result(self._task, job.id, TaskResultStatus.RUNNING)
            self._send(task_started, result)
        except Exception as error:
            log_error(logger, error, "The signal task_started of task %s could not be sent: %s", job.id)

    def ended(
        self, job: ClaimedJob, row: FinishedJob | FailedTry, status: str, seconds: float, error: BaseException | None
    ) -> None:
        try:
            if status == Status.COMPLETED and not _has_receivers(task_finished):
                self._send(task_finished, _logged_result(self._task, job.id, TaskResultStatus.SUCCESSFUL))
            else:
                self._finished(self._ended_result(job, row, status, seconds), error)
        except Exception as problem:
            log_error(logger, problem, "The signal task_finished of task %s could not be sent: %s", job.id)

    def ended_elsewhere(self, job_id: UUID) -> None:
        try:
            if (job := read_job(job_id)) and job.status in (Status.FAILED, Status.CANCELLED, Status.COMPLETED):
                self._finished(result_of(self._task, job), None)
        except Exception as problem:
            log_error(logger, problem, "The signal task_finished of task %s could not be sent: %s", job_id)

    def _ended_result(self, job: ClaimedJob, row: FinishedJob | FailedTry, status: str, seconds: float) -> AnyResult:
        if job.attempt > 1 and (found := read_job(job.id)):
            return result_of(self._task, found)
        result = started_result(self._task, job, _input_of(job))
        ended: dict[str, Any] = {
            "status": _STATUSES[Status(status)],
            # By the database's clock. The row has a time that is some milliseconds later.
            "finished_at": shown(job.last_attempt_at + timedelta(seconds=seconds)),
        }
        if isinstance(row, FinishedJob):
            ended["_return_value"] = row.output and decode(row.output, InvalidOutput)
        else:
            error = error_of(row.error, row.traceback, is_crash=row.kind == "crash")
            if status == Status.CANCELLED:
                error = TaskError(exception_class_path=f"{_OWN}ChainCancelled", traceback=error.traceback)
            ended["errors"] = [error]
        for name, value in ended.items():
            object.__setattr__(result, name, value)
        return result

    def _finished(self, result: AnyResult, error: BaseException | None) -> None:
        """Send ``task_finished``, for a task that has failed while its error is being handled."""
        if result.status != TaskResultStatus.FAILED:
            self._send(task_finished, result)
            return
        last = result.errors[-1]
        if last.exception_class_path == f"{_OWN}ChainCancelled":
            shown_error: BaseException = ChainCancelled(UUID(result.id))
        elif error:
            shown_error = redacted_error(error)
        elif last.exception_class_path == f"{_OWN}LeaseLost":
            shown_error = LeaseLost(UUID(result.id), "taken_by_another_worker")
            shown_error.add_note(last.traceback)
        else:
            shown_error = ChainFailed(UUID(result.id), last.traceback)
        try:
            raise shown_error  # noqa: TRY301 - receivers read it with sys.exc_info()
        except BaseException:
            self._send(task_finished, result)

    def _send(self, signal: Signal, result: AnyResult) -> None:
        """Send a signal. Errors of receivers are logged by Django, and do not affect other receivers."""
        signal.send_robust(self._sender, task_result=result)


def _input_of(job: ClaimedJob) -> dict[str, Any]:
    given = decode(decode_json(job.input, InvalidInput), InvalidInput)
    return given if isinstance(given, dict) else {}
