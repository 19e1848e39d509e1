"""The outcome of an attempt: its job is completed, retried, failed or returned to the queue."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, TypeVar

from django.db import DatabaseError

from django_jobchains.conf import get_settings
from django_jobchains.db.times import resolve_schedule
from django_jobchains.declare.job_types import Processor
from django_jobchains.declare.policies import (
    AttemptPolicy,
    Backoff,
    BackoffFunction,
    checked_backoff_seconds,
    default_backoff,
    resolve,
)
from django_jobchains.exceptions import FailJob, HandlerStuck, InvalidPayload, JobAborted, RescheduleJob
from django_jobchains.store.errors import is_serialization_conflict
from django_jobchains.store.rows import ClaimedJob, Effects, FailedTry, FailureKind, FinishedJob
from django_jobchains.text.errors import clean, describe, log_error, log_text, traceback_of, without_variables
from django_jobchains.values import ATTEMPTS_LIMIT

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

logger = getLogger("django_jobchains")

#: A conflict of these statements does not count as an attempt until the job has been rescheduled this often:
#: docs/decisions/0045.
MAX_CONFLICTS = 100
#: The longest wait after such a conflict. It is random, so that two jobs that conflict do not meet again.
CONFLICT_SECONDS = 0.1

T = TypeVar("T")


class PhaseConflict(Exception):
    """The statements that lock or complete a job conflicted with another transaction. The handler did not cause it."""

    def __init__(self, conflict: Exception) -> None:
        self.conflict = conflict
        super().__init__(str(conflict))


@contextmanager
def raising_phase_conflict() -> Iterator[None]:
    """Raise ``PhaseConflict`` for a serialization failure, a deadlock, or a table that was altered."""
    try:
        yield
    except DatabaseError as error:
        if not is_serialization_conflict(error):
            raise
        raise PhaseConflict(error) from error


class OutcomeKind(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    #: The attempt completed its job, and the chain continues with another one.
    CONTINUED = "continued"
    #: The attempt failed, and the job is tried again.
    RETRIED = "retried"
    #: The handler raised ``RescheduleJob``, which is not a failure.
    RESCHEDULED = "rescheduled"
    FAILED = "failed"
    #: Another worker has the job, the job is deleted, or its lease could not be renewed. Nothing was written.
    ABANDONED = "abandoned"
    #: The chain was cancelled, and the attempt did not complete its job. It is not a failure.
    CANCELLED = "cancelled"
    #: The worker is stopping. The attempt does not count.
    HANDED_BACK = "handed_back"


@dataclass(slots=True)
class Outcome:
    """How an attempt ended, with the row to write, unless ``effects`` is set.

    It does not refer to the attempt: many outcomes wait to be written, and the garbage collector would visit them all.
    """

    job: ClaimedJob
    ending: OutcomeKind
    finished: FinishedJob | None = None
    failed: FailedTry | None = None
    #: The effects to publish, if the handler's own transaction has written the outcome.
    effects: Effects | None = None
    seconds: float = 0.0
    #: The error in one line for display, or "" without an error.
    error: str = ""
    #: The error itself, for the log. Its traceback has no local variables.
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    #: The processor and policy decide whether the job is retried if the outcome cannot be written. None if the handler
    #: was not called.
    processor: Processor | None = field(default=None, compare=False, repr=False)
    policy: AttemptPolicy | None = field(default=None, compare=False, repr=False)
    #: The span of the attempt, which ends when the outcome is written.
    span: "AttemptSpan | None" = field(default=None, compare=False, repr=False)
    #: Why the attempt must no longer write, if it noticed this itself.
    abandoned_reason: str = ""
    #: Whether it is in the table of jobs. A retry must not mistake the worker's own write for another worker's.
    is_written: bool = False

    def replace_by_failure(self, error: BaseException) -> None:
        """Replace an outcome that cannot be written by the failure that the error would cause in ``complete()``.

        A failed job stays failed.
        """
        if self.processor and self.policy:
            instead = failed_try(self.job, self.processor, self.policy, error)
        else:
            instead = not_started(self.job, resolve(), error)
        if self.ending is not OutcomeKind.FAILED:
            self.ending = instead.ending
        self.finished, self.failed, self.error = None, instead.failed, instead.error
        self.exception = instead.exception

    def retry_seconds(self) -> float | None:
        """Return the wait before the retry if this outcome cannot be written, or None if the job then fails."""
        if self.ending is OutcomeKind.FAILED:
            return None
        if self.failed and self.failed.delay_seconds is not None:
            return self.failed.delay_seconds
        if self.policy is None:
            return Backoff().initial_seconds
        error = RuntimeError("The outcome could not be written.")
        if _by_policy(
            "max_attempts", self.job.type_name, partial(_has_used_all, self.job, self.policy), lambda: False, error
        ):
            return None
        return _backoff_seconds(self.job, self.policy, error)


def not_started(job: ClaimedJob, policy: AttemptPolicy, error: BaseException) -> Outcome:
    """Return the outcome of a claimed job whose handler could not be called."""
    try:
        delay_seconds = _backoff_seconds(job, policy, error)  # May add a note to the error, for its traceback.
        return _failed(job, error, traceback_of(error), delay_seconds)
    except BaseException as problem:
        return fallback_outcome(job, error, problem)


def fallback_outcome(job: ClaimedJob, error: BaseException, problem: BaseException) -> Outcome:
    """Return the outcome of an attempt that ended with ``error``, when computing it failed with ``problem``.

    The job is retried after the default backoff. Without an outcome, it would wait until its lease expires, and the
    attempt would count as a crash.
    """
    log_error(logger, problem, "The outcome of job %s could not be computed, so the job is retried: %s", job.id)
    return _failed(job, error, traceback_of(error), Backoff().seconds(job.failures))


def failed_try(
    job: ClaimedJob, processor: Processor, policy: AttemptPolicy, error: BaseException, *, has_input: bool = True
) -> Outcome:
    """Return the outcome after this error: a retry or a failure. ``has_input``: whether the input was decoded."""
    if isinstance(error, RescheduleJob):
        return _rescheduled(job, processor, policy, error)
    if isinstance(error, PhaseConflict):
        if job.reschedules < MAX_CONFLICTS:
            delay = random.uniform(0, CONFLICT_SECONDS)  # noqa: S311 - jitter
            return _rescheduled(job, processor, policy, RescheduleJob(delay=delay, reason=describe(error.conflict)))
        error = error.conflict
    is_last = _by_policy(
        "max_attempts", job.type_name, partial(_is_last, job, processor, policy, error, has_input), lambda: False, error
    )
    delay_seconds = None if is_last else _backoff_seconds(job, policy, error)
    is_timeout = isinstance(error, JobAborted | HandlerStuck) and error.reason == "timed_out"
    kind: FailureKind = "timeout" if is_timeout else "error"
    return _failed(job, error, traceback_of(error), delay_seconds, kind, processor, policy)


def stopped_try(job: ClaimedJob, processor: Processor, policy: AttemptPolicy, error: BaseException) -> Outcome:
    """Return the outcome of an attempt that was asked to stop because its chain was cancelled. It is not a failure.

    The store cancels the job, because the request to cancel is stored with it. If it were not, for example because
    the project's code has aborted the signal itself, the job would be tried again after a while.
    """
    text = describe(error)
    row = FailedTry(job.id, job.lease_number, text, "", None, Backoff().initial_seconds, is_failure=False)
    return Outcome(job, OutcomeKind.RESCHEDULED, failed=row, error=text, processor=processor, policy=policy)


def crashed_try(
    job: ClaimedJob, processor: Processor, policy: AttemptPolicy, error: BaseException, stderr: str
) -> Outcome:
    """Return the outcome of an attempt whose process died: the job is tried again, up to ``MAX_CRASHES`` times."""
    is_last = job.crashes + 1 >= get_settings().MAX_CRASHES
    delay_seconds = None if is_last else backoff_seconds(policy.backoff, job.type_name, job.crashes + 1, None)
    # The calls of the worker that noticed the death would be logged as the error's traceback.
    return _failed(job, error.with_traceback(None), clean(stderr), delay_seconds, "crash", processor, policy)


def _failed(
    job: ClaimedJob,
    error: BaseException,
    traceback: str,
    delay_seconds: float | None,
    kind: FailureKind = "error",
    processor: Processor | None = None,
    policy: AttemptPolicy | None = None,
) -> Outcome:
    """Return the outcome of a failed attempt: a retry after this time, or, without a time, the end of the job."""
    text = describe(error)
    failed = FailedTry(job.id, job.lease_number, text, traceback, None, delay_seconds, kind=kind)
    ending = OutcomeKind.FAILED if delay_seconds is None else OutcomeKind.RETRIED
    return Outcome(
        job, ending, failed=failed, error=text, exception=without_variables(error), processor=processor, policy=policy
    )


def _rescheduled(job: ClaimedJob, processor: Processor, policy: AttemptPolicy, error: RescheduleJob) -> Outcome:
    """Return the outcome of a handler that asked for another attempt. An invalid time is a failure."""
    try:
        run_at, delay_seconds = resolve_schedule(error.run_at, error.delay)
    except BaseException as problem:
        problem.__context__ = error
        return failed_try(job, processor, policy, problem)
    # The reason that the handler gave, or the error that it was handling.
    reason = clean(error.reason) or (describe(error.__cause__) if error.__cause__ else "")
    row = FailedTry(job.id, job.lease_number, reason, "", run_at, delay_seconds, is_failure=False)
    return Outcome(job, OutcomeKind.RESCHEDULED, failed=row, processor=processor, policy=policy)


def _is_last(
    job: ClaimedJob, processor: Processor, policy: AttemptPolicy, error: BaseException, has_input: bool
) -> bool:
    if isinstance(error, FailJob) or (isinstance(error, InvalidPayload) and not has_input):
        return True
    if _has_used_all(job, policy):
        return True
    return not _by_policy("retry_if", job.type_name, partial(processor.retry.allows, error), lambda: True, error)


def _has_used_all(job: ClaimedJob, policy: AttemptPolicy) -> bool:
    return job.failures >= max_attempts_of(job, policy)


def max_attempts_of(job: ClaimedJob, policy: AttemptPolicy) -> float:
    """Return how often the job may fail; ``math.inf`` for no limit."""
    limit = job.max_attempts or policy.max_attempts
    return math.inf if limit == ATTEMPTS_LIMIT else limit


def _backoff_seconds(job: ClaimedJob, policy: AttemptPolicy, error: BaseException) -> float:
    return backoff_seconds(policy.backoff, job.type_name, job.failures, error)


def backoff_seconds(
    backoff: Backoff | BackoffFunction, type_name: str, failures: int, error: BaseException | None
) -> float:
    """Return the wait after this number of failures. An invalid backoff does not hide the error of the attempt.

    ``error`` is None after a crash.
    """
    decide = partial(checked_backoff_seconds, backoff, failures, error)
    return _by_policy("backoff", type_name, decide, lambda: default_backoff().seconds(failures), error)


def _by_policy(
    name: str, type_name: str, decide: Callable[[], T], default: Callable[[], T], error: BaseException | None
) -> T:
    """Return the decision of a policy about an attempt that ended with this error, or the default if the policy fails.

    Never raises, because the original error would be lost, and the job would wait until its lease expires. That the
    policy failed is reported once: in a note of the error, which is stored and logged, or else in the log.
    """
    try:
        return decide()
    except BaseException as problem:
        text = "The %s of type %r failed, and the default was used instead: %s"
        try:
            error.add_note(text % (name, type_name, describe(problem)))  # type: ignore[union-attr]
        except BaseException:  # There is no error after a crash, and an error may refuse notes.
            logger.warning(text, name, type_name, log_text(problem))
        return default()
