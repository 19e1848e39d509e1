"""Writes the outcomes of attempts at jobs, and publishes their effects.

An attempt that opened a transaction in ``complete()`` has written its outcome itself.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from logging import getLogger
from typing import Any
from uuid import UUID

from django.db import Error

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.notifications.wakeups import publish, report_created
from django_jobchains.store.rows import AttemptKey, Effects, EndedAttempt
from django_jobchains.telemetry import measured, observes, report
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, ChainEnded, OutcomeDelayed
from django_jobchains.text.errors import log_error
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.end_writer import TAKEN, Sink

logger = getLogger("django_jobchains")


class JobSink(Sink[Outcome]):
    """Writes outcomes to the table of jobs."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._store = context.store
        self._worker = context.worker
        #: The written part of the current batch: a retry must not mistake its own writes for another worker's.
        self._written: set[AttemptKey] = set()
        #: The identities of outcomes that were replaced by the failure of their write.
        self._replaced: set[int] = set()
        #: Effects to publish: from this thread's writes, and from attempts that committed their outcome themselves.
        self._effects, self._committed = Effects(), Effects()
        #: The chains in these effects whose end has been reported.
        self._reported_chains: set[UUID] = set()

    def accept(self, outcome: Outcome) -> bool:
        """The claim loop can claim a continuation that the attempt committed at once."""
        if outcome.effects is not None and outcome.effects.due_types:
            self._context.wake.set()
        self._context.log_buffer.ended(outcome.job.key)
        return outcome.effects is None

    def take(self, batch: Iterable[Outcome]) -> None:
        for outcome in batch:
            if outcome.effects is not None:
                self._written.add(outcome.job.key)
                self._committed.add(outcome.effects)

    def groups(self, batch: Collection[Outcome]) -> Iterator[Sequence[Outcome]]:
        """Yield one outcome of each attempt. Another one follows in the next step."""
        if batch:
            yield list({outcome.job.key: outcome for outcome in batch}.values())

    def has_written(self, outcome: Outcome) -> bool:
        return outcome.job.key in self._written

    def write(self, outcomes: Sequence[Outcome], uncertain: Collection[int]) -> list[Outcome]:
        unwritten = [outcome for outcome in outcomes if outcome.job.key not in self._written]
        if not unwritten:
            return []
        with measured("finish", self._worker):
            self._write_rows(unwritten)
        missing = [outcome for outcome in unwritten if outcome.job.key not in self._written and _has_row(outcome)]
        if not missing:
            return []
        leases = self._store.leases.check([outcome.job.key for outcome in missing])
        for outcome in missing:
            if id(outcome) in uncertain and self._was_committed(outcome, leases.completed):
                self._written.add(outcome.job.key)
        return [outcome for outcome in missing if outcome.job.key not in leases.lost]

    def _write_rows(self, outcomes: Iterable[Outcome]) -> None:
        """Write each kind of outcome with as many statements as for a single outcome."""
        by_kind: dict[OutcomeKind, list[Any]] = defaultdict(list)
        for outcome in outcomes:
            by_kind[outcome.ending].append(outcome.finished or outcome.failed or outcome.job.key)
        if finished := by_kind[OutcomeKind.COMPLETED]:
            self._written |= self._store.attempts.finish(finished, self._effects)
        cancelled: set[AttemptKey] = set()
        attempts = self._store.attempts
        ends = {
            OutcomeKind.RETRIED: attempts.reschedule,
            OutcomeKind.RESCHEDULED: attempts.reschedule,
            OutcomeKind.FAILED: attempts.fail,
        }
        for kind, end in ends.items():
            if failed := by_kind[kind]:
                statuses = end(failed, self._effects)
                self._written |= statuses.keys()
                cancelled |= {key for key, status in statuses.items() if status == "cancelled"}
        if keys := by_kind[OutcomeKind.HANDED_BACK]:
            self._written |= attempts.hand_back(keys, self._effects)
        if cancelled:
            for outcome in outcomes:
                if outcome.job.key in cancelled:
                    outcome.ending = OutcomeKind.CANCELLED

    def _was_committed(self, outcome: Outcome, completed: Collection[AttemptKey]) -> bool:
        """Return whether a transaction that got no reply to its commit has written this outcome."""
        if outcome.failed and outcome.failed.is_failure:
            return self._store.attempts.has_failed(outcome.job.key, outcome.failed.kind)
        if outcome.finished:
            return outcome.job.key in completed
        return self._store.jobs.state_of(outcome.job.id) == ("pending", outcome.job.lease_number)

    def replace(self, outcome: Outcome, error: Exception) -> bool:
        """Replace an outcome by a failure. If that cannot be written either, only this outcome is delayed."""
        if id(outcome) not in self._replaced:
            self._replaced.add(id(outcome))
            outcome.replace_by_failure(error)
            return True
        if not isinstance(error, Error):
            raise error
        log_error(logger, error, "The failure of job %s cannot be written yet: %s", outcome.job.id)
        return False

    def release(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes and drop their leases, regardless of the rest of their batch.

        Also reports the continuation of a completed job, or the end of its chain if it has only this job. The ends of
        other chains are read from the database.
        """
        unreported = self._context.leases.release([outcome.job.key for outcome in outcomes])
        for outcome in outcomes:
            job, finished = outcome.job, outcome.finished
            continuation = finished.continuation if finished else None
            ending, abandoned_reason = outcome.ending, ""
            is_written = job.key in self._written
            if is_written:
                self._context.counter.ended(outcome)
            else:
                ending, abandoned_reason = OutcomeKind.ABANDONED, outcome.abandoned_reason or TAKEN
                if job.key in unreported:  # Otherwise the lost lease was reported when the worker noticed it.
                    reason = outcome.abandoned_reason or outcome.error or TAKEN
                    report(AttemptAbandoned(self._worker, job.id, reason))
            report(
                AttemptEnded(
                    self._worker,
                    job.id,
                    job.chain_id,
                    job.type_name,
                    job.attempt,
                    ending,
                    outcome.seconds,
                    outcome.error,
                    continuation.type_name if continuation else None,
                    outcome.exception,
                    job.queue,
                    abandoned_reason,
                    job.wait_seconds,
                )
            )
            if is_written and continuation:
                report_created(self._store.using, [continuation], outcome.effects or self._effects)
            elif is_written and finished and not job.chain_index and observes(ChainEnded):
                seconds = (job.last_attempt_at - job.created_at).total_seconds() + outcome.seconds
                report(ChainEnded(self._worker, job.chain_id, job.type_name, "completed", max(seconds, 0.0)))
                self._reported_chains.add(job.chain_id)
            if outcome.span is not None:
                created = [continuation.id] if is_written and continuation else []
                name = "continued" if created else str(ending)
                outcome.span.end(name, outcome.exception, abandoned_reason, created)
            self._replaced.discard(id(outcome))
        self.is_published = False

    def report_delay(self, outcome: Outcome, seconds: float, error: str) -> None:
        report(OutcomeDelayed(self._worker, outcome.job.id, outcome.job.type_name, seconds, error))

    def publish(self) -> None:
        self._written.clear()
        if not self.is_published:
            wake = self._context.wake
            if self._effects.due_types or self._context.queues.has_limits or wake.is_eager:
                wake.set()
        effects, committed, reported = self._effects, self._committed, self._reported_chains
        self._effects, self._committed, self._reported_chains = Effects(), Effects(), set()
        effects.add(committed)
        try:
            publish(self._store.using, effects, reported)
        finally:
            self.is_published = True


def ended_attempts(outcomes: Collection[Outcome]) -> list[EndedAttempt]:
    """Return the ends of attempts whose outcomes are still to be written."""
    return [
        EndedAttempt(
            outcome.ending.value,  # type: ignore[arg-type]
            outcome.finished or outcome.failed or outcome.job.key,
            outcome.retry_seconds(),
        )
        for outcome in outcomes
        if outcome.effects is None and _has_row(outcome)
    ]


def _has_row(outcome: Outcome) -> bool:
    """Return whether there is something to write."""
    return outcome.ending is not OutcomeKind.ABANDONED
