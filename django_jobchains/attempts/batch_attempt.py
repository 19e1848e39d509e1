"""One attempt at several jobs of a type. Each has its own lease, signal and outcome; they share a transaction."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django_jobchains.attempts.attempt import Attempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt, complete_jobs, read_blockers
from django_jobchains.attempts.outcome import Outcome, OutcomeKind
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
from django_jobchains.models import Chain
from django_jobchains.store.database import OpenTransaction
from django_jobchains.store.leases import lost_reason
from django_jobchains.store.rows import ClaimedJob, Effects, FinishedJob, HeldLease


class BatchAttempt(Attempt[Outcome]):
    """Runs a handler with a ``Batch``. Either all rows are locked and all leases checked, or none.

    An error of one job does not affect the others. If the handler raises an error, all jobs that it has not ended are
    retried.
    """

    #: How long the transaction waits for jobs that another transaction has locked, before the other jobs are returned
    #: to the queue.
    lock_seconds = 2.0

    def __init__(self, claimed: Sequence[tuple[ClaimedJob, AbortSignal]], environment: Environment) -> None:
        processor, signal = environment.processor, BatchSignal([signal for _, signal in claimed])
        super().__init__(environment.store, processor.middleware, signal)
        self.jobs = tuple(job for job, _ in claimed)
        self.is_atomic = processor.mode == "atomic"
        self._environment = environment
        self._all = [JobAttempt(job, environment, signal) for job, signal in claimed]
        #: The attempts whose inputs could be decoded, with the jobs that the handler receives.
        self._attempts: list[JobAttempt] = []
        self._running: dict[UUID, BatchJob[Any]] = {}
        #: The outcomes of the others.
        self._invalid: list[Outcome] = []
        self._blockers: dict[UUID, list[Chain]] | None = None
        #: The jobs that must no longer be written, with the reasons.
        self._lost: dict[UUID, str] = {}

    @property
    def label(self) -> str:
        return f"{self._environment.processor.job_type.name} {', '.join(str(job.id) for job in self.jobs)}"

    @property
    def is_detached(self) -> bool:
        return all(attempt.is_detached for attempt in self._all)

    def detach(self, error: BaseException, stack: str) -> list[Outcome]:
        return [outcome for attempt in self._all for outcome in attempt.detach(error, stack)]

    def start(self) -> None:
        self.expires_at = time.monotonic() + self._environment.policy.timeout_seconds
        for attempt in self._all:
            attempt.start()
        self.span = self._environment.spans.batch(self.jobs)

    def _process(self) -> list[Outcome]:
        """Exclude the jobs whose inputs cannot be decoded."""
        for attempt in self._all:
            try:
                self._running[attempt.job.id] = self._batch_job(attempt)
                self._attempts.append(attempt)
            except BaseException as error:
                self._invalid += attempt.ends_after(error)
        return self._invalid + (super()._process() if self._attempts else [])

    def _batch_job(self, attempt: JobAttempt) -> BatchJob[Any]:
        job_type = self._environment.processor.job_type
        given = job_type.decode_input(attempt.job.input)
        job: BatchJob[Any] = BatchJob(attempt.job, given, attempt, job_type.encode_output, self._blockers_of)
        attempt.has_input = True
        return job

    def _blockers_of(self, job_id: UUID) -> list[Chain]:
        """Return the blockers of a job. The blockers of all jobs are read together."""
        if self._blockers is None:
            self._blockers = read_blockers(self._running, self.store, self._environment.registry)
        return self._blockers.get(job_id, [])

    def argument(self) -> Batch[Any]:
        name = self._environment.processor.job_type.name
        return Batch(list(self._running.values()), name, self.signal, self)

    def call(self, argument: Batch[Any]) -> None:
        if self._environment.processor.function(argument) is not None:
            raise PhaseError("A batch handler returns nothing: call job.finish(output) for each job.")

    def is_wanted(self, argument: Batch[Any]) -> bool:
        return argument.drop_ended()

    def may_complete(self, argument: Batch[Any]) -> bool:
        return any(not isinstance(job.ending, Exception) for job in argument)

    def ends_of(self, result: None) -> list[Outcome]:
        outcomes = [outcome for attempt in self._attempts for outcome in self._ends_of_job(attempt)]
        if self.transaction is not None and self.transaction.is_open:
            effects = complete_jobs(self.transaction, [each.finished for each in outcomes if each.finished])
            for outcome in outcomes:
                if outcome.finished:
                    outcome.effects, effects = effects, Effects()  # published once
        return outcomes

    def _ends_of_job(self, attempt: JobAttempt) -> list[Outcome]:
        """Return the outcome that the handler set for a job, or its completion without an output."""
        ending = self._running[attempt.job.id].ending
        if isinstance(ending, Exception):
            return attempt.ends_after(ending)
        finished = FinishedJob(attempt.job.id, attempt.job.lease_number)
        try:
            if isinstance(ending, Continuation):
                finished.continuation = ending.job
            elif ending is None:
                finished.output = self._environment.processor.job_type.encode_output(None)
            else:
                finished.output = ending
        except Exception as error:  # the type requires an output
            return attempt.ends_after(error)
        return [attempt.finished(finished)]

    def ends_of_error(self, error: BaseException) -> list[Outcome]:
        return [outcome for attempt in self._attempts for outcome in self._ends_of_job_after(error, attempt)]

    def _ends_of_job_after(self, error: BaseException, attempt: JobAttempt) -> list[Outcome]:
        """Return the outcome of one job. An ending that the handler has set is kept, unless it was rolled back."""
        ending = self._running[attempt.job.id].ending
        is_undone = (
            self.error is not None
            or isinstance(error, TransactionLeftOpen | ConnectionLost)
            or (self.transaction is not None and self.transaction.is_undone)
        )
        if isinstance(ending, Exception) or (ending is not None and not is_undone):
            return self._ends_of_job(attempt)
        is_of_others = isinstance(error, LeaseLost | JobLocked) and attempt.job.id not in self._lost
        if is_of_others or (isinstance(error, JobAborted) and not attempt.signal.aborted):
            return [attempt.outcome(OutcomeKind.HANDED_BACK, error=str(error))]
        return attempt.ends_after(error)

    def fallback(self, error: BaseException, problem: BaseException) -> list[Outcome]:
        return [outcome for attempt in self._attempts for outcome in attempt.fallback(error, problem)]

    def not_started(self, error: BaseException) -> list[Outcome]:
        return [outcome for attempt in self._attempts for outcome in attempt.not_started(error)]

    def ended(self, ends: list[Outcome], seconds: float) -> list[Outcome]:
        if self.span is not None:
            self.span.end()
        attempts = {attempt.job.id: attempt for attempt in self._all}
        return [ended for outcome in ends for ended in attempts[outcome.job.id].ended([outcome], seconds)]

    # The transaction

    @property
    def leases(self) -> Sequence[HeldLease]:
        return [lease for attempt in self._attempts for lease in attempt.leases]

    def lock(self, transaction: OpenTransaction, *, skips: bool) -> None:
        found = self.store.attempts.lock_all([attempt.job.id for attempt in self._attempts], transaction, skips=skips)
        self._lost = {}
        for attempt in self._attempts:
            job = attempt.job
            if reason := lost_reason(found.get(job.id), job.lease_number):
                self._lost[job.id] = reason
            if not attempt.signal.lock_row():
                self._lost[job.id] = attempt.signal.reason or "error"
        for job_id, reason in self._lost.items():
            raise LeaseLost(job_id, reason)

    def lost(self, reason: str) -> LeaseLost:
        return LeaseLost(self.jobs[0].id, reason)
