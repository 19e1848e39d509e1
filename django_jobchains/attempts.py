"""One try at one job: decode, handle, complete; or reschedule, fail, abandon.

``Attempt.run`` never raises. What it could not write in the handler's own transaction it returns, to be written by
whoever ran it: a completed job in a batch with others, a failed one in a transaction of its own.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

from django_jobchains.context import unbind
from django_jobchains.exceptions import (
    FailJob,
    InvalidInput,
    InvalidPayload,
    JobAborted,
    LeaseLost,
    PhaseError,
    RescheduleJob,
)
from django_jobchains.hygiene import close_all
from django_jobchains.middleware.hooks import around
from django_jobchains.notes import Notebook
from django_jobchains.phases import AttemptPhases
from django_jobchains.policies import AttemptPolicy, Backoff, is_number, resolve
from django_jobchains.processors import Processor, Registry
from django_jobchains.running import AbortSignal, Continuation, RunningJob
from django_jobchains.schedules import MOST_SECONDS, when
from django_jobchains.store import ClaimedJob, Effects, FailedTry, FinishedJob, Store
from django_jobchains.texts import describe, log_error, log_text, traceback_of

logger = getLogger("django_jobchains")

T = TypeVar("T")


class Ending(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    RESCHEDULED = "rescheduled"
    FAILED = "failed"
    #: Somebody else has the job, or it is gone: nothing was written.
    ABANDONED = "abandoned"
    #: It was asked to stop, by ``chains.cancel``.
    CANCELLED = "cancelled"
    #: The worker stops; the attempt does not count.
    HANDED_BACK = "handed_back"


@dataclass(slots=True)
class Outcome:
    """How an attempt ended, with the row that says so, still to be written unless ``is_committed``."""

    job: ClaimedJob
    ending: Ending
    finished: FinishedJob | None = None
    failed: FailedTry | None = None
    #: Written already, in the handler's own transaction,
    is_committed: bool = False
    #: and what that changed for others, who are still to hear of it.
    effects: Effects = field(default_factory=Effects)
    seconds: float = 0.0
    #: One line for people; "" when all went well.
    error: str = ""
    #: The attempt's, to decide what becomes of the job if this outcome cannot be written.
    failed_try: "Callable[[BaseException], Outcome] | None" = field(default=None, compare=False, repr=False)

    def replace_by_failure(self, error: BaseException) -> None:
        """After an error that keeps it from being written: the job has the same fate as after that error in
        ``complete()``. A job that failed for good stays failed."""
        instead = self.failed_try(error) if self.failed_try else not_started(self.job, resolve(), error)
        if self.ending is not Ending.FAILED:
            self.ending = instead.ending
        self.finished, self.failed, self.error = None, instead.failed, instead.error


def not_started(job: ClaimedJob, policy: AttemptPolicy, error: BaseException) -> Outcome:
    """The outcome of a claimed job for which no attempt could be made."""
    try:
        return _rescheduled(job, error, backoff_seconds(policy, job.failures, error))
    except BaseException as problem:
        return fallback_outcome(job, error, problem)


def fallback_outcome(job: ClaimedJob, error: BaseException, problem: BaseException) -> Outcome:
    """The outcome of an attempt that ended by ``error``, when working out its outcome failed with ``problem``.

    The job is tried again after the library's own backoff. Without an outcome, it would have no worker until its lease
    ran out, and the attempt would count as a crash.
    """
    log_error(logger, problem, "The outcome of job %s could not be computed, so the job is retried: %s", job.id)
    return _rescheduled(job, error, Backoff().seconds(job.failures))


def _rescheduled(job: ClaimedJob, error: BaseException, delay_seconds: float) -> Outcome:
    text = describe(error)
    failed = FailedTry(job.id, job.lease_number, text, traceback_of(error), None, delay_seconds)
    return Outcome(job, Ending.RESCHEDULED, failed=failed, error=text)


def begin(phases: AttemptPhases) -> None:
    """Prepares this thread's connections for an attempt; closes all of them if one is too broken to be looked at."""
    try:
        phases.begin()
    except Exception:
        close_all()
        phases.begin()


