"""One try at several jobs of a type. Each has its own lease, signal and outcome; their transaction is one."""

import math
import time
from collections.abc import Sequence
from contextvars import copy_context
from logging import getLogger
from typing import Any
from uuid import UUID

from django_jobchains.attempts import Attempt, Ending, Outcome, begin, end, fallback_outcome, not_started
from django_jobchains.batches import Batch, BatchJob, BatchSignal
from django_jobchains.context import unbind
from django_jobchains.exceptions import ConnectionLost, JobAborted, LeaseLost, PhaseError, TransactionLeftOpen
from django_jobchains.middleware.hooks import around
from django_jobchains.models import Chain
from django_jobchains.notes import Notebook
from django_jobchains.own_statements import own
from django_jobchains.phases import AttemptPhases
from django_jobchains.policies import AttemptPolicy
from django_jobchains.processors import Processor, Registry
from django_jobchains.running import AbortSignal, Continuation
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, Store
from django_jobchains.store.leases import lost_reason
from django_jobchains.texts import log_error

logger = getLogger("django_jobchains")


class BatchPhases(AttemptPhases):
    """The transactions of a batch: all rows are locked, and all leases checked, or none."""

    def __init__(self, parts: Sequence[Attempt], signal: AbortSignal) -> None:
        first = parts[0]
        super().__init__(first.job, first.processor, first.policy.lease, first.store, first.phases.registry, signal)
        self._parts = parts
        #: Of those that may no longer be written, the reasons.
        self.lost: dict[UUID, str] = {}

    def lock(self) -> None:
        found = self.store.lock_all([part.job.id for part in self._parts], self.transaction)
        reasons = {part.job.id: lost_reason(found.get(part.job.id), part.job.lease_number) for part in self._parts}
        self.lost = {job_id: reason for job_id, reason in reasons.items() if reason}
        self.lost |= {part.job.id: part.signal.reason or "error" for part in self._parts if not part.signal.lock_row()}
        for job_id, reason in self.lost.items():
            raise LeaseLost(job_id, reason)

    def unlocked(self) -> None:
        for part in self._parts:
            part.signal.is_row_locked = False

    def renew(self) -> None:
        self.store.renew([part.phases.lease for part in self._parts], self.transaction)


