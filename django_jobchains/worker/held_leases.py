"""The leases that a worker holds: their renewal, and the abort of attempts that have lost their lease.

The work of a worker has several sources: the table of jobs, and one table for each record model. The database decides
who holds a lease. The times here, by this host's monotonic clock, only decide when to renew, and when a worker that
cannot reach the database has to stop its attempts, before another worker may start them.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.store.errors import is_lock_timeout
from django_jobchains.store.record_tables import RecordKey, RecordTable
from django_jobchains.store.rows import HeldLease, Renewal
from django_jobchains.telemetry import measured, observes, report
from django_jobchains.telemetry.events import AttemptAbandoned, LeasesRenewed
from django_jobchains.worker.threads import LOCK_SECONDS

#: The share of a lease that is left when an attempt whose lease could not be renewed is aborted.
MARGIN_SHARE = 0.1
#: How soon the heartbeat of a locked record, or one that failed, is tried again.
LOCKED_SECONDS = 1.0

#: The primary key of a job or record, and the number of its lease. It identifies an attempt, because this worker may
#: claim a job again whose lease it has just lost.
LeaseKey = RecordKey


@dataclass(slots=True)
class Holding:
    """A lease. All times are monotonic."""

    signal: AbortSignal
    queue: str
    seconds: float
    #: The time until which the lease is certain to be valid.
    until: float
    #: When it is renewed next.
    due_at: float
    #: When a query last would have found a request to cancel.
    seen_at: float
    #: From before the claim.
    since: float
    #: Whether its loss was reported, although the lease may still be held.
    is_reported: bool = False

    def is_over(self, now: float) -> bool:
        return now >= self.until - self.seconds * MARGIN_SHARE


class HeldLeases:
    """The leases on the work of one source. All methods are thread-safe.

    Methods that abort attempts of lost leases return the losses that are not reported yet, with their reasons.
    """

    #: The share of a lease after which it is renewed.
    renew_share: float
    #: Whether all leases are renewed as soon as one of them is due.
    renews_all = False
    #: The longest time without a query that would find a request to cancel.
    check_seconds = inf
    #: How soon a renewal that failed is tried again.
    retry_seconds = 0.0

    def __init__(self, store: Store, worker: str = "") -> None:
        self.store = store
        self.worker = worker
        self._lock = threading.Lock()
        self._held: dict[LeaseKey, Holding] = {}
        #: Attempts that were aborted because they lost their lease, and that may still be running.
        self._lost: dict[LeaseKey, Holding] = {}
        #: Set after a hint that a lease was lost.
        self.must_check = threading.Event()

    def renew(self, leases: Mapping[LeaseKey, float]) -> Renewal:
        """Renew leases for these seconds, in one statement."""
        raise NotImplementedError

    def find_lost(self, keys: Sequence[LeaseKey]) -> Renewal:
        """Return which leases are lost, in one query."""
        raise NotImplementedError

    def report(self, lost: Mapping[LeaseKey, str]) -> None:
        """Report losses with their reasons."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: LeaseKey, seconds: float, since: float, queue: str) -> AbortSignal:
        """Add the lease of a claimed job or record. ``since`` is a monotonic time from before the claim."""
        signal = AbortSignal()
        with self._lock:
            due_at = since + seconds * self.renew_share
            self._held[key] = Holding(signal, queue, seconds, since + seconds, due_at, since, since)
        return signal

    def release(self, keys: Iterable[LeaseKey]) -> list[Holding | None]:
        """Remove leases whose ends are written. Return what was known of each; None: it was removed before."""
        with self._lock:
            return [self._held.pop(key, None) or self._lost.pop(key, None) for key in keys]

    def count_by_queue(self) -> Counter[str]:
        """Count the attempts whose end is not written yet, except detached ones."""
        with self._lock:
            running = [holding for holding in self._lost.values() if not holding.signal.is_detached]
            return Counter(holding.queue for holding in [*self._held.values(), *running])

    def held(self) -> list[LeaseKey]:
        with self._lock:
            return list(self._held)

    def holds(self, id: object) -> bool:
        with self._lock:
            return any(held == id for held, _ in self._held)

    def seconds_to_next(self) -> float:
        """Return the seconds until the next renewal or check is due."""
        with self._lock:
            due_at = [min(held.due_at, held.seen_at + self.check_seconds) for held in self._held.values()]
        return max(min(due_at, default=inf) - time.monotonic(), 0)

    def renew_due(self) -> dict[LeaseKey, str]:
        """Renew the leases that are due in one statement, and abort the attempts that lost their lease.

        A cancelled attempt is aborted too, but keeps its lease, so that it can write its end. If no lease is due, but
        requests to cancel would not have been found for too long, the leases are only checked.
        """
        now = time.monotonic()
        with self._lock:
            due = {key: held.seconds for key, held in self._held.items() if now >= held.due_at}
            is_unseen = not due and any(now >= held.seen_at + self.check_seconds for held in self._held.values())
            if due and self.renews_all:
                due = {key: held.seconds for key, held in self._held.items()}
        if is_unseen:
            return self.check()
        if not due:
            return {}
        renewal = self._query(due, lambda: self.renew(due))
        for key, holding in self._still_held(due).items():
            holding.due_at = now + holding.seconds * self.renew_share
            if key not in renewal.lost:
                holding.until = now + holding.seconds
        self._retry_soon(renewal.locked)
        return self._abort_lost(renewal)

    def check(self) -> dict[LeaseKey, str]:
        """Check all leases without renewing them, for example after a hint that one was lost."""
        held = self.held()
        return self._abort_lost(self._query(held, lambda: self.find_lost(held)))

    def abort_overdue(self) -> dict[LeaseKey, str]:
        """Abort the attempts whose lease could not be renewed in time, without the database.

        An attempt that has ended is not aborted, because its end may still be written.
        """
        now = time.monotonic()
        with self._lock:
            overdue = {key: held for key, held in self._held.items() if held.is_over(now)}
            new = {key: held for key, held in overdue.items() if not (held.signal.aborted or held.signal.has_ended)}
            for holding in new.values():
                holding.is_reported = True
        for holding in new.values():
            holding.signal.abort("error")
        return dict.fromkeys(new, "error")

    def abort_all(self, reason: AbortReason) -> None:
        with self._lock:
            held = list(self._held.values())
        for holding in held:
            holding.signal.abort(reason)

    def _query(self, keys: Collection[LeaseKey], query: Callable[[], Renewal]) -> Renewal:
        for holding in self._still_held(keys).values():
            holding.seen_at = time.monotonic()
        try:
            return query()
        except Exception:
            self._retry_soon(keys)
            raise

    def _retry_soon(self, keys: Iterable[LeaseKey]) -> None:
        due_at = time.monotonic() + self.retry_seconds
        for holding in self._still_held(keys).values():
            holding.due_at = due_at

    def _still_held(self, keys: Iterable[LeaseKey]) -> dict[LeaseKey, Holding]:
        with self._lock:
            return {key: self._held[key] for key in keys if key in self._held}

    def _abort_lost(self, renewal: Renewal) -> dict[LeaseKey, str]:
        lost: dict[LeaseKey, Holding] = {}
        new: dict[LeaseKey, str] = {}
        with self._lock:
            # An attempt that has ended since the query, or whose child process has completed the job and has not
            # replied yet, has not lost its lease: the database may show its own end.
            active = {key: held for key, held in self._held.items() if not held.signal.has_ended}
            for key in active.keys() & (renewal.lost.keys() - renewal.completed):
                lost[key] = self._lost[key] = holding = self._held.pop(key)
                # A child process may have written its end, and may not have sent it yet. It is reported when it has
                # ended.
                if not (holding.is_reported or holding.signal.ends_elsewhere):
                    holding.is_reported = True
                    new[key] = renewal.lost[key]
        for key, holding in lost.items():
            holding.signal.abort(renewal.lost[key])  # type: ignore[arg-type]
        for key in active.keys() & renewal.cancelled:
            active[key].signal.abort("cancelled")
        return new


