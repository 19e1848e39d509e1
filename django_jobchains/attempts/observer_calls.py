"""Calls the observers of attempts, in order, on a thread for that: what they do may take long or use the database."""

import queue
import time
from collections.abc import Callable
from functools import partial
from typing import Any

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
        self._queue: queue.Queue[Callable[[], object]] = queue.Queue()

    @property
    def is_behind(self) -> bool:
        return self._queue.unfinished_tasks > MAX_WAITING

    @property
    def is_drained(self) -> bool:
        return not self._queue.unfinished_tasks

    def started(self, processor: Processor, job: ClaimedJob) -> None:
        """Call the observer before an attempt: at once, unless that would block an event loop."""
        observer = processor.observer
        if observer is None or not observer.observes("running"):
            return
        if processor.is_async:
            self._queue.put(partial(observer.started, job))
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
        if row is None or getattr(row, "continuation", None):
            return
        self._queue.put(partial(observer.ended, outcome.job, row, status, outcome.seconds, outcome.exception))

    def ended_elsewhere(self, observer: AttemptObserver, job_id: Any) -> None:
        self._queue.put(partial(observer.ended_elsewhere, job_id))

    def next(self) -> Callable[[], object] | None:
        """Wait for a call, and return it; None if there is none for a long time. Then close the connections."""
        try:
            return self._queue.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            close_thread_connections()
            return None

    def make(self, call: Callable[[], object] | None) -> None:
        """Make a call that ``next`` has returned."""
        if call is not None:
            connections = usable_connections()
            try:
                call()
            finally:
                connections.clean()  # A receiver may have left a transaction open.
                self._queue.task_done()

    def run(self) -> None:
        """Make the calls that wait."""
        while not self._queue.empty():
            self.make(self._queue.get())

    def interrupt(self) -> None:
        """End the wait for a call."""
        self._queue.put(lambda: None)

    def drain(self, deadline: float) -> bool:
        """Wait until every call has been made. Return whether that was before the monotonic time ``deadline``."""
        while not self.is_drained and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.is_drained
