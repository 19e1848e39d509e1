"""Renews the leases of a worker's running jobs."""

import threading
import time
from uuid import UUID

from django_jobchains.notifications import EVERY, Hint
from django_jobchains.store import AttemptKey
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptAbandoned
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.threads import waiting

#: The shortest time between two checks because of hints.
MIN_CHECK_SECONDS = 0.1


class LeaseKeeper:
    """Renews the worker's leases, all in one statement. Checks them at once after a hint that one was lost."""

    def __init__(self, context: WorkerContext) -> None:
        self._leases = context.leases
        self._worker = context.worker
        self._seconds = min(context.options.shortest_lease_seconds / 6, 5)
        self._must_check = threading.Event()
        self._checked_at = 0.0
        self.pause = threading.Event()

    def on_hint(self, hint: Hint) -> None:
        """Check the leases soon. Hints may be forged, so a flood of them causes only one check per interval."""
        if hint.kind == "ownership_lost" and not self._must_check.is_set() and self._is_mine(hint.subject):
            self._must_check.set()
            self.pause.set()

    def _is_mine(self, subject: str) -> bool:
        if subject == EVERY:
            return bool(len(self._leases))
        try:
            return self._leases.holds(UUID(subject))
        except ValueError:
            return False

    def step(self) -> None:
        self._leases.connect()
        self._report(self._leases.renew_due())
        seconds = self._check_after_hint()
        with waiting():
            self.pause.wait(seconds)
        self.pause.clear()

    def _check_after_hint(self) -> float:
        """Check the leases after a hint, unless they were checked just now. Returns the seconds until the next step."""
        if not self._must_check.is_set():
            return self._seconds
        if (left := self._checked_at + MIN_CHECK_SECONDS - time.monotonic()) > 0:
            return min(left, self._seconds)
        self._must_check.clear()
        self._checked_at = time.monotonic()
        self._report(self._leases.check())
        return self._seconds

    def _report(self, lost: dict[AttemptKey, str]) -> None:
        for (job_id, _), reason in lost.items():
            report(AttemptAbandoned(self._worker, job_id, reason))