class BatchAttempt:
    """``outcomes`` never raises. What one of the jobs meets does not harm the others, but for an error of the handler,
    after which those are tried again of which nothing else was said."""

    def __init__(
        self,
        claimed: Sequence[tuple[ClaimedJob, AbortSignal]],
        processor: Processor,
        *,
        policy: AttemptPolicy,
        store: Store,
        registry: Registry,
        notebook: Notebook,
    ) -> None:
        self._parts = [
            Attempt(job, processor, policy=policy, store=store, registry=registry, notebook=notebook, signal=signal)
            for job, signal in claimed
        ]
        self._processor = processor
        self._policy = policy
        self._store = store
        self.signal = BatchSignal([signal for _, signal in claimed])
        self.jobs = tuple(job for job, _ in claimed)
        #: Monotonic time at which it is asked to stop.
        self.expires_at = math.inf
        self._running: dict[UUID, BatchJob[Any]] = {}
        self._unreadable: list[Outcome] = []
        self._phases: BatchPhases | None = None
        self._blockers: dict[UUID, list[Chain]] | None = None

    @property
    def is_disowned(self) -> bool:
        return all(part.is_disowned for part in self._parts)

    def disown(self, error: BaseException, stack: str) -> list[Outcome]:
        """See ``Attempt.disown``."""
        return [outcome for part in self._parts for outcome in part.disown(error, stack)]

    def outcomes(self) -> list[Outcome]:
        """Runs the handler on this thread; whatever it does, returns how each job ended."""
        started = time.perf_counter()
        if self._policy.timeout_seconds is not None:
            self.expires_at = time.monotonic() + self._policy.timeout_seconds
        outcomes = self._unreadable + copy_context().run(self._run) if self._read() else self._unreadable
        seconds = time.perf_counter() - started
        for outcome in outcomes:
            outcome.seconds = seconds
        written_off = {part.job.id for part in self._parts if part.is_disowned}
        return [outcome for outcome in outcomes if outcome.job.id not in written_off]

    def _read(self) -> bool:
        """Decodes the inputs; whether any job is left. What cannot be read fails alone."""
        for part in self._parts:
            try:
                self._running[part.job.id] = self._job(part)
            except BaseException as error:
                self._unreadable.append(part.not_completed(error))
        self._parts = [part for part in self._parts if part.job.id in self._running]
        return bool(self._parts)

    def _job(self, part: Attempt) -> BatchJob[Any]:
        job: BatchJob[Any] = BatchJob(
            part.job,
            part.read_input(),
            part.signal,
            part.phases,
            part.notebook,
            encode_output=self._processor.job_type.encode_output,
            blockers_of=self._blockers_of,
        )
        part.has_input = True
        return job

    def _run(self) -> list[Outcome]:
        unbind()
        phases = self._phases = BatchPhases(self._parts, self.signal)
        outcomes = self._begun(phases) or self._handled(phases)
        end(phases)
        return outcomes

    def _begun(self, phases: BatchPhases) -> list[Outcome]:
        """Nothing, or the outcomes of jobs whose handler cannot be called on this thread."""
        try:
            begin(phases)
        except BaseException as error:
            for part in self._parts:
                part.signal.end()
            return [not_started(part.job, self._policy, error) for part in self._parts]
        return []

    def _handled(self, phases: BatchPhases) -> list[Outcome]:
        try:
            self._handle(phases)
            return self._complete(phases)
        except BaseException as error:  # SystemExit and the like end an attempt, never the worker
            return self._safely_not_completed(phases, error)

    def _safely_not_completed(self, phases: BatchPhases, error: BaseException) -> list[Outcome]:
        try:
            return self._not_completed(phases, error)
        except BaseException as problem:
            return [fallback_outcome(part.job, error, problem) for part in self._parts]

    def _handle(self, phases: BatchPhases) -> None:
        type_name = self._processor.job_type.name
        batch: Batch[Any] = Batch(list(self._running.values()), type_name, self.signal, phases)
        phases.serve(batch)
        with around(self._processor.middleware, "around_handler", batch):  # type: ignore[arg-type]
            if not batch.leave_out_ended():
                return
            if self._processor.mode == "atomic":
                with phases.prepare("atomic"):
                    result = self._processor.function(batch)
            else:
                result = self._processor.function(batch)
        if result is not None:
            raise PhaseError("A handler of batches returns nothing: say job.finish(output) of each job.")

    def _complete(self, phases: BatchPhases) -> list[Outcome]:
        still_own = [part.signal.end() for part in self._parts]
        if not all(still_own):
            raise LeaseLost(self.jobs[0].id, self.signal.reason or "error")
        phases.check_after_handler()
        outcomes = [self._outcome(part) for part in self._parts]
        if phases.is_open:
            self._finish_in_transaction(phases, outcomes)
        return outcomes

    def _outcome(self, part: Attempt) -> Outcome:
        ending = self._running[part.job.id].ending
        if isinstance(ending, Exception):
            return part.not_completed(ending)
        try:
            return Outcome(part.job, Ending.COMPLETED, self._finished(part, ending), failed_try=part.failed_try)
        except Exception as error:  # nothing was said of it, and nothing is no output of its type
            return part.not_completed(error)

    def _finished(self, part: Attempt, ending: str | Continuation | None) -> FinishedJob:
        finished = FinishedJob(part.job.id, part.job.lease_number)
        if isinstance(ending, Continuation):
            finished.continuation = ending.job
        else:
            finished.output = self._processor.job_type.encode_output(None) if ending is None else ending
        return finished

    def _finish_in_transaction(self, phases: BatchPhases, outcomes: Sequence[Outcome]) -> None:
        effects, completed = Effects(), [outcome for outcome in outcomes if outcome.finished]
        finished = [outcome.finished for outcome in completed if outcome.finished]
        written = self._store.finish(finished, effects, is_locked=True, transaction=phases.transaction)
        for outcome in completed:
            if outcome.job.key not in written:
                phases.lost[outcome.job.id] = "taken_by_another_worker"
                raise LeaseLost(outcome.job.id, "taken_by_another_worker")
        self._commit(phases, completed)
        for outcome in completed:
            outcome.is_committed = True
        if completed:
            completed[0].effects = effects

    def _commit(self, phases: BatchPhases, completed: Sequence[Outcome]) -> None:
        """As for a single job; that one is committed says it of all."""
        try:
            phases.commit()
        except Exception as error:
            job = completed[0].job if completed else None
            if job is None or self._store.look(job.id) != ("completed", job.lease_number):
                raise
            text = "%d jobs are completed; an error after their commit changes nothing: %s"
            log_error(logger, error, text, len(completed))

    def _not_completed(self, phases: BatchPhases, error: BaseException) -> list[Outcome]:
        is_undone = (
            phases.is_open or phases.error is not None or isinstance(error, TransactionLeftOpen | ConnectionLost)
        )
        for part in self._parts:
            part.signal.end()
        phases.give_up(error)
        return [self._ended_by(part, error, phases, is_undone=is_undone) for part in self._parts]

    def _ended_by(self, part: Attempt, error: BaseException, phases: BatchPhases, *, is_undone: bool) -> Outcome:
        """What was said of a job holds, unless it was undone with the transaction."""
        ending = self._running[part.job.id].ending
        if isinstance(ending, Exception) or (ending is not None and not is_undone):
            return self._outcome(part)
        if isinstance(error, LeaseLost) and part.job.id not in phases.lost:
            return Outcome(part.job, Ending.HANDED_BACK, error=str(error), failed_try=part.failed_try)
        if isinstance(error, JobAborted) and not part.signal.aborted:
            return Outcome(part.job, Ending.HANDED_BACK, error=str(error), failed_try=part.failed_try)
        return part.not_completed(error)

    @own
    def _blockers_of(self, job_id: UUID) -> list[Chain]:
        """Those of all jobs are read together."""
        if self._blockers is None:
            self._blockers = Chain.blockers_of(self._running, self._store.using)
        return self._blockers.get(job_id, [])
