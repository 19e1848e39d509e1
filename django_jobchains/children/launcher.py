"""Starts the children of a pool, or threads that replace them if child processes cannot start."""

import threading
import time
from collections.abc import Callable, Sequence
from logging import getLogger

from django_jobchains.children.child_process import MAX_START_SECONDS, ChildProcess, PreloadLost
from django_jobchains.children.child_thread import ChildThread
from django_jobchains.children.limits import limit_problem, start_problem
from django_jobchains.children.pooled_child import PooledChild
from django_jobchains.exceptions import ChildStartFailed, PoolClosed
from django_jobchains.isolation import Fallback, Isolation
from django_jobchains.text.errors import log_error

logger = getLogger("django_jobchains")

#: How long a pool stays at a weaker level before it tries to start child processes again.
PAUSE_SECONDS = 30.0


class Launcher:
    """Starts children.

    The constructor raises ``ChildStartFailed`` if this operating system does not support a strict isolation.

    ``next_request_id``: numbers the calls of all children. ``imports``: modules that the calls need.
    """

    def __init__(self, isolation: Isolation, next_request_id: Callable[[], int], imports: Sequence[str] = ()) -> None:
        self.isolation = isolation
        self._next_request_id = next_request_id
        self._imports = imports
        self._lock = threading.Lock()
        self._starting: set[ChildProcess] = set()
        self._is_closed = False
        #: Why no child process could start, if threads replace them.
        self.problem = ""
        self._retry_at = 0.0
        if problem := start_problem() or limit_problem(isolation):
            if isolation.strict:
                raise ChildStartFailed(isolation.level, problem)
            logger.warning("Isolation %r is weaker on this system: %s.", isolation.level, problem)

    def launch(self, key: str, deadline: float | None) -> PooledChild | None:
        """Start a child. Return None at the deadline. Raises ``PoolClosed`` after ``close``.

        Raises ``ChildStartFailed`` if the isolation is strict, and no child process can start.
        """
        peer = None
        if not self.problem or self.isolation.strict or time.monotonic() >= self._retry_at:
            try:
                peer = self._child(deadline)
            except ChildStartFailed as error:
                if self._is_closed:
                    raise PoolClosed from error
                if self.isolation.strict:
                    raise
                self.problem = error.reason
                self._retry_at = time.monotonic() + PAUSE_SECONDS
                logger.warning("Functions run without isolation %r for now: %s", self.isolation.level, error.reason)
            else:
                if peer is None:
                    return None
                self.problem = ""
        return PooledChild(
            peer or self._thread(), key=key, isolation=self.isolation, next_request_id=self._next_request_id
        )

    def close(self) -> None:
        """End the children that are being started."""
        with self._lock:
            self._is_closed = True
            starting = list(self._starting)
        for child in starting:
            child.kill()

    def _child(self, deadline: float | None) -> ChildProcess | None:
        """Return a child process that is ready, or None at the deadline."""
        if problem := start_problem():
            raise ChildStartFailed(self.isolation.level, problem)
        try:
            return self._ready_child(deadline)
        except PreloadLost:
            if self._is_closed:
                raise
            return self._ready_child(deadline)  # with another preload process

    def _ready_child(self, deadline: float | None) -> ChildProcess | None:
        child = ChildProcess(self.isolation, self._imports)
        with self._lock:
            self._starting.add(child)
            is_closed = self._is_closed
        is_ready = False
        try:
            if is_closed:
                child.kill()
            seconds = MAX_START_SECONDS if deadline is None else max(deadline - time.monotonic(), 0)
            is_ready = child.wait_until_ready(seconds)
            return child if is_ready else None
        finally:
            if not is_ready:
                child.end()
            with self._lock:
                self._starting.discard(child)

    def _thread(self) -> ChildThread:
        """Fall back to a thread. If a transient child does not start, a reusable child would not start either."""
        if self.isolation.on_fallback is not None:
            try:
                self.isolation.on_fallback(Fallback(self.isolation.level, "thread", self.problem))
            except Exception as error:
                log_error(logger, error, "An on_fallback callback failed: %s")
        return ChildThread(self.isolation.message_limit_bytes)
