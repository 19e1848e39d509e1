"""Writes the outcomes of attempts, many in one transaction, and publishes their effects.

An attempt that opened a transaction in ``complete()`` has written its outcome itself. After a crash before the write,
the job runs again, as after a crash before a commit. Leases are renewed until the outcome is written.
"""

import queue
import threading
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from logging import getLogger
from typing import Any
from uuid import UUID

from django.db import Error

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.store import AttemptKey, Effects, EndedAttempt
from django_jobchains.store.errors import is_conflict, is_database_away, is_out_of_time
from django_jobchains.telemetry import measured, observes, report
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, ChainEnded
from django_jobchains.text.errors import describe, log_error
from django_jobchains.wakeups import publish, report_created
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.delayed_outcomes import DelayedOutcomes
from django_jobchains.worker.threads import LOCK_SECONDS, waiting

MAX_BATCH_SIZE = 200
#: How long the first outcome of a batch waits for others. It waits only while jobs wait for a slot.
GATHER_SECONDS = 0.004
#: The number of retries of a single outcome that exceeds a time limit before its attempt fails. The server may be busy.
MAX_TIMEOUTS = 3

#: The abort reason of an attempt whose lost lease was only noticed when its outcome was written.
TAKEN = "taken_by_another_worker"

logger = getLogger("django_jobchains")


