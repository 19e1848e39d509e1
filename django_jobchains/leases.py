"""Who may finish an attempt: the leases a worker holds, their renewal, and what happens when one is lost.

The database decides who holds a lease. The times kept here, by this host's monotonic clock, say only when to renew, and
when a worker that cannot reach the database must stop its own attempts before anybody else may start them.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django_jobchains.running import AbortReason, AbortSignal
from django_jobchains.store import AttemptKey, ClaimedJob, EndedAttempt, HeldLease, Renewal, Store

#: An attempt is aborted when so much of its lease is left and no renewal succeeded.
MARGIN_SHARE = 0.1
RENEW_SHARE = 1 / 3


@dataclass(slots=True)
class _Holding:
    lease: HeldLease
    signal: AbortSignal
    #: Monotonic time before which the database surely has not ended the lease.
    until: float
    queue: str

    def is_due(self, now: float) -> bool:
        return now >= self.until - self.lease.seconds * (1 - RENEW_SHARE)

    def is_over(self, now: float) -> bool:
        return now >= self.until - self.lease.seconds * MARGIN_SHARE


class HeldLeases:
    """The leases of one worker. Every method may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        # By attempt, not by job: this worker may get a job again whose lease it lost a moment ago.
        self._holdings: dict[AttemptKey, _Holding] = {}
        #: Attempts that were told that their lease is lost, and may still run.
        self._lost: dict[AttemptKey, _Holding] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def hold(self, job: ClaimedJob, seconds: float, since: float) -> AbortSignal:
        """Takes up a claimed job's lease; ``since``: monotonic time from before the claim."""
        signal = AbortSignal()
        lease = HeldLease(job.id, job.lease_number, seconds)
        with self._lock:
            self._holdings[job.key] = _Holding(lease, signal, since + seconds, job.queue)
        return signal

    def let_go(self, jobs: Iterable[ClaimedJob | HeldLease | EndedAttempt]) -> set[AttemptKey]:
        """Forgets leases whose outcome is written; returns those that were held until now."""
        with self._lock:
            keys = [job.key for job in jobs]
            for key in keys:
                self._lost.pop(key, None)
            return {key for key in keys if self._holdings.pop(key, None)}

    def count_by_queue(self) -> Counter[str]:
        """The attempts that run, or are about to, or whose outcome is not written yet; without those written off."""
        with self._lock:
            running = [holding for holding in self._lost.values() if not holding.signal.is_disowned]
            return Counter(holding.queue for holding in [*self._holdings.values(), *running])

    def held(self) -> list[HeldLease]:
        with self._lock:
            return [holding.lease for holding in self._holdings.values()]

    def connect(self) -> None:
        """Gets a connection before there is something to renew: the slots might take the last one."""
        self._store.connection.ensure_connection()

    def renew_due(self) -> dict[AttemptKey, str]:
        """Renews in one statement what is due; aborts what was lost, and returns it with the reasons.

        An attempt that was asked to stop is told so, and keeps its lease to write how it ended.
        """
        now = time.monotonic()
        with self._lock:
            due = [holding.lease for holding in self._holdings.values() if holding.is_due(now)]
        if not due:
            return {}
        renewal = self._store.renew(due)
        for holding in self._still_held(due):
            holding.until = now + holding.lease.seconds
        return self._tell(due, renewal)

    def check(self) -> dict[AttemptKey, str]:
        """The same without renewing, of all leases: somebody says that one was lost."""
        held = self.held()
        return self._tell(held, self._store.check(held))

    def holds(self, job_id: UUID) -> bool:
        with self._lock:
            return any(id_ == job_id for id_, _ in self._holdings)

    def _tell(self, leases: Iterable[HeldLease], renewal: Renewal) -> dict[AttemptKey, str]:
        # An attempt that ended meanwhile did not lose its lease: it may be its own end that was seen.
        still_held = [holding for holding in self._still_held(leases) if not holding.signal.has_ended]
        lost = {holding.lease.key: holding for holding in still_held if holding.lease.key in renewal.lost}
        self._lose(lost)
        for key, holding in lost.items():
            holding.signal.abort(renewal.lost[key])  # type: ignore[arg-type]
        for holding in still_held:
            if holding.lease.key in renewal.cancelled:
                holding.signal.abort("cancelled")
        return {key: renewal.lost[key] for key in lost}

    def _lose(self, lost: dict[AttemptKey, _Holding]) -> None:
        with self._lock:
            for key in lost.keys() & self._holdings.keys():
                self._lost[key] = self._holdings.pop(key)

    def _still_held(self, leases: Iterable[HeldLease]) -> list[_Holding]:
        with self._lock:
            return [self._holdings[lease.key] for lease in leases if lease.key in self._holdings]

    def abort_overdue(self) -> list[UUID]:
        """Aborts the attempts whose lease could not be renewed in time. Needs no database."""
        now = time.monotonic()
        with self._lock:
            overdue = [holding for holding in self._holdings.values() if holding.is_over(now)]
        fresh = [holding for holding in overdue if not holding.signal.aborted]
        for holding in fresh:
            holding.signal.abort("error")
        return [holding.lease.id for holding in fresh]

    def abort_all(self, reason: AbortReason) -> None:
        with self._lock:
            holdings = list(self._holdings.values())
        for holding in holdings:
            holding.signal.abort(reason)