def end(phases: AttemptPhases) -> None:
    """Cleans this thread's connections up after an attempt. What fails here does not change how the attempt ended."""
    try:
        phases.end()
    except BaseException as error:
        text = "The connections of job %s could not be cleaned up, so they are closed: %s"
        log_error(logger, error, text, phases.job.id)
        close_all()


def backoff_seconds(policy: AttemptPolicy, attempt: int, error: BaseException) -> float:
    """The wait after a failed attempt. Whatever is wrong with the backoff, the error that ended the attempt is kept."""
    return _by_policy("backoff", partial(_checked_backoff, policy, attempt), partial(Backoff().seconds, attempt), error)


def _checked_backoff(policy: AttemptPolicy, attempt: int) -> float:
    seconds: object = policy.backoff.seconds(attempt)
    if not (is_number(seconds) and 0 <= seconds <= MOST_SECONDS):
        raise ValueError(f"{seconds!r:.50} is not a number of seconds")
    return seconds


def _by_policy(name: str, ask: Callable[[], T], default: Callable[[], T], error: BaseException) -> T:
    """What a policy says about an attempt that ended by this error; the default when the policy itself fails.

    Nothing is raised here: the original error would be lost, and the job would wait for the end of its lease.
    """
    try:
        return ask()
    except BaseException as problem:
        _note(error, f"The type's {name} failed, and the default was used instead: {describe(problem)}")
        text = "After a failed attempt: The type's %s failed, and the default was used instead: %s"
        logger.warning(text, name, log_text(problem))
        return default()


def _note(error: BaseException, text: str) -> None:
    with suppress(BaseException):  # an error may refuse notes
        error.add_note(text)


