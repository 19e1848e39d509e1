"""Renews the leases of a worker's running attempts."""

import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from django_jobchains.notifications import EVERY, Hint
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.failure_log import RecordFailures
from django_jobchains.worker.held_leases import HeldLeases, LeaseKey
from django_jobchains.worker.threads import waiting

#: The shortest time between two checks because of hints.
MIN_CHECK_SECONDS = 0.1
#: The longest time between two checks of what is due, because records may have been dequeued in between.
MAX_RECORD_WAIT_SECONDS = 0.5


class LeaseRenewal:
    """Renews leases, in one statement for each source. Checks them at once after a hint that one was lost."""

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
