"""Calls the observers of attempts, in order, on a separate thread, because they may take long or use the database."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Event
from uuid import UUID

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.db.connections import close_thread_connections, usable_connections
from django_jobchains.declare.job_types import AttemptObserver, Processor
from django_jobchains.store.rows import ClaimedJob

#: While more calls than this wait, no more jobs are claimed.
MAX_WAITING = 1_000
#: A thread that has had nothing to call for this long closes its connections.
IDLE_SECONDS = 30.0
#: The statuses of jobs by the ends of attempts that end them.
_STATUSES = {
    OutcomeKind.COMPLETED: "completed",
    OutcomeKind.FAILED: "failed",
    OutcomeKind.CANCELLED: "cancelled",
}


class ObserverCalls:
    """The calls that wait. Can be used from any thread; one thread makes the calls."""

    def __init__(self) -> None:
        #: A call stays the first one until it has been made. This is faster than a ``Queue``.
        self._calls: deque[Callable[[], object]] = deque()
        self._is_awake = Event()

    @property
    def is_behind(self) -> bool:
        return len(self._calls) > MAX_WAITING

    @property
    def is_drained(self) -> bool:
        return not self._calls

    def put(self, call: Callable[[], object]) -> None:
        """Add a call, and wake the thread that makes it."""
        self._calls.append(call)
        if not self._is_awake.is_set():
            self._is_awake.set()

    def started(self, processor: Processor, job: ClaimedJob) -> None:
        """Call the observer before an attempt: in this thread, unless that would block an event loop."""
        observer = processor.observer
        if observer is None or not observer.observes("running"):
            return
        if processor.is_async:
            self.put(partial(observer.started, job))
            return
        if job.attempt > 1:  # Earlier attempts are read.
            usable_connections()
        observer.started(job)

    def ended(self, outcome: Outcome) -> None:
        """Call the observer later, if an attempt that was written has ended its job."""
        observer = outcome.processor.observer if outcome.processor else None
        if observer is None:
            return
        status = _STATUSES.get(outcome.ending)
        if status is None or not observer.observes(status):
            return
        row = outcome.finished or outcome.failed
        if row is None:  # Its child process died after it had committed the end.
            self.ended_elsewhere(observer, outcome.job.id)
            return
        if getattr(row, "continuation", None):
            return
        self.put(partial(observer.ended, outcome.job, row, status, outcome.seconds, outcome.exception))

    def ended_elsewhere(self, observer: AttemptObserver, job_id: UUID) -> None:
        self.put(partial(observer.ended_elsewhere, job_id))

    def wait(self) -> None:
        """Wait for a call. If there is none for a long time, close the connections of the thread."""
        self._is_awake.clear()  # Before the look, so that a later call ends the wait.
        if not self._calls and not self._is_awake.wait(IDLE_SECONDS):
            close_thread_connections()

    def make_next(self) -> None:
        """Make a call, if one waits."""
        if self._calls:
            connections = usable_connections()
            try:
                self._calls[0]()
            finally:
                connections.clean()  # A receiver may have left a transaction open.
                self._calls.popleft()

    def run(self) -> None:
        """Make all calls that wait."""
        while self._calls:
            self.make_next()

    def interrupt(self) -> None:
        """End the wait for a call."""
        self._is_awake.set()

    def drain(self, deadline: float) -> bool:
        """Wait until every call has been made. Return whether that was before the monotonic time ``deadline``."""
        while not self.is_drained and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.is_drained
