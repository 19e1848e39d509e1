"""Watches this worker's own attempts. It does not use the database, so a broken network cannot delay it."""

import threading
import time
from collections.abc import Sequence

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.exceptions import HandlerStuck
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptStuck
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.slots import AnyAttempt, SlotPool
from django_jobchains.worker.threads import waiting


class StuckAttempts:
    """Aborts attempts that run too long or whose lease could not be renewed, and gives up attempts that do not stop."""

    def __init__(self, context: WorkerContext, pools: Sequence[SlotPool], outcome_writer: EndWriter[Outcome]) -> None:
        options, self._stuck_seconds = context.options, context.settings.STUCK_SECONDS
        timeouts = [policy.timeout_seconds for policy in options.policies.values()]
        timeouts += [kind.max_runtime_seconds for kind in options.records.values()]
        self._context = context
        self._pools = pools
        self._outcome_writer = outcome_writer
        self._worker = context.worker
        self._seconds = min(
            options.shortest_lease_seconds / 20, self._stuck_seconds / 2, 1, *(seconds / 10 for seconds in timeouts)
        )
        self.pause = threading.Event()

    def step(self) -> None:
        for held in self._context.held:
            held.report(held.abort_overdue())
        for pool in self._pools:
            for attempt in pool.attempts():
                self._check(pool, attempt)
            pool.check_lag()
        with waiting():
            self.pause.wait(self._seconds)

    def _check(self, pool: SlotPool, attempt: AnyAttempt) -> None:
        now = time.monotonic()
        if now >= attempt.expires_at:
            attempt.signal.abort("timed_out")
        if isinstance(attempt, IsolatedAttempt):  # Its process is killed.
            return
        since = _overdue_since(attempt)
        if since is None or attempt.is_detached or attempt.signal.reason == "worker_stopping":
            return
        if now - since >= self._stuck_seconds:
            self._write_off(pool, attempt)

    def _write_off(self, pool: SlotPool, attempt: JobAttempt | BatchAttempt | RecordAttempt) -> None:
        """Fail the job of a stuck attempt, and replace its slot. Its thread cannot be killed, and continues.

        While the attempt's own transaction locks its job's row, the attempt keeps the job.
        """
        reason, stack = attempt.signal.reason or "error", pool.stack_of(attempt)
        outcomes = attempt.detach(HandlerStuck(reason, self._stuck_seconds), stack)
        if pool.write_off(attempt):
            report(self._stuck(attempt, reason, pool.stuck, stack))
        for outcome in outcomes:
            self._outcome_writer.put(outcome)
        if pool.is_out_of_slots:
            self._context.give_up()

    def _stuck(self, attempt: AnyAttempt, reason: str, stuck: int, stack: str) -> AttemptStuck:
        if isinstance(attempt, RecordAttempt):
            return AttemptStuck(self._worker, str(attempt.key[0]), attempt.kind.name, reason, stuck, stack, "record")
        job = attempt.jobs[0]
        return AttemptStuck(self._worker, job.id, job.type_name, reason, stuck, stack)


def _overdue_since(attempt: JobAttempt | BatchAttempt | RecordAttempt) -> float | None:
    """Return since when an attempt keeps a thread of this process although it was asked to stop, or None."""
    since = attempt.signal.aborted_at
    if since is None or not isinstance(attempt, RecordAttempt):
        return since
    runs_since = attempt.runs_since
    return None if runs_since is None else max(since, runs_since)