class Attempt:
    def __init__(
        self,
        job: ClaimedJob,
        processor: Processor,
        *,
        policy: AttemptPolicy,
        store: Store,
        registry: Registry,
        notebook: Notebook,
        signal: AbortSignal | None = None,
    ) -> None:
        self.job = job
        self.processor = processor
        self.policy = policy
        self.store = store
        self.notebook = notebook
        self.signal = signal or AbortSignal()
        self.phases = AttemptPhases(job, processor, policy.lease, store, registry, self.signal)
        #: Monotonic time at which it is asked to stop.
        self.expires_at = math.inf
        #: Whether the input has been read.
        self.has_input = False

    def outcomes(self) -> list[Outcome]:
        """Runs it; what is to be written, nothing if it was written in its stead."""
        outcome = self.run()
        return [] if self.is_disowned else [outcome]

    def run(self) -> Outcome:
        """Runs the handler on this thread; whatever it does, returns how the attempt ended.

        In a context of its own: what it sets (a language, a tenant) is gone when the thread runs the next one.
        """
        return copy_context().run(self._run)

    def _run(self) -> Outcome:
        unbind()
        started = time.perf_counter()
        if self.policy.timeout_seconds is not None:
            self.expires_at = time.monotonic() + self.policy.timeout_seconds
        outcome = self._begun() or self._handled()
        end(self.phases)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _begun(self) -> Outcome | None:
        """None, or the outcome of an attempt whose handler cannot be called on this thread."""
        try:
            begin(self.phases)
        except BaseException as error:
            self.signal.end()
            return not_started(self.job, self.policy, error)
        return None

    def _handled(self) -> Outcome:
        try:
            return self._complete(self._handle())
        except BaseException as error:  # SystemExit and the like end an attempt, never the worker
            return self.not_completed(error)

    def _handle(self) -> Any:
        running = RunningJob(self.job, self.read_input(), self.signal, self.phases, self.notebook)
        self.phases.serve(running)
        self.has_input = True
        with around(self.processor.middleware, "around_handler", running):
            if self.processor.mode == "atomic":
                with self.phases.prepare("atomic"):
                    return self.processor.function(running)
            return self.processor.function(running)

    def read_input(self) -> Any:
        """Decodes the input; raises ``InvalidInput``, after which the job is not tried again, as after other errors."""
        return self.processor.job_type.input_codec.decode(self.job.input, InvalidInput)

    def _complete(self, result: Any) -> Outcome:
        if not self.signal.end():
            raise LeaseLost(self.job.id, self.signal.reason or "error")
        self.phases.check_after_handler()
        finished = self._finished(result)
        if not self.phases.is_open:
            return Outcome(self.job, Ending.COMPLETED, finished, failed_try=self.failed_try)
        effects = self._finish_in_transaction(finished)
        return Outcome(self.job, Ending.COMPLETED, finished, is_committed=True, effects=effects)

    def _finished(self, result: Any) -> FinishedJob:
        finished = FinishedJob(self.job.id, self.job.lease_number)
        if isinstance(result, Continuation):
            if result is not self.phases.continuation:
                raise PhaseError("The handler returned a continuation that is not its own job's.")
            finished.continuation = result.job
        elif self.phases.continuation is not None:
            raise PhaseError("job.continue_with(…) must be returned: 'return job.continue_with(…)'.")
        else:
            finished.output = self.processor.job_type.encode_output(result)
        return finished

    def _finish_in_transaction(self, finished: FinishedJob) -> Effects:
        effects = Effects()
        if finished.key not in self.store.finish(
            [finished], effects, is_locked=True, transaction=self.phases.transaction
        ):
            raise LeaseLost(self.job.id, "taken_by_another_worker")
        self._commit()
        return effects

    def _commit(self) -> None:
        """Commits. After an error the row tells whether it did: the reply may be lost, or an on_commit hook failed."""
        try:
            self.phases.commit()
        except Exception as error:
            if self.store.look(self.job.id) != ("completed", self.job.lease_number):
                raise
            text = "Job %s is completed; an error after its commit changes nothing: %s"
            log_error(logger, error, text, self.job.id)

    def not_completed(self, error: BaseException) -> Outcome:
        """How it ends by this error. It does not raise."""
        return self._safely(self._not_completed, error)

    def _safely(self, outcome_of: Callable[[BaseException], Outcome], error: BaseException) -> Outcome:
        try:
            return outcome_of(error)
        except BaseException as problem:
            return fallback_outcome(self.job, error, problem)

    def _not_completed(self, error: BaseException) -> Outcome:
        self.signal.end()
        self.phases.give_up(error)
        if isinstance(error, LeaseLost):
            return Outcome(self.job, Ending.ABANDONED, error=str(error))
        if isinstance(error, JobAborted) and self.signal.reason == "worker_stopping":
            return Outcome(self.job, Ending.HANDED_BACK, error=str(error), failed_try=self.failed_try)
        return self.failed_try(error)

    def disown(self, error: BaseException, stack: str) -> list[Outcome]:
        """From another thread: it does not stop. The outcome to write in its stead; none when it is about to end.

        ``stack``: where it hangs. The attempt goes on, and writes nothing any more.
        """
        if not self.signal.disown():
            return []
        outcome = self._safely(self.failed_try, error)
        if outcome.failed:
            outcome.failed.traceback = stack
        return [outcome]

    @property
    def jobs(self) -> tuple[ClaimedJob, ...]:
        return (self.job,)

    @property
    def is_disowned(self) -> bool:
        return self.signal.is_disowned

    def failed_try(self, error: BaseException) -> Outcome:
        """Whether the job is tried again after this error, and when."""
        is_last = _by_policy("max_attempts", partial(self._is_last, error), lambda: False, error)
        run_at, delay_seconds = (None, None) if is_last else self._next_try(error)
        text = describe(error)
        failed = FailedTry(self.job.id, self.job.lease_number, text, traceback_of(error), run_at, delay_seconds)
        ending = Ending.FAILED if is_last else Ending.RESCHEDULED
        return Outcome(self.job, ending, failed=failed, error=text, failed_try=self.failed_try)

    def _is_last(self, error: BaseException) -> bool:
        if isinstance(error, FailJob) or (isinstance(error, InvalidPayload) and not self.has_input):
            return True
        most = self.job.max_attempts or self.policy.max_attempts
        if most is not None and self.job.failures >= most:
            return True
        return not isinstance(error, RescheduleJob) and not self._is_retried(error)

    def _is_retried(self, error: BaseException) -> bool:
        return _by_policy("retry_if", partial(self.processor.retry.allows, error), lambda: True, error)

    def _next_try(self, error: BaseException) -> tuple[Any, float | None]:
        if isinstance(error, RescheduleJob):
            try:
                return when(error.run_at, error.delay)
            except BaseException as problem:
                _note(error, f"The backoff is used instead: {describe(problem)}")
        return None, backoff_seconds(self.policy, self.job.failures, error)
