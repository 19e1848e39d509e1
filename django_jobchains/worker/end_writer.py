"""Writes the ends of attempts, many in one transaction.

After a crash before the write, the job or record runs again, as after a crash before a commit. Leases are renewed until
the end is written.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django_jobchains.store.errors import is_conflict, is_database_away, is_out_of_time
from django_jobchains.text.errors import describe
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.threads import LOCK_SECONDS, waiting

MAX_BATCH_SIZE = 200
#: How long the first end of a batch waits for others. It waits only while claimed attempts wait for a slot.
GATHER_SECONDS = 0.004
#: The number of retries of a single end that exceeds a time limit before it is replaced. The server may be busy.
MAX_TIMEOUTS = 3

#: The wait before the first retry of an end, which doubles with each further retry, and the longest wait.
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 1.0
#: Retries stop after this time, so that new ends are written.
MAX_RETRY_SECONDS = 0.2

#: The abort reason of an attempt whose lost lease was only noticed when its end was written.
TAKEN = "taken_by_another_worker"

EndT = TypeVar("EndT")


class Sink(Generic[EndT]):
    """Where the ends of one source are written: the table of jobs, or the tables of records.

    Only the writer's thread calls its methods, except ``accept``.
    """

    #: Whether what depends on the written ends has been published.
    is_published = True

    def accept(self, end: EndT) -> bool:
        """Prepare an end that was put. Return whether it is still to be written. Called from any thread."""
        raise NotImplementedError

    def take(self, batch: Iterable[EndT]) -> None:
        """Note the ends of the next batch."""

    def groups(self, batch: Collection[EndT]) -> Iterable[Sequence[EndT]]:
        """Return the parts of a batch that can be written together."""
        raise NotImplementedError

    def has_written(self, end: EndT) -> bool:
        """Return whether nothing is left to write of an end."""
        raise NotImplementedError

    def write(self, ends: Sequence[EndT], uncertain: Collection[int]) -> list[EndT]:
        """Write ends that are not written yet. Return those whose rows are locked.

        ``uncertain``: the identities of those that an earlier try may have written, although it raised an error.
        """
        raise NotImplementedError

    def is_temporary(self, error: Exception) -> bool:
        """Return whether an error may disappear, besides conflicts."""
        return False

    def replace(self, end: EndT, error: Exception) -> bool:
        """Replace an end that cannot be written by a simpler one. Return False if it can only be tried again."""
        raise NotImplementedError

    def release(self, ends: Sequence[EndT]) -> None:
        """Report ends that are written or lost, and drop their leases."""
        raise NotImplementedError

    def released(self, ends: Sequence[EndT]) -> None:
        """React to ends after the writer has removed them."""

    def report_delay(self, end: EndT, seconds: float, error: str) -> None:
        """Report an end that could not be written for this time."""
        raise NotImplementedError

    def publish(self) -> None:
        """Publish what depends on the written ends, after each step."""


class EndWriter(Generic[EndT]):
    """Takes ends from the threads of attempts, and writes them to its sink on another thread."""

    def __init__(self, context: WorkerContext, sink: Sink[EndT]) -> None:
        self._context = context
        self._store = context.store
        self._sink = sink
        self._queue: queue.SimpleQueue[EndT | None] = queue.SimpleQueue()
        #: Set when a batch need not wait for more ends.
        self._is_enough = threading.Event()
        # The keys are identities, because the hash of a job's id is slow to compute.
        self._batch: dict[int, EndT] = {}
        #: All ends that were put and are not written and reported yet.
        self._pending: dict[int, EndT] = {}
        self._lock = threading.Lock()
        #: Ends that may be committed although the transaction raised an error.
        self._uncertain: set[int] = set()
        self._delayed: DelayedEnds[EndT] = DelayedEnds(sink.report_delay)
        self._was_behind = False

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def is_drained(self) -> bool:
        """Whether every end is written and its effects are published."""
        return self.is_idle and self._sink.is_published

    @property
    def is_behind(self) -> bool:
        """Whether ends arrive faster than they are written: then nothing more is claimed."""
        return len(self._pending) - len(self._delayed) > 2 * MAX_BATCH_SIZE

    def pending(self) -> list[EndT]:
        """Return the ends that are not written and reported yet. Can be called from any thread."""
        with self._lock:
            return list(self._pending.values())

    def put(self, end: EndT) -> None:
        """Add an end to write. One that its attempt has committed is only reported and published."""
        is_to_write = self._sink.accept(end)
        with self._lock:
            self._pending[id(end)] = end
        self._queue.put(end)
        if is_to_write and (not any(self._context.backlogs) or self._queue.qsize() >= MAX_BATCH_SIZE):
            self._is_enough.set()

    def interrupt(self) -> None:
        """End the wait for an end."""
        self._queue.put(None)

    def step(self) -> None:
        """Gather a batch and write it. After an error, the next step continues with the rest of the batch."""
        self._store.connection.ensure_connection()  # Opened early, because the slots might take the last connection.
        if not self._batch:
            self._gather()
        with self._store.db.waits_at_most(LOCK_SECONDS):
            for ends in self._sink.groups(self._batch.values()):
                self._write(ends)
            self._delayed.retry(self._write_one)
        if self._was_behind:  # The claim loop may wait for this.
            self._was_behind = False
            self._context.wake.set()
        self._sink.publish()

    def _gather(self) -> None:
        """Wait for an end, then for others that follow soon. Not every end wakes this thread."""
        self._is_enough.clear()
        with waiting(), suppress(queue.Empty):
            if (end := self._queue.get(timeout=self._delayed.seconds_to_next())) is not None:
                self._batch[id(end)] = end
        if self._batch and any(self._context.backlogs):
            self._is_enough.wait(GATHER_SECONDS)
        with suppress(queue.Empty):
            while len(self._batch) < MAX_BATCH_SIZE:
                if (end := self._queue.get_nowait()) is not None:
                    self._batch[id(end)] = end
        self._sink.take(self._batch.values())

    def _write(self, ends: Sequence[EndT]) -> None:
        try:
            self._write_together(ends)
        except Exception as error:
            self._raise_if_away(error, ends)
            for end in ends:  # An end that cannot be written must not affect the others.
                self._write_one(end)

    def _write_one(self, end: EndT) -> None:
        try:
            self._write_together([end])
        except Exception as error:
            self._raise_if_away(error, [end])
            if self._sink.has_written(end):
                raise
            is_slow = is_out_of_time(error) and self._delayed.errors(end) < MAX_TIMEOUTS
            if is_slow or is_conflict(error) or self._sink.is_temporary(error):
                self._delay(end, describe(error))
            elif self._sink.replace(end, error):
                self._write_one(end)
            else:
                self._delay(end, describe(error))

    def _raise_if_away(self, error: Exception, ends: Collection[EndT]) -> None:
        """Raise the error of an unavailable database, which may have committed the ends. They are retried later."""
        if is_database_away(error):
            self._uncertain |= {id(end) for end in ends}
            raise error

    def _write_together(self, ends: Sequence[EndT]) -> None:
        locked = self._sink.write(ends, self._uncertain)
        for end in locked:
            self._delay(end)
        if locked:
            ids = set(map(id, locked))
            ends = [end for end in ends if id(end) not in ids]
        self._sink.release(ends)
        # The last step, because an earlier error retries the batch.
        self._delayed.forget(ends)
        with self._lock:
            self._was_behind |= self.is_behind
            for identity in map(id, ends):
                self._batch.pop(identity, None)
                self._uncertain.discard(identity)
                self._pending.pop(identity, None)
        self._sink.released(ends)

    def _delay(self, end: EndT, error: str = "") -> None:
        self._delayed.add(end, error)
        self._batch.pop(id(end), None)


@dataclass(slots=True)
class _Delayed(Generic[EndT]):
    end: EndT
    since: float = field(default_factory=time.monotonic)
    wait_seconds: float = FIRST_WAIT_SECONDS / 2
    errors: int = 0
    due_at: float = 0.0


class DelayedEnds(Generic[EndT]):
    """Ends to retry, each after its own wait: another transaction has locked a row that they change, or an error may
    disappear. Only the thread of the writer uses it.

    ``report``: called once for an end that reaches the longest wait, with the time since its first try and the error.
    """

    def __init__(self, report: Callable[[EndT, float, str], None]) -> None:
        self._report = report
        #: By identity of the end, in the order of the first tries.
        self._delayed: dict[int, _Delayed[EndT]] = {}

    def __len__(self) -> int:
        return len(self._delayed)

    def add(self, end: EndT, error: str = "") -> None:
        """Delay an end, each time for longer. ``error``: "" for a lock."""
        delayed = self._delayed.setdefault(id(end), _Delayed(end))
        was_short = delayed.wait_seconds < MAX_WAIT_SECONDS
        delayed.errors += bool(error)
        delayed.wait_seconds = min(2 * delayed.wait_seconds, MAX_WAIT_SECONDS)
        now = time.monotonic()
        delayed.due_at = now + delayed.wait_seconds
        if was_short and delayed.wait_seconds == MAX_WAIT_SECONDS:
            self._report(end, now - delayed.since, error)

    def errors(self, end: EndT) -> int:
        """Return how often an end has been delayed by an error."""
        delayed = self._delayed.get(id(end))
        return delayed.errors if delayed else 0

    def forget(self, ends: Iterable[EndT]) -> None:
        for end in ends:
            self._delayed.pop(id(end), None)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next retry, None if no end is delayed."""
        if not self._delayed:
            return None
        return max(min(delayed.due_at for delayed in self._delayed.values()) - time.monotonic(), 0)

    def retry(self, write: Callable[[EndT], object]) -> None:
        """Call ``write`` with each end whose wait is over, for a limited time."""
        if not self._delayed:
            return
        began = time.monotonic()
        due = [delayed for delayed in self._delayed.values() if delayed.due_at <= began]
        for delayed in sorted(due, key=lambda delayed: delayed.due_at):
            write(delayed.end)
            if time.monotonic() - began > MAX_RETRY_SECONDS:
                return
