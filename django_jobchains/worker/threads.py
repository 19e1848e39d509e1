"""Threads with an owner, how often they take turns, and requests to stop a process.

Threads are named, restarted after a failure, stopped by an event, and joined with a deadline.
"""

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.db import call_in_forks
from django_jobchains.db.connections import close_thread_connections, repair_connections
from django_jobchains.db.setup import is_table_missing, remedy_for
from django_jobchains.store.errors import blames_statement, is_database_away
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import ThreadFailed
from django_jobchains.text.errors import describe

#: How long a worker's own transactions wait for another transaction's lock: see docs/decisions/0031-deferred-writes.md.
LOCK_SECONDS = 0.02
FIRST_WAIT_SECONDS = 0.1
LAST_WAIT_SECONDS = 10.0
#: After a wait of at least this length, a thread checks whether the server has ended its sessions.
IDLE_SECONDS = 0.5
#: The limit of consecutive failures, except database failures, before the worker stops, so that a process manager
#: starts a new one.
MAX_FAILURES = 10


class OwnedThread:
    """Calls ``step`` repeatedly until it is stopped. After an error, it waits for an increasing time and continues.

    Errors of an unavailable database, and of statements that take too long, are retried without a limit. A missing
    table stops the worker immediately; other errors do so after ``MAX_FAILURES`` in a row. ``using``: the alias of the
    database that the steps use. ``give_up``: stops the worker.
    """

    def __init__(
        self, name: str, step: Callable[[], object], *, worker: str, give_up: Callable[[], None], using: str = ""
    ) -> None:
        self.stopping = threading.Event()
        self._step = step
        self._worker = worker
        self._give_up = give_up
        self._using = using
        self._failures = 0
        #: Whether the last step failed.
        self.is_failing = False
        self._busy_since: float | None = None
        #: The connection of the thread, while it runs and uses a database.
        self.connection: BaseDatabaseWrapper | None = None
        self._thread = threading.Thread(target=self._run, name=f"jobchains-{name}", daemon=True)

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def busy_seconds(self) -> float:
        """How long the current step has taken; 0 while it waits for something to do."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, deadline: float) -> bool:
        """Wait until the monotonic time ``deadline``. Returns whether the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(max(deadline - time.monotonic(), 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        _own.thread = self
        try:
            while not self.stopping.is_set():
                self._step_once()
        finally:
            self._busy_since = None
            close_thread_connections()

    def _step_once(self) -> None:
        self._busy_since = time.monotonic()
        self.connection = connections[self._using] if self._using else None  # It may have been replaced.
        try:
            self._step()
            self._failures, self.is_failing = 0, False
        except BaseException as error:  # A thread must not end silently.
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self.is_failing = True
        fatal = self._failures >= MAX_FAILURES and not (is_database_away(error) or blames_statement(error))
        text = describe(error)
        if self._using and (remedy := remedy_for(error, self._using)):
            fatal |= is_table_missing(error)
            text = f"{text}. {remedy}"
        report(ThreadFailed(self._worker, self.name, text, self._failures, fatal))
        repair_connections(error)
        if fatal:
            self.stopping.set()
            self._give_up()
            return
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(self._failures - 1, 10), LAST_WAIT_SECONDS)
        self._busy_since = None
        self.stopping.wait(wait * random.uniform(0.5, 1))  # noqa: S311 - jitter

    @contextmanager
    def waits(self) -> Iterator[None]:
        self._busy_since, self.is_failing = None, False
        started = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = time.monotonic()
            if self._busy_since - started >= IDLE_SECONDS:
                repair_connections()


_own = threading.local()


@contextmanager
def waiting() -> Iterator[None]:
    """Mark a wait for something to do. The thread stays healthy however long the wait takes."""
    thread: OwnedThread | None = getattr(_own, "thread", None)
    with thread.waits() if thread else nullcontext():
        yield


def returns_within(seconds: float, call: Callable[[], object], name: str) -> bool:
    """Make a call on another thread, because an unresponsive database would delay this one.

    Return whether it returned in time. ``call`` must not raise an error.
    """

    def run() -> None:
        try:
            call()
        finally:
            close_thread_connections()

    thread = threading.Thread(target=run, name=f"jobchains-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


#: Handlers compute if the process uses this share of a core, and attempts take this long on average.
COMPUTING_SHARE, COMPUTING_SECONDS = 0.25, 0.001
#: The switch interval while handlers compute, and at all other times.
COMPUTING_INTERVAL, USUAL_INTERVAL = 0.001, sys.getswitchinterval()


class SwitchInterval:
    """The time after which a thread that computes lets another one continue, such as one that has read from a database.

    It is shorter while handlers compute: see docs/decisions/0065-switch-interval.md.
    """

    def __init__(self) -> None:
        self._measured = (time.monotonic(), time.process_time())

    def adapt(self, attempt_seconds: float) -> None:
        """Set the interval, from the average duration of attempts and the CPU time since the last call."""
        (since, used), self._measured = self._measured, (time.monotonic(), time.process_time())
        elapsed, cpu_seconds = self._measured[0] - since, self._measured[1] - used
        computes = attempt_seconds >= COMPUTING_SECONDS and cpu_seconds >= elapsed * COMPUTING_SHARE
        sys.setswitchinterval(COMPUTING_INTERVAL if computes else USUAL_INTERVAL)

    def restore(self) -> None:
        sys.setswitchinterval(USUAL_INTERVAL)


#: Signals that arrive within this time after the first one count as copies of it: a wrapper such as ``uv run`` or
#: ``tini`` forwards a signal that the service manager or the terminal has also sent to the worker.
COPIES_SECONDS = 0.25


class StopRequest:
    """A request to stop, by a signal or another thread. A signal that is not a copy of the first makes it urgent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signalled_at: float | None = None
        self.is_made = False
        #: Whether not to wait for running handlers.
        self.is_urgent = False
        #: Whether a supervisor decides about urgency. Its workers may receive a signal twice, at any interval: from the
        #: sender and from the supervisor.
        self.has_supervisor = False

    def make(self) -> None:
        self.is_made = True

    def make_urgent(self) -> None:
        self.is_made = self.is_urgent = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT. Only sets attributes, because a handler may run in the middle of anything."""
        if self._signalled_at is None:
            self._signalled_at = self._clock()
        elif not (self.has_supervisor or self.expects_copies):
            self.is_urgent = True
        self.is_made = True

    @property
    def expects_copies(self) -> bool:
        """Whether the first signal arrived so recently that another one would be a copy of it."""
        return self._signalled_at is not None and self._clock() - self._signalled_at <= COPIES_SECONDS


def _restore_signals() -> None:
    """Let SIGTERM and SIGINT end a process that a handler has forked. A stop request in it would have no effect."""
    for number, usual in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if isinstance(getattr(signal.getsignal(number), "__self__", None), StopRequest):
            signal.signal(number, usual)


call_in_forks(_restore_signals)
