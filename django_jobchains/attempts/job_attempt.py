"""One attempt at one job: decode the input, call the handler, and complete, reschedule, fail or abandon the job.

``run`` never raises. It returns the outcomes that the handler's own transaction has not written, and the caller writes
them: completed jobs in batches, failed ones in their own transactions.
"""

import time
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Unpack
from uuid import UUID

from django_jobchains.attempts.async_calls import TransactionThreads
from django_jobchains.attempts.attempt import Attempt
from django_jobchains.attempts.observer_calls import ObserverCalls
from django_jobchains.attempts.outcome import (
    Outcome,
    OutcomeKind,
    failed_try,
    fallback_outcome,
    max_attempts_of,
    not_started,
    stopped_try,
)
from django_jobchains.attempts.transaction import AttemptTransaction
from django_jobchains.db.connections import own_statements
from django_jobchains.declare.job_types import Processor, new_continuation
from django_jobchains.declare.policies import AttemptPolicy
from django_jobchains.declare.registry import Registry
from django_jobchains.exceptions import HandlerStuck, JobAborted, LeaseLost, PhaseError
from django_jobchains.handlers.abort_signal import AbortSignal, refuse_on_event_loop
from django_jobchains.handlers.job_log import JobLogBuffer
from django_jobchains.handlers.running_job import Continuation, ContinuationOptions, RunningJob
from django_jobchains.models import Chain
from django_jobchains.store import Store
from django_jobchains.store.database import OpenTransaction
from django_jobchains.store.leases import lost_reason
from django_jobchains.store.rows import ClaimedJob, Effects, FinishedJob, HeldLease
from django_jobchains.telemetry.tracing import OWN_SPANS, AttemptSpans


@dataclass(frozen=True, slots=True)
class Environment:
    """What the attempts at the jobs of one type have in common."""

    processor: Processor
    policy: AttemptPolicy
    store: Store
    registry: Registry
    log_buffer: JobLogBuffer
    spans: AttemptSpans = OWN_SPANS
    #: None in a child process: the observers are called by its worker.
    observers: ObserverCalls | None = None