class HeldJobs(HeldLeases):
    """The leases on jobs. Their length depends on the type, and each is renewed for itself."""

    renew_share = 1 / 3

    def renew(self, leases: Mapping[LeaseKey, float]) -> Renewal:
        with measured("renew", self.worker):
            renewal = self.store.leases.renew([HeldLease(*key, seconds) for key, seconds in leases.items()])
        if observes(LeasesRenewed):
            report(LeasesRenewed(self.worker, len(leases) - len(renewal.lost)))
        return renewal

    def find_lost(self, keys: Sequence[LeaseKey]) -> Renewal:
        return self.store.leases.check(keys)

    def report(self, lost: Mapping[LeaseKey, str]) -> None:
        for (job_id, _), reason in lost.items():
            report(AttemptAbandoned(self.worker, job_id, reason))


class HeldRecords(HeldLeases):
    """The records of one model: a lease is the time without heartbeats after which a record counts as stalled."""

    renews_all = True

    def __init__(self, kind: RecordType, store: Store, worker: str = "") -> None:
        super().__init__(store, worker)
        self.kind = kind
        self.renew_share = kind.heartbeat_seconds / kind.stalled_seconds
        self.check_seconds = kind.cancel_seconds
        self.retry_seconds = locked_seconds(kind)

    @property
    def name(self) -> str:
        return self.kind.name

    def renew(self, leases: Mapping[LeaseKey, float]) -> Renewal:
        with measured("record_heartbeat", self.worker, self.name):
            return self._run(self.store.records.beat, list(leases))

    def find_lost(self, keys: Sequence[LeaseKey]) -> Renewal:
        return self._run(self.store.records.check, keys)

    def report(self, lost: Mapping[LeaseKey, str]) -> None:
        for (id_, _), reason in lost.items():
            report(AttemptAbandoned(self.worker, str(id_), reason, self.name, kind="record"))

    def _run(self, query: Callable[[RecordTable, Sequence[LeaseKey]], Renewal], keys: Sequence[LeaseKey]) -> Renewal:
        try:
            with self.store.db.waits_at_most(LOCK_SECONDS):
                return query(self.kind.table(self.store.using), keys)
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            # The lock of a table that delays these writes also keeps other workers from resetting the records.
            return Renewal({}, set(), locked=set(keys))


def locked_seconds(kind: RecordType) -> float:
    """Return how soon the heartbeat of a locked record of a model is tried again."""
    return min(LOCKED_SECONDS, kind.heartbeat_seconds)
