"""The leases that a worker holds: their renewal, and the abort of attempts that have lost their lease.

The database decides who holds a lease. The times here, by this host's monotonic clock, only decide when to renew, and
when a worker that cannot reach the database has to stop its attempts, before another worker may start them.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal
from django_jobchains.store import AttemptKey, ClaimedJob, HeldLease, Renewal, Store
from django_jobchains.telemetry import measured, observes, report
from django_jobchains.telemetry.events import LeasesRenewed

#: The share of a lease after which it is renewed.
RENEW_SHARE = 1 / 3
#: The share of a lease that is left when an attempt whose lease could not be renewed is aborted.
MARGIN_SHARE = 0.1


@dataclass(slots=True)
class _Holding:
    signal: AbortSignal
    seconds: float
    #: The monotonic time until which the lease is certain to be valid.
    until: float
    queue: str

    def is_due(self, now: float) -> bool:
        return now >= self.until - self.seconds * (1 - RENEW_SHARE)

    def is_over(self, now: float) -> bool:
        return now >= self.until - self.seconds * MARGIN_SHARE


class HeldLeases:
    """The leases of one worker. All methods are thread-safe."""

    def __init__(self, store: Store, worker: str = "") -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        # The keys are attempts, not jobs: this worker may claim a job again whose lease it has just lost.
        self._holdings: dict[AttemptKey, _Holding] = {}
        #: Attempts that were aborted because they lost their lease, and that may still be running.
        self._lost: dict[AttemptKey, _Holding] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def hold(self, job: ClaimedJob, seconds: float, since: float) -> AbortSignal:
        """Add the lease of a claimed job. ``since`` is a monotonic time from before the claim."""
        signal = AbortSignal()
        with self._lock:
            self._holdings[job.key] = _Holding(signal, seconds, since + seconds, job.queue)
        return signal

    def release(self, keys: Iterable[AttemptKey]) -> set[AttemptKey]:
        """Remove leases whose outcomes are written. Return those that were held until now."""
        with self._lock:
            keys = list(keys)
            for key in keys if self._lost else ():
                self._lost.pop(key, None)
            return {key for key in keys if self._holdings.pop(key, None)}

    def count_by_queue(self) -> Counter[str]:
        """Count the attempts whose outcome is not written yet, except detached ones."""
        with self._lock:
            running = [holding for holding in self._lost.values() if not holding.signal.is_detached]
            return Counter(holding.queue for holding in [*self._holdings.values(), *running])

    def held(self) -> list[AttemptKey]:
        with self._lock:
            return list(self._holdings)

    def connect(self) -> None:
        """Open the connection before it is needed, because the slots might take the last one."""
        self._store.connection.ensure_connection()

    def renew_due(self) -> dict[AttemptKey, str]:
        """Renew the leases that are due in one statement. Abort the attempts that lost their lease; return the reasons.

        A cancelled attempt is aborted too, but keeps its lease, so that it can write its outcome.
        """
        now = time.monotonic()
        with self._lock:
            due = [HeldLease(*key, holding.seconds) for key, holding in self._holdings.items() if holding.is_due(now)]
        if not due:
            return {}
        with measured("renew", self._worker):
            renewal = self._store.leases.renew(due)
        if observes(LeasesRenewed):
            report(LeasesRenewed(self._worker, len(due) - len(renewal.lost)))
        keys = [lease.key for lease in due]
        for holding in self._still_held(keys).values():
            holding.until = now + holding.seconds
        return self._abort_lost(keys, renewal)

    def check(self) -> dict[AttemptKey, str]:
        """Check all leases without renewing them, after a hint that one was lost. Return the reasons."""
        held = self.held()
        return self._abort_lost(held, self._store.leases.check(held))

    def holds(self, job_id: UUID) -> bool:
        with self._lock:
            return any(id_ == job_id for id_, _ in self._holdings)

    def _abort_lost(self, keys: Iterable[AttemptKey], renewal: Renewal) -> dict[AttemptKey, str]:
        # The job may no longer be running because the attempt has ended since the query, or because its child process
        # has completed the job and has not replied yet. In both cases, no lease was lost.
        still_held = {key: holding for key, holding in self._still_held(keys).items() if not holding.signal.has_ended}
        lost = {key: still_held[key] for key in still_held.keys() & (renewal.lost.keys() - renewal.completed)}
        self._move_to_lost(lost)
        for key, holding in lost.items():
            holding.signal.abort(renewal.lost[key])  # type: ignore[arg-type]
        for key in still_held.keys() & renewal.cancelled:
            still_held[key].signal.abort("cancelled")
        return {key: renewal.lost[key] for key in lost}

    def _move_to_lost(self, lost: dict[AttemptKey, _Holding]) -> None:
        with self._lock:
            for key in lost.keys() & self._holdings.keys():
                self._lost[key] = self._holdings.pop(key)

    def _still_held(self, keys: Iterable[AttemptKey]) -> dict[AttemptKey, _Holding]:
        with self._lock:
            return {key: self._holdings[key] for key in keys if key in self._holdings}

    def abort_overdue(self) -> list[UUID]:
        """Abort the attempts whose lease could not be renewed in time, without the database. Return their jobs.

        An attempt that has ended is not aborted, because its outcome may still be written.
        """
        now = time.monotonic()
        with self._lock:
            overdue = [(key, holding.signal) for key, holding in self._holdings.items() if holding.is_over(now)]
        new = [(job_id, signal) for (job_id, _), signal in overdue if not (signal.aborted or signal.has_ended)]
        for _, signal in new:
            signal.abort("error")
        return [job_id for job_id, _ in new]

    def abort_all(self, reason: AbortReason) -> None:
        with self._lock:
            holdings = list(self._holdings.values())
        for holding in holdings:
            holding.signal.abort(reason)
