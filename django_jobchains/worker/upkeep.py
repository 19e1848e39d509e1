"""Looks after this worker's running attempts: renews their leases, and gives up attempts that do not stop."""

import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.exceptions import HandlerStuck
from django_jobchains.notifications import EVERY, Hint
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptStuck
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.held_leases import HeldLeases, LeaseKey
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.maintenance import RecordFailures
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import AnyAttempt, SlotPool
from django_jobchains.worker.threads import waiting

#: The shortest time between two checks because of hints.
MIN_CHECK_SECONDS = 0.1
#: The longest time between two checks of what is due, because records may have been dequeued in between.
MAX_RECORD_WAIT_SECONDS = 0.5


class LeaseRenewal:
    """Renews leases, in one statement for each source. Checks them immediately after a hint that one was lost."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._seconds = min(context.options.shortest_lease_seconds / 6, 5)
        if context.record_leases:
            self._seconds = min(self._seconds, MAX_RECORD_WAIT_SECONDS)
        self._failures = RecordFailures("The heartbeats of records %r could not be written: %s", context.store)
        self._checked_at = 0.0
        self.pause = threading.Event()

    def on_hint(self, hint: Hint) -> None:
        """Check leases soon. Hints may be forged, so a flood of them causes only one check per interval."""
        if hint.kind != "ownership_lost":
            return
        for held in self._context.held:
            if not held.must_check.is_set() and self._is_about(hint.subject, held):
                held.must_check.set()
                self.pause.set()

    def _is_about(self, subject: str, held: HeldLeases) -> bool:
        if subject == EVERY:
            return bool(len(held))
        try:
            return held.holds(UUID(subject))
        except ValueError:
            return False

    def step(self) -> None:
        self._context.store.connection.ensure_connection()  # Opened early, because the slots might take the last one.
        self._each(self._context.held, HeldLeases.renew_due)
        seconds = self._check_after_hint()
        with waiting():
            self.pause.wait(min(seconds, *(held.seconds_to_next() for held in self._context.held)))
        self.pause.clear()

    def _check_after_hint(self) -> float:
        """Check the leases after a hint, unless they were checked just now. Returns the seconds until the next step."""
        hinted = [held for held in self._context.held if held.must_check.is_set()]
        if not hinted:
            return self._seconds
        if (left := self._checked_at + MIN_CHECK_SECONDS - time.monotonic()) > 0:
            return min(left, self._seconds)
        for held in hinted:
            held.must_check.clear()
        self._checked_at = time.monotonic()
        self._each(hinted, HeldLeases.check)
        return self._seconds

    def _each(self, leases: Sequence[HeldLeases], call: Callable[[HeldLeases], dict[LeaseKey, str]]) -> None:
        """Make a call for each source, and report the losses that it returns.

        An error with the records of one model is logged. One with the jobs is raised, after the calls for records.
        """
        jobs = [held for held in leases if held is self._context.leases]
        records = [held for held in self._context.record_leases.values() if held in leases]
        try:
            for held in jobs:
                held.report(call(held))
        finally:
            self._failures.each(records, lambda held: held.report(call(held)))


class StuckAttempts:
    """Aborts attempts that run too long or whose lease could not be renewed, and gives up attempts that do not stop.

    It does not use the database, so a broken network cannot delay it.
    """

    def __init__(self, context: WorkerContext, pools: Sequence[SlotPool], outcome_writer: EndWriter[Outcome]) -> None:
        self._stuck_seconds = context.settings.STUCK_SECONDS
        self._context = context
        self._pools = pools
        self._outcome_writer = outcome_writer
        self._worker = context.worker
        self.pause = threading.Event()

    @property
    def _seconds(self) -> float:
        """The interval of the checks, which a type that is added later may make shorter."""
        options = self._context.options
        timeouts = [policy.timeout_seconds for policy in options.policies.values()]
        timeouts += [kind.max_runtime_seconds for kind in options.records.values()]
        lease_seconds = options.shortest_lease_seconds
        return min(lease_seconds / 20, self._stuck_seconds / 2, 1, *(seconds / 10 for seconds in timeouts))

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