class JobAttempt(Attempt[Outcome]):
    """``threads``: for the transaction of an ``async def`` handler."""

    #: The continuation that the handler has described, and must return.
    continuation: Continuation | None = None
    #: Whether the input and the context have been decoded.
    has_input = False
    _blockers: list[Chain] | None = None

    def __init__(
        self,
        job: ClaimedJob,
        environment: Environment,
        signal: AbortSignal,
        threads: TransactionThreads | None = None,
    ) -> None:
        processor = environment.processor
        super().__init__(environment.store, processor.middleware, signal)
        self.job = job
        self.jobs = (job,)
        self.environment = environment
        self.is_atomic = processor.mode == "atomic"
        self.call = processor.function
        if threads is not None:
            self.use_threads(threads)

    @property
    def label(self) -> str:
        return f"{self.job.type_name} {self.job.id}"

    def start(self) -> None:
        if self.environment.observers is not None:
            self.environment.observers.started(self.environment.processor, self.job)
        self.expires_at = time.monotonic() + self.environment.policy.timeout_seconds
        self.span = self.environment.spans.attempt(self.job)

    def argument(self) -> RunningJob[Any]:
        """Return the running job. Raise ``InvalidInput``, after which the job is not retried."""
        job_type = self.environment.processor.job_type
        job: RunningJob[Any] = RunningJob(self.job, job_type.decode_input(self.job.input), self)
        self.has_input = True
        return job

    def ends_of(self, result: Any) -> list[Outcome]:
        environment, finished = self.environment, FinishedJob(self.job.id, self.job.lease_number)
        if isinstance(result, Continuation):
            if result is not self.continuation:
                raise PhaseError("The handler returned the continuation of another job.")
            finished.continuation = result.job
        elif self.continuation is not None:
            raise PhaseError("job.continue_with(…) must be returned: 'return job.continue_with(…)'.")
        else:
            finished.output = environment.processor.job_type.encode_output(result)
        outcome = self.finished(finished)
        if self.transaction is not None and self.transaction.is_open:
            outcome.effects = complete_jobs(self.transaction, [finished])
        return [outcome]

    def ends_of_error(self, error: BaseException) -> list[Outcome]:
        if isinstance(error, LeaseLost):
            return [self._abandoned(error.reason, error)]
        if isinstance(error, JobAborted) and self.signal.reason == "error":
            return [self._abandoned("error", error)]
        if isinstance(error, JobAborted) and self.signal.reason == "worker_stopping":
            return [self.outcome(OutcomeKind.HANDED_BACK, error=str(error))]
        return [self._failed_try(error)]

    def fallback(self, error: BaseException, problem: BaseException) -> list[Outcome]:
        return [fallback_outcome(self.job, error, problem)]

    def not_started(self, error: BaseException) -> list[Outcome]:
        return [not_started(self.job, self.environment.policy, error)]

    def ended(self, ends: list[Outcome], seconds: float) -> list[Outcome]:
        if self.signal.is_detached:
            return []
        [outcome] = ends
        outcome.seconds = seconds
        if self.span is not None and self.span.stop():
            outcome.span = self.span
        return ends

    def detach(self, error: BaseException, stack: str) -> list[Outcome]:
        """Give up an attempt that does not stop, from another thread. Return the outcome to write in its place.

        The list is empty if the attempt is about to end by itself. The handler keeps running, but its attempt no longer
        writes anything. ``stack`` shows where the handler hangs. If the lease could not be renewed, the job is retried
        after its lease has expired, as after a crash.
        """
        if not self.signal.detach():
            return []
        try:
            if isinstance(error, HandlerStuck) and self.signal.reason == "error":
                outcome = self._abandoned("error", error)
            else:
                outcome = self._failed_try(error)
        except BaseException as problem:
            outcome = fallback_outcome(self.job, error, problem)
        if outcome.failed:
            outcome.failed.traceback = stack
        if self.span is not None and self.span.stop():
            outcome.span = self.span
        return [outcome]

    def finished(self, row: FinishedJob) -> Outcome:
        return self.outcome(OutcomeKind.CONTINUED if row.continuation else OutcomeKind.COMPLETED, row)

    def outcome(self, ending: OutcomeKind, finished: FinishedJob | None = None, *, error: str = "") -> Outcome:
        environment = self.environment
        return Outcome(
            self.job, ending, finished, error=error, processor=environment.processor, policy=environment.policy
        )

    def _abandoned(self, reason: str, error: BaseException) -> Outcome:
        outcome = self.outcome(OutcomeKind.ABANDONED, error=str(error))
        outcome.abandoned_reason = reason
        return outcome

    def _failed_try(self, error: BaseException) -> Outcome:
        environment = self.environment
        if self.signal.reason == "cancelled":
            return stopped_try(self.job, environment.processor, environment.policy, error)
        return failed_try(self.job, environment.processor, environment.policy, error, has_input=self.has_input)

    # The transaction

    @property
    def leases(self) -> Sequence[HeldLease]:
        return [HeldLease(self.job.id, self.job.lease_number, self.environment.policy.lease.seconds)]

    def lock(self, transaction: OpenTransaction, *, skips: bool) -> None:
        found = self.store.attempts.lock(self.job.id, transaction, skips=skips)
        if not self.signal.lock_row():
            raise self.lost(self.signal.reason or "error")
        if reason := lost_reason(found, self.job.lease_number):
            raise self.lost(reason)

    def lost(self, reason: str) -> LeaseLost:
        return LeaseLost(self.job.id, reason)

    # What the running job uses

    @property
    def log_buffer(self) -> JobLogBuffer:
        return self.environment.log_buffer

    @property
    def max_attempts(self) -> float:
        return max_attempts_of(self.job, self.environment.policy)

    def continue_with(self, job_type: Any, input: Any, **options: Unpack[ContinuationOptions]) -> Continuation:
        if self.continuation is not None:
            raise PhaseError("continue_with() can be used once: a job has one continuation.")
        target = self.environment.registry.job_type(job_type)
        new = new_continuation(self.job, self.environment.processor.job_type, target, input, options)
        if self.span is not None:
            self.span.send(new, self.store.chains.contexts)
        self.continuation = Continuation(new)
        return self.continuation

    def blockers(self) -> list[Chain]:
        if self._blockers is None:
            if self.calls is not None:
                refuse_on_event_loop("job.blockers would read the database on", "'await job.ablockers()'")
            blockers = read_blockers([self.job.id], self.store, self.environment.registry)
            self._blockers = blockers.get(self.job.id, [])
        return self._blockers

    def ablockers(self) -> Coroutine[Any, Any, list[Chain]]:
        if self.calls is None:
            raise PhaseError("job.ablockers() is for 'async def' handlers: use job.blockers.")
        return self.calls.call(self.blockers)


def complete_jobs(transaction: AttemptTransaction, rows: Sequence[FinishedJob]) -> Effects:
    """Write completed attempts in their open transaction, and commit it."""
    store, effects = transaction.store, Effects()

    def write() -> None:
        written = store.attempts.finish(rows, effects, is_locked=True, transaction=transaction.opened, is_last=True)
        for row in rows:
            if row.key not in written:  # The transaction has locked the row, so no other one has changed it.
                raise PhaseError(
                    f"The handler changed the state or the lease number of its job {row.job_id}, or deleted it, inside "
                    "job.complete(): return or raise an error to end the job, and delete its chain outside of "
                    "job.complete()."
                )

    def committed() -> str:
        # The first job stands for the others, which were in the same transaction.
        is_completed = store.leases.check([row.key for row in rows[:1]]).completed
        return "Completed " + ", ".join(f"job {row.job_id}" for row in rows) if is_completed else ""

    transaction.finish(write, committed)
    return effects


@own_statements
def read_blockers(job_ids: Collection[UUID], store: Store, registry: Registry) -> dict[UUID, list[Chain]]:
    """Return the blockers of each job, in the order they were given."""
    blockers = Chain.blockers_of(job_ids, store.using)
    for found in chain.from_iterable(blockers.values()):
        found.job_type = registry.find(found.last_type_name)
    return blockers
