"""One attempt at one job: decode the input, call the handler, and complete, reschedule, fail or abandon the job.

``Attempt.run`` never raises. It returns the outcomes that the handler's own transaction has not written, and the caller
writes them: completed jobs in batches, failed ones in their own transactions.
"""

import math
import time
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from django_jobchains.attempts.outcome import (
    Outcome,
    OutcomeKind,
    failed_try,
    fallback_outcome,
    max_attempts_of,
    not_started,
)
from django_jobchains.attempts.phases import AttemptPhases
from django_jobchains.context import clear_context
from django_jobchains.exceptions import JobAborted, LeaseLost, PhaseError
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.job_log import JobLogBuffer
from django_jobchains.handlers.running_job import Continuation, RunningJob
from django_jobchains.middleware.hooks import around
from django_jobchains.policies import AttemptPolicy
from django_jobchains.registry.job_types import Processor
from django_jobchains.registry.registry import Registry
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, Store
from django_jobchains.telemetry.tracing import OWN_SPANS, AttemptSpans, active


@dataclass(frozen=True, slots=True)
class Environment:
    """What the attempts at the jobs of one type have in common."""

    processor: Processor
    policy: AttemptPolicy
    store: Store
    registry: Registry
    log_buffer: JobLogBuffer
    spans: AttemptSpans = OWN_SPANS


class Attempt:
    def __init__(self, job: ClaimedJob, environment: Environment, signal: AbortSignal) -> None:
        self.job = job
        self.environment = environment
        self.processor = environment.processor
        self.policy = environment.policy
        self.signal = signal
        self.phases = AttemptPhases(
            job, self.processor, self.policy.lease, environment.store, environment.registry, signal
        )
        #: The monotonic time at which the worker asks the attempt to stop.
        self.expires_at = math.inf
        #: Whether the input and the context have been decoded.
        self.has_input = False

    @property
    def jobs(self) -> tuple[ClaimedJob, ...]:
        return (self.job,)

    @property
    def is_detached(self) -> bool:
        return self.signal.is_detached

    def run(self) -> list[Outcome]:
        """Run the handler on this thread, and return the outcome. Return nothing if the attempt was detached.

        The context is a copy: a language or a tenant that the handler sets does not affect the thread's next attempt.
        """
        outcome = copy_context().run(self._run)
        return [] if self.signal.is_detached else [outcome]

    def _run(self) -> Outcome:
        clear_context()
        started = time.perf_counter()
        self.expires_at = time.monotonic() + self.policy.timeout_seconds
        self.start_span()
        with active(self.phases.span):
            try:
                self.phases.begin()
            except BaseException as error:
                self.signal.end()
                outcome = not_started(self.job, self.policy, error)
            else:
                outcome = self._process()
            self.phases.end()
        outcome.seconds = time.perf_counter() - started
        return self.with_span(outcome)

    def start_span(self) -> None:
        """Report that the attempt starts, and start its span."""
        self.phases.span = self.phases.job_span = self.environment.spans.attempt(self.job)

    def with_span(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the attempt's span, which ends now."""
        span = self.phases.job_span
        if span is not None and span.stop():
            outcome.span = span
        return outcome

    def _process(self) -> Outcome:
        try:
            return self.complete(self._call_handler())
        except BaseException as error:  # SystemExit and similar errors end the attempt, but not the worker.
            return self.outcome_of_error(error)

    def _call_handler(self) -> Any:
        job = self.running_job(self.phases)
        with (
            around(self.processor.middleware, "around_handler", job),
            self.phases.prepare("atomic") if self.processor.mode == "atomic" else nullcontext(),
        ):
            result = self.processor.function(job)
            if self.processor.middleware:
                self.phases.complete_for_middleware()
            return result

    def running_job(self, phases: Any) -> RunningJob[Any]:
        """Return the argument of the handler. Raise ``InvalidInput``, after which the job is not retried."""
        job = RunningJob(
            self.job,
            self.decode_input(),
            self.signal,
            phases,
            self.environment.log_buffer,
            max_attempts=max_attempts_of(self.job, self.policy),
        )
        self.has_input = True
        if self.processor.middleware:
            self.phases.running = job
        return job

    def decode_input(self) -> Any:
        return self.processor.job_type.decode_input(self.job.input)

    def complete(self, result: Any) -> Outcome:
        """Complete the job in the handler's transaction, or return an outcome that is still to be written."""
        if not self.signal.end():
            raise LeaseLost(self.job.id, self.signal.reason or "error")
        self.phases.check_after_handler()
        finished = self.finished(result)
        effects = self.phases.finish([finished]) if self.phases.is_open else None
        return self.outcome(OutcomeKind.COMPLETED, finished, effects=effects)

    def finished(self, result: Any) -> FinishedJob:
        """Return the row for what the handler returned: an output or a continuation."""
        finished = FinishedJob(self.job.id, self.job.lease_number)
        if isinstance(result, Continuation):
            if result is not self.phases.continuation:
                raise PhaseError("The handler returned the continuation of another job.")
            finished.continuation = result.job
        elif self.phases.continuation is not None:
            raise PhaseError("job.continue_with(…) must be returned: 'return job.continue_with(…)'.")
        else:
            finished.output = self.processor.job_type.encode_output(result)
        return finished

    def outcome_of_error(self, error: BaseException) -> Outcome:
        """Return how the attempt ends after this error. Never raises."""
        try:
            self.signal.end()
            self.phases.give_up(error)
            if isinstance(error, LeaseLost):
                return self._abandoned(error)
            if isinstance(error, JobAborted) and self.signal.reason == "worker_stopping":
                return self.outcome(OutcomeKind.HANDED_BACK, error=str(error))
            return self._failed_try(error)
        except BaseException as problem:
            return fallback_outcome(self.job, error, problem)

    def _abandoned(self, error: LeaseLost) -> Outcome:
        outcome = self.outcome(OutcomeKind.ABANDONED, error=str(error))
        outcome.abandoned_reason = error.reason
        return outcome

    def detach(self, error: BaseException, stack: str) -> list[Outcome]:
        """Give up an attempt that does not stop, from another thread. Return the outcome to write in its place.

        The list is empty if the attempt is about to end by itself. The handler keeps running, but its attempt no longer
        writes anything. ``stack`` shows where the handler hangs.
        """
        if not self.signal.detach():
            return []
        try:
            outcome = self._failed_try(error)
        except BaseException as problem:
            outcome = fallback_outcome(self.job, error, problem)
        if outcome.failed:
            outcome.failed.traceback = stack
        return [self.with_span(outcome)]

    def outcome(
        self,
        ending: OutcomeKind,
        finished: FinishedJob | None = None,
        *,
        error: str = "",
        effects: Effects | None = None,
    ) -> Outcome:
        return Outcome(
            self.job, ending, finished, error=error, effects=effects, processor=self.processor, policy=self.policy
        )

    def _failed_try(self, error: BaseException) -> Outcome:
        return failed_try(self.job, self.processor, self.policy, error, has_input=self.has_input)
