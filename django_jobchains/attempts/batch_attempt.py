"""One attempt at several jobs of a type. Each has its own lease, signal and outcome; they share a transaction."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any
from uuid import UUID

from django_jobchains.attempts.attempt import Attempt, Environment
from django_jobchains.attempts.outcome import Outcome, OutcomeKind, fallback_outcome, max_attempts_of, not_started
from django_jobchains.attempts.phases import AttemptPhases, read_blockers
from django_jobchains.context import clear_context
from django_jobchains.exceptions import (
    ConnectionLost,
    JobAborted,
    JobLocked,
    LeaseLost,
    PhaseError,
    TransactionLeftOpen,
)
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.batch import Batch, BatchJob, BatchSignal
from django_jobchains.handlers.running_job import Continuation
from django_jobchains.middleware.hooks import around
from django_jobchains.models import Chain
from django_jobchains.store import ClaimedJob, Effects, FinishedJob
from django_jobchains.store.leases import lost_reason
from django_jobchains.telemetry.tracing import active

#: How long the transaction of a batch waits for jobs that another transaction has locked, before the other jobs are
#: handed back.
LOCK_SECONDS = 2.0


class BatchPhases(AttemptPhases):
    """The transactions of a batch: either all rows are locked and all leases checked, or none."""

    lock_seconds = LOCK_SECONDS

    def __init__(self, attempts: Sequence[Attempt], signal: AbortSignal) -> None:
        first = attempts[0]
        phases = first.phases
        super().__init__(first.job, first.processor, first.policy.lease, phases.store, phases.registry, signal)
        self._attempts = attempts
        #: The jobs that must no longer be written, with the reasons.
        self.lost: dict[UUID, str] = {}

    def open(self) -> None:
        """Open the transaction. A locked job ends the attempt of all jobs, even if the handler swallows the error."""
        try:
            super().open()
        except JobLocked as error:
            self.error = error
            raise

    def lock(self, *, skips: bool = False) -> None:
        found = self.store.attempts.lock_all(
            [attempt.job.id for attempt in self._attempts], self.transaction, skips=skips
        )
        self.lost = {}
        for attempt in self._attempts:
            job = attempt.job
            if reason := lost_reason(found.get(job.id), job.lease_number):
                self.lost[job.id] = reason
            if not attempt.signal.lock_row():
                self.lost[job.id] = attempt.signal.reason or "error"
        for job_id, reason in self.lost.items():
            raise LeaseLost(job_id, reason)

    def unlock(self) -> None:
        for attempt in self._attempts:
            attempt.signal.is_row_locked = False

    def renew(self) -> None:
        self.store.leases.renew([attempt.phases.lease for attempt in self._attempts], self.transaction)

    def finish(self, finished: Sequence[FinishedJob]) -> Effects:
        try:
            return super().finish(finished)
        except LeaseLost as error:
            self.lost[error.job_id] = error.reason
            raise


class BatchAttempt:
    """Runs a handler with a ``Batch``. ``run`` never raises.

    An error of one job does not affect the others. If the handler raises an error, all jobs that it has not ended are
    retried.
    """

    def __init__(self, claimed: Sequence[tuple[ClaimedJob, AbortSignal]], environment: Environment) -> None:
        self._attempts = [Attempt(job, environment, signal) for job, signal in claimed]
        self._environment = environment
        self._processor = environment.processor
        self._policy = environment.policy
        self.signal = BatchSignal([signal for _, signal in claimed])
        self.jobs = tuple(job for job, _ in claimed)
        #: The monotonic time at which the worker asks the attempt to stop.
        self.expires_at = math.inf
        self._running: dict[UUID, BatchJob[Any]] = {}
        self._blockers: dict[UUID, list[Chain]] | None = None

    @property
    def is_detached(self) -> bool:
        return all(attempt.is_detached for attempt in self._attempts)

    def detach(self, error: BaseException, stack: str) -> list[Outcome]:
        return [outcome for attempt in self._attempts for outcome in attempt.detach(error, stack)]

    def run(self) -> list[Outcome]:
        """Run the handler on this thread, and return the outcomes of the jobs that were not detached."""
        started = time.perf_counter()
        self.expires_at = time.monotonic() + self._policy.timeout_seconds
        attempts = {attempt.job.id: attempt for attempt in self._attempts}
        for attempt in self._attempts:
            attempt.start_span()
        outcomes = self._decode_inputs()
        if self._attempts:
            outcomes += copy_context().run(self._run)
        seconds = time.perf_counter() - started
        for outcome in outcomes:
            outcome.seconds = seconds
            attempts[outcome.job.id].with_span(outcome)
        detached = {attempt.job.id for attempt in self._attempts if attempt.is_detached}
        return [outcome for outcome in outcomes if outcome.job.id not in detached]

    def _decode_inputs(self) -> list[Outcome]:
        """Exclude the jobs whose inputs cannot be decoded, and return their outcomes."""
        invalid = []
        for attempt in self._attempts:
            try:
                self._running[attempt.job.id] = self._batch_job(attempt)
            except BaseException as error:
                invalid.append(attempt.outcome_of_error(error))
        self._attempts = [attempt for attempt in self._attempts if attempt.job.id in self._running]
        return invalid

    def _batch_job(self, attempt: Attempt) -> BatchJob[Any]:
        job: BatchJob[Any] = BatchJob(
            attempt.job,
            attempt.decode_input(),
            attempt.signal,
            attempt.phases,
            self._environment.log_buffer,
            max_attempts=max_attempts_of(attempt.job, self._policy),
            encode_output=self._processor.job_type.encode_output,
            blockers_of=self._blockers_of,
        )
        attempt.has_input = True
        return job

    def _blockers_of(self, job_id: UUID) -> list[Chain]:
        """Return the blockers of a job. The blockers of all jobs are read together."""
        if self._blockers is None:
            self._blockers = read_blockers(self._running, self._environment.store, self._environment.registry)
        return self._blockers.get(job_id, [])

    def _run(self) -> list[Outcome]:
        clear_context()
        phases = BatchPhases(self._attempts, self.signal)
        span = phases.span = self._environment.spans.batch(self.jobs)
        with active(span):
            try:
                phases.begin()
            except BaseException as error:
                for attempt in self._attempts:
                    attempt.signal.end()
                outcomes = [not_started(attempt.job, self._policy, error) for attempt in self._attempts]
            else:
                outcomes = self._process(phases)
            phases.end()
        if span is not None:
            span.end()
        return outcomes

    def _process(self, phases: BatchPhases) -> list[Outcome]:
        try:
            self._call_handler(phases)
            return self._complete(phases)
        except BaseException as error:  # SystemExit and similar errors end the attempt, but not the worker.
            return self._outcomes_of_error(phases, error)

    def _call_handler(self, phases: BatchPhases) -> None:
        batch: Batch[Any] = Batch(list(self._running.values()), self._processor.job_type.name, self.signal, phases)
        if self._processor.middleware:
            phases.running = batch
        with around(self._processor.middleware, "around_handler", batch):  # type: ignore[arg-type]
            if not batch.drop_ended():
                return
            with phases.prepare("atomic") if self._processor.mode == "atomic" else nullcontext():
                result = self._processor.function(batch)
                if any(not isinstance(job.ending, Exception) for job in batch):
                    phases.complete_for_middleware()
        if result is not None:
            raise PhaseError("A batch handler returns nothing: call job.finish(output) for each job.")

    def _complete(self, phases: BatchPhases) -> list[Outcome]:
        are_own = [attempt.signal.end() for attempt in self._attempts]
        if not all(are_own):
            raise LeaseLost(self.jobs[0].id, self.signal.reason or "error")
        phases.check_after_handler()
        outcomes = [self._outcome(attempt) for attempt in self._attempts]
        if phases.is_open:
            effects = phases.finish([outcome.finished for outcome in outcomes if outcome.finished])
            for outcome in outcomes:
                if outcome.finished:
                    outcome.effects, effects = effects, Effects()  # published once
        return outcomes

    def _outcome(self, attempt: Attempt) -> Outcome:
        """Return the outcome that the handler set for a job, or its completion without an output."""
        ending = self._running[attempt.job.id].ending
        if isinstance(ending, Exception):
            return attempt.outcome_of_error(ending)
        try:
            return attempt.outcome(OutcomeKind.COMPLETED, self._finished(attempt.job, ending))
        except Exception as error:  # the type requires an output
            return attempt.outcome_of_error(error)

    def _finished(self, job: ClaimedJob, ending: str | Continuation | None) -> FinishedJob:
        finished = FinishedJob(job.id, job.lease_number)
        if isinstance(ending, Continuation):
            finished.continuation = ending.job
        else:
            finished.output = self._processor.job_type.encode_output(None) if ending is None else ending
        return finished

    def _outcomes_of_error(self, phases: BatchPhases, error: BaseException) -> list[Outcome]:
        """Return the outcomes of the jobs after the handler raised this error. Never raises."""
        try:
            is_undone = phases.is_open or phases.error is not None
            is_undone |= isinstance(error, TransactionLeftOpen | ConnectionLost)
            for attempt in self._attempts:
                attempt.signal.end()
            phases.give_up(error)
            return [self._outcome_after(error, attempt, phases, is_undone=is_undone) for attempt in self._attempts]
        except BaseException as problem:
            return [fallback_outcome(attempt.job, error, problem) for attempt in self._attempts]

    def _outcome_after(
        self, error: BaseException, attempt: Attempt, phases: BatchPhases, *, is_undone: bool
    ) -> Outcome:
        """Return the outcome of one job. An ending that the handler has set is kept, unless it was rolled back."""
        ending = self._running[attempt.job.id].ending
        if isinstance(ending, Exception) or (ending is not None and not is_undone):
            return self._outcome(attempt)
        is_of_others = isinstance(error, LeaseLost | JobLocked) and attempt.job.id not in phases.lost
        if is_of_others or (isinstance(error, JobAborted) and not attempt.signal.aborted):
            return attempt.outcome(OutcomeKind.HANDED_BACK, error=str(error))
        return attempt.outcome_of_error(error)