class OutcomeWriter:
    """Takes outcomes from the slots' threads and writes them on another."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.store = context.store
        self.worker = context.worker
        self._queue: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        #: Set when a batch need not wait for more outcomes.
        self._is_enough = threading.Event()
        # The keys are identities, because the hash of a job's id is slow to compute.
        self._batch: dict[int, Outcome] = {}
        #: All outcomes that were put and are not written and reported yet.
        self._pending: dict[int, Outcome] = {}
        self._lock = threading.Lock()
        #: Outcomes that may be committed although the transaction raised an error.
        self._uncertain: set[int] = set()
        #: The written part of the current batch: a retry must not mistake its own writes for another worker's.
        self._written: set[AttemptKey] = set()
        self._delayed = DelayedOutcomes(context.worker)
        #: Effects to publish: from this thread's writes, and from attempts that committed their outcome themselves.
        self._effects, self._committed = Effects(), Effects()
        #: The chains in these effects whose end has been reported.
        self._reported_chains: set[UUID] = set()
        self._is_published = True
        self._was_behind = False

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def is_drained(self) -> bool:
        """Whether every outcome is written and its effects are published."""
        return self.is_idle and self._is_published

    @property
    def is_behind(self) -> bool:
        """Whether outcomes arrive faster than they are written: then no more jobs are claimed."""
        return len(self._pending) - len(self._delayed) > 2 * MAX_BATCH_SIZE

    def pending(self) -> list[Outcome]:
        """Return the outcomes that are not written and reported yet. Can be called from any thread."""
        with self._lock:
            return list(self._pending.values())

    def put(self, outcome: Outcome) -> None:
        """Add an outcome to write. An outcome that its attempt has committed is only reported and published.

        The claim loop can claim a continuation that the attempt committed at once.
        """
        if outcome.effects is not None and outcome.effects.due_types:
            self._context.wake.set()
        self._context.log_buffer.ended(outcome.job.key)
        with self._lock:
            self._pending[id(outcome)] = outcome
        self._queue.put(outcome)
        if outcome.effects is None and (not any(self._context.backlogs) or self._queue.qsize() >= MAX_BATCH_SIZE):
            self._is_enough.set()

    def interrupt(self) -> None:
        """End the wait for an outcome."""
        self._queue.put(None)

    def step(self) -> None:
        """Gather a batch and write it. After an error, the next step continues with the rest of the batch."""
        self.store.connection.ensure_connection()  # Opened early, because the slots might take the last connection.
        if not self._batch:
            self._gather()
        with self.store.db.waits_at_most(LOCK_SECONDS):
            if self._batch:
                self._write(list(self._batch.values()))
            self._delayed.retry(self._write_one)
            self._written.clear()
        if not self._is_published:
            self._wake_claim_loop()
        self._publish()

    def _gather(self) -> None:
        """Wait for an outcome, then for others that follow soon. Not every outcome wakes this thread."""
        self._is_enough.clear()
        with waiting(), suppress(queue.Empty):
            self._take(self._queue.get(timeout=self._delayed.seconds_to_next()))
        if self._batch and any(self._context.backlogs):
            self._is_enough.wait(GATHER_SECONDS)
        with suppress(queue.Empty):
            while len(self._batch) < MAX_BATCH_SIZE:
                self._take(self._queue.get_nowait())

    def _take(self, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        self._batch[id(outcome)] = outcome
        if outcome.effects is not None:
            self._written.add(outcome.job.key)
            self._committed.add(outcome.effects)

    def _wake_claim_loop(self) -> None:
        if (
            self._was_behind
            or self._effects.due_types
            or self._context.queues.has_limits
            or self._context.wake.is_eager
        ):
            self._was_behind = False
            self._context.wake.set()

    def _publish(self) -> None:
        effects, committed, reported = self._effects, self._committed, self._reported_chains
        self._effects, self._committed, self._reported_chains = Effects(), Effects(), set()
        effects.add(committed)
        try:
            publish(self.store.using, effects, reported)
        finally:
            self._is_published = True

    # Writing

    def _write(self, batch: Collection[Outcome]) -> None:
        try:
            self._write_all(batch)
        except Exception as error:
            self._raise_if_away(error, batch)
            for outcome in batch:  # An outcome that cannot be written must not affect the others.
                self._write_one(outcome)

    def _raise_if_away(self, error: Exception, outcomes: Collection[Outcome]) -> None:
        """Raise the error of an unavailable database, which may have committed the outcomes. They are retried later."""
        if is_database_away(error):
            self._uncertain |= {id(outcome) for outcome in outcomes}
            raise error

    def _write_one(self, outcome: Outcome) -> None:
        try:
            self._write_all([outcome])
        except Exception as error:
            self._raise_if_away(error, [outcome])
            if outcome.job.key in self._written:
                raise
            if is_conflict(error) or (is_out_of_time(error) and self._delayed.tries(outcome) < MAX_TIMEOUTS):
                self._delay(outcome, describe(error))
                return
            outcome.replace_by_failure(error)
            self._write_failure(outcome)

    def _write_failure(self, outcome: Outcome) -> None:
        """Write the failure of an attempt whose outcome cannot be written. A second error delays only this outcome."""
        try:
            self._write_all([outcome])
        except Error as error:
            self._raise_if_away(error, [outcome])
            log_error(logger, error, "The failure of job %s cannot be written yet: %s", outcome.job.id)
            self._delay(outcome, describe(error))

    def _write_all(self, batch: Collection[Outcome]) -> None:
        through = {outcome.job.key: outcome for outcome in batch}
        unwritten = [outcome for key, outcome in through.items() if key not in self._written]
        if unwritten:
            with measured("finish", self.worker):
                self._write_rows(unwritten)
            for outcome in self._locked([through[key] for key in through.keys() - self._written]):
                del through[outcome.job.key]
                self._delay(outcome)
        self._release(through)

    def _write_rows(self, outcomes: Collection[Outcome]) -> None:
        """Write each kind of outcome with as many statements as for a single outcome."""
        by_kind: dict[OutcomeKind, list[Any]] = defaultdict(list)
        for outcome in outcomes:
            by_kind[outcome.ending].append(_row(outcome))
        if finished := by_kind[OutcomeKind.COMPLETED]:
            self._written |= self.store.attempts.finish(finished, self._effects)
        cancelled: set[AttemptKey] = set()
        attempts = self.store.attempts
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

    def _locked(self, outcomes: Collection[Outcome]) -> list[Outcome]:
        """Return the outcomes that were not written because their jobs are locked, to retry them."""
        missing = [outcome for outcome in outcomes if _has_row(outcome)]
        if not missing:
            return []
        leases = self.store.leases.check([outcome.job.key for outcome in missing])
        self._written |= {outcome.job.key for outcome in missing if self._was_committed(outcome, leases.completed)}
        return [outcome for outcome in missing if outcome.job.key not in leases.lost]

    def _was_committed(self, outcome: Outcome, completed: Collection[AttemptKey]) -> bool:
        """Return whether a transaction that got no reply to its commit has written this outcome."""
        if id(outcome) not in self._uncertain:
            return False
        if outcome.failed and outcome.failed.is_failure:
            return self.store.attempts.has_failed(outcome.job.key, outcome.failed.kind)
        if outcome.finished:
            return outcome.job.key in completed
        return self.store.jobs.state_of(outcome.job.id) == ("pending", outcome.job.lease_number)

    def _delay(self, outcome: Outcome, error: str = "") -> None:
        self._delayed.add(outcome, error)
        self._batch.pop(id(outcome), None)

    def _release(self, outcomes: dict[AttemptKey, Outcome]) -> None:
        """Report outcomes and drop their leases, regardless of the rest of their batch."""
        held = self._context.leases.release(outcomes)
        for key, outcome in outcomes.items():
            if key in self._written:
                self._context.counter.ended(outcome)
                report(_ended(self.worker, outcome, outcome.ending))
                self._report_rest(outcome)
            else:
                if key in held:  # Otherwise the lost lease was reported when the worker noticed it.
                    error = outcome.abandoned_reason or outcome.error or TAKEN
                    report(AttemptAbandoned(self.worker, outcome.job.id, error))
                report(_ended(self.worker, outcome, OutcomeKind.ABANDONED))
            if outcome.span is not None:
                _end_span(outcome, is_written=key in self._written)
        self._forget(outcomes.values())

    def _report_rest(self, outcome: Outcome) -> None:
        """Report the continuation of a completed job, or the end of its chain if it has only this job.

        The ends of other chains are read from the database.
        """
        job = outcome.job
        if outcome.finished and (new := outcome.finished.continuation):
            report_created(self.store.using, [new], outcome.effects or self._effects)
        elif outcome.finished and not job.chain_index and observes(ChainEnded):
            seconds = (job.last_attempt_at - job.created_at).total_seconds() + outcome.seconds
            report(ChainEnded(self.worker, job.chain_id, job.type_name, "completed", max(seconds, 0.0)))
            self._reported_chains.add(job.chain_id)

    def _forget(self, outcomes: Collection[Outcome]) -> None:
        """Remove outcomes from the batch. This is the last step, because an earlier error retries the batch."""
        self._delayed.forget(outcomes)
        self._is_published = False
        with self._lock:
            self._was_behind |= self.is_behind  # The claim loop may wait for this.
            for identity in map(id, outcomes):
                self._batch.pop(identity, None)
                self._uncertain.discard(identity)
                self._pending.pop(identity, None)


def ended_attempts(outcomes: Collection[Outcome]) -> list[EndedAttempt]:
    """Return the ends of attempts whose outcomes are still to be written."""
    return [
        EndedAttempt(outcome.ending.value, _row(outcome), outcome.retry_seconds())  # type: ignore[arg-type]
        for outcome in outcomes
        if outcome.effects is None and _has_row(outcome)
    ]


def _has_row(outcome: Outcome) -> bool:
    """Return whether there is something to write."""
    return outcome.ending is not OutcomeKind.ABANDONED


def _row(outcome: Outcome) -> Any:
    return outcome.finished or outcome.failed or outcome.job.key


def _end_span(outcome: Outcome, *, is_written: bool) -> None:
    assert outcome.span is not None  # noqa: S101 - for the type checker
    continuation = outcome.finished.continuation if outcome.finished and is_written else None
    name, reason = str(outcome.ending), ""
    if not is_written:
        name, reason = OutcomeKind.ABANDONED.value, outcome.abandoned_reason or TAKEN
    elif continuation:
        name = "continued"
    outcome.span.end(name, outcome.exception, reason, [continuation.id] if continuation else [])


def _ended(worker: str, outcome: Outcome, ending: OutcomeKind) -> AttemptEnded:
    job, continuation = outcome.job, outcome.finished and outcome.finished.continuation
    return AttemptEnded(
        worker,
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
        outcome.abandoned_reason or TAKEN if ending is OutcomeKind.ABANDONED else "",
        job.wait_seconds,
    )
