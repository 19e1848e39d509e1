"""The records that a worker handles: their heartbeats, and the abort of attempts that lost their records.

As with job leases, the database decides who holds a record, and the times here only decide when to write.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django_jobchains.attempts.leases import MARGIN_SHARE
from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import RecordBeat, RecordKey, RecordTable, Store
from django_jobchains.store.errors import is_lock_timeout
from django_jobchains.telemetry import measured
from django_jobchains.worker.records.record_failures import RecordFailures
from django_jobchains.worker.threads import LOCK_SECONDS

#: How soon the heartbeat of a locked record, or one that failed, is tried again.
LOCKED_SECONDS = 1.0

#: A record, with the name under which its model is registered.
HeldKey = tuple[str, RecordKey]


@dataclass(slots=True)
class _HeldRecord:
    kind: RecordType
    signal: AbortSignal
    #: The monotonic time of the last heartbeat, and of the next.
    beaten_at: float
    due_at: float
    #: The monotonic time of the last query that would have found a request to cancel.
    seen_at: float
    #: Whether its loss was reported, although the record may still be held.
    is_reported: bool = False

    @property
    def must_be_seen_at(self) -> float:
        return self.seen_at + self.kind.cancel_seconds

    def is_over(self, now: float) -> bool:
        return now >= self.beaten_at + self.kind.stalled_seconds * (1 - MARGIN_SHARE)


@dataclass(frozen=True)
class LostRecord:
    kind: RecordType
    id: Any
    reason: str


#: Is called with the records that a model has lost.
OnLost = Callable[[list[LostRecord]], object]
Query = Callable[[RecordTable, Sequence[RecordKey]], RecordBeat]


def locked_seconds(kind: RecordType) -> float:
    """Return how soon the heartbeat of a locked record of a model is tried again."""
    return min(LOCKED_SECONDS, kind.heartbeat_seconds)


class RecordLeases:
    """The records of one worker. All methods are thread-safe."""

    def __init__(self, store: Store, worker: str = "") -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        self._held: dict[HeldKey, _HeldRecord] = {}
        #: Lost records, whose attempts were aborted and may still be running.
        self._lost: dict[HeldKey, _HeldRecord] = {}
        self._failures = RecordFailures("The heartbeats of records %r could not be written: %s", store)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, kind: RecordType, key: RecordKey, since: float) -> AbortSignal:
        """Add a record that was dequeued. ``since`` is a monotonic time from before the dequeue."""
        signal = AbortSignal()
        with self._lock:
            self._held[kind.name, key] = _HeldRecord(kind, signal, since, since + kind.heartbeat_seconds, since)
        return signal

    def release(self, kind: RecordType, key: RecordKey) -> bool:
        """Remove a record whose end is written. Return whether its loss would be news."""
        with self._lock:
            lost = self._lost.pop((kind.name, key), None)
            held = self._held.pop((kind.name, key), lost)
            return held is not None and not held.is_reported

    def count(self, kind: RecordType) -> int:
        """Return how many attempts have not ended, except detached ones."""
        with self._lock:
            return sum(held.kind is kind for held in self._running())

    def count_by_queue(self) -> Counter[str]:
        with self._lock:
            return Counter(held.kind.queue for held in self._running())

    def ids(self, kind: RecordType) -> list[Any]:
        with self._lock:
            return [key[0] for (name, key) in self._held if name == kind.name]

    def all(self) -> list[tuple[RecordType, RecordKey]]:
        with self._lock:
            return [(held.kind, key) for (_, key), held in self._held.items()]

    def connect(self) -> None:
        """Open the connection before it is needed, because the slots might take the last one."""
        self._store.connection.ensure_connection()

    def seconds_to_next(self) -> float:
        """Return the seconds until the next heartbeat or check is due."""
        now = time.monotonic()
        with self._lock:
            due_at = [min(held.due_at, held.must_be_seen_at) for held in self._held.values()]
        return max(min(due_at, default=now + LOCKED_SECONDS) - now, 0)

    def beat_due(self, on_lost: OnLost) -> None:
        """Write the heartbeats of each model with a due heartbeat in one statement. Abort attempts of lost records.

        Models whose records have not been queried for ``cancel_every`` are checked.
        """
        now = time.monotonic()
        with self._lock:
            due = {held.kind for held in self._held.values() if now >= held.due_at}
            unseen = {held.kind for held in self._held.values() if now >= held.must_be_seen_at} - due
        self._failures.each(due, lambda kind: on_lost(self._beat(kind, now)))
        self._failures.each(unseen, lambda kind: on_lost(self._check(kind)))

    def check(self, on_lost: OnLost) -> None:
        """Check all records without a heartbeat, after a hint that one was lost."""
        with self._lock:
            kinds = {held.kind for held in self._held.values()}
        self._failures.each(kinds, lambda kind: on_lost(self._check(kind)))

    def abort_overdue(self) -> list[LostRecord]:
        """Abort the attempts whose heartbeats could not be written in time, without the database.

        An attempt that has ended is not aborted, because its end may still be written.
        """
        now = time.monotonic()
        with self._lock:
            overdue = [(key, held) for key, held in self._held.items() if held.is_over(now)]
            new = [(key, held) for key, held in overdue if not (held.signal.aborted or held.signal.has_ended)]
            for _, held in new:
                held.is_reported = True
        for _, held in new:
            held.signal.abort("error")
        return [LostRecord(held.kind, key[0], "error") for (_, key), held in new]

    def abort_all(self, reason: AbortReason) -> None:
        with self._lock:
            held = list(self._held.values())
        for each in held:
            each.signal.abort(reason)

    def _beat(self, kind: RecordType, now: float) -> list[LostRecord]:
        keys = self._keys(kind)
        with measured("record_heartbeat", self._worker, kind.name):
            beat = self._found(kind, keys, self._store.records.beat)
        self._beaten(kind, keys, beat, now)
        return self._abort(kind, beat)

    def _check(self, kind: RecordType) -> list[LostRecord]:
        return self._abort(kind, self._found(kind, self._keys(kind), self._store.records.check))

    def _found(self, kind: RecordType, keys: Sequence[RecordKey], query: Query) -> RecordBeat:
        """Return what a statement found. If it failed, heartbeats soon follow."""
        with self._lock:
            for held in self._of(kind, keys):
                held.seen_at = time.monotonic()
        try:
            with self._store.db.waits_at_most(LOCK_SECONDS):
                return query(kind.table(self._store.using), keys)
        except Exception as error:
            self._beat_soon(kind, keys)
            if not is_lock_timeout(error):
                raise
            # The lock of a table that delays these writes also keeps other workers from resetting the records.
            return RecordBeat({}, set(), set(keys))

    def _running(self) -> Iterable[_HeldRecord]:
        return [*self._held.values(), *(held for held in self._lost.values() if not held.signal.is_detached)]

    def _keys(self, kind: RecordType) -> list[RecordKey]:
        with self._lock:
            return [key for (name, key) in self._held if name == kind.name]

    def _beaten(self, kind: RecordType, keys: Collection[RecordKey], beat: RecordBeat, now: float) -> None:
        with self._lock:
            for held in self._of(kind, [key for key in keys if key not in beat.lost]):
                held.beaten_at, held.due_at = now, now + kind.heartbeat_seconds
        self._beat_soon(kind, beat.locked)

    def _beat_soon(self, kind: RecordType, keys: Collection[RecordKey]) -> None:
        due_at = time.monotonic() + locked_seconds(kind)
        with self._lock:
            for held in self._of(kind, keys):
                held.due_at = due_at

    def _of(self, kind: RecordType, keys: Iterable[RecordKey]) -> list[_HeldRecord]:
        return [held for key in keys if (held := self._held.get((kind.name, key)))]

    def _abort(self, kind: RecordType, beat: RecordBeat) -> list[LostRecord]:
        # An attempt that has ended since then has not lost its record: the database may show its own end.
        lost: dict[HeldKey, _HeldRecord] = {}
        canceled: list[_HeldRecord] = []
        with self._lock:
            for key in beat.lost:
                if (held := self._held.get((kind.name, key))) and not held.signal.has_ended:
                    lost[kind.name, key] = self._lost[kind.name, key] = self._held.pop((kind.name, key))
            canceled = self._of(kind, beat.canceled)
            # A child process may have written its end, and may not have sent it yet. It is reported when it has ended.
            new = {key: held for key, held in lost.items() if not (held.is_reported or held.signal.ends_elsewhere)}
            for held in new.values():
                held.is_reported = True
        for (_, key), held in lost.items():
            held.signal.abort(beat.lost[key])  # type: ignore[arg-type]
        for held in canceled:
            held.signal.abort("cancelled")
        return [LostRecord(kind, key[0], beat.lost[key]) for _, key in new]


def by_kind(pairs: Iterable[tuple[RecordType, Any]]) -> dict[RecordType, list[Any]]:
    grouped: dict[RecordType, list[Any]] = defaultdict(list)
    for kind, value in pairs:
        grouped[kind].append(value)
    return grouped
