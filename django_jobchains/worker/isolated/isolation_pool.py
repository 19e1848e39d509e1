"""The child processes in which a worker runs attempts."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.children.frames import MessageTooLarge
from django_jobchains.children.limits import cpu_count
from django_jobchains.isolation import Fallback, Isolation
from django_jobchains.pools import (
    ChildCrashed,
    ChildStartFailed,
    PoolClosed,
    PooledChild,
    RemoteError,
    ReusablePool,
    TransientPool,
)
from django_jobchains.store.workers import PoolState
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import ChildRecycled, IsolationFailed, IsolationWeakened
from django_jobchains.text.errors import describe

#: What children import before their first attempt, so that the import does not count towards its time limit.
CHILD_MODULES = ("django_jobchains.worker.isolated.child_attempt",)
#: How long no job is claimed for a strict isolation after its child process could not start.
RETRY_SECONDS = 10.0
#: The number of characters of a key that are reported.
KEY_LENGTH = 100


class IsolationPool:
    """The pool of the types with an equal isolation, in one worker process. ``slots``: the number of its slots."""

    def __init__(self, isolation: Isolation, slots: int, worker: str) -> None:
        self.isolation = isolation
        default = slots if isolation.level == "transient" else cpu_count()
        #: How many child processes are used at the same time: no more than there are slots.
        self.max_workers = min(isolation.max_workers or default, slots)
        self._worker = worker
        self._closed_until = 0.0
        self._lock = threading.Lock()
        self._recycled = self._crashed = self._killed = 0
        kind = TransientPool if isolation.level == "transient" else ReusablePool
        limited = replace(isolation, max_workers=self.max_workers, on_fallback=self._on_fallback)
        try:
            self._pool: ReusablePool | TransientPool = kind.of(limited, CHILD_MODULES)
        except ChildStartFailed as error:
            raise ImproperlyConfigured(f"isolation={isolation.level!r} is strict: {error}") from error

    @property
    def closed_seconds(self) -> float:
        """How long no job is to be claimed, because child processes cannot start."""
        return max(self._closed_until - time.monotonic(), 0.0)

    def acquire(self) -> PooledChild:
        """Return a child. Raises ``PoolClosed``, or ``ChildStartFailed`` if the isolation is strict."""
        try:
            return self._pool.acquire(self.isolation.key)
        except ChildStartFailed as error:
            self._closed_until = time.monotonic() + RETRY_SECONDS
            report(IsolationFailed(self._worker, error.level, error.reason, RETRY_SECONDS))
            raise

    def release(self, child: PooledChild) -> None:
        has_died = not child.is_alive
        self._pool.release(child)
        if child.is_ended and not (has_died or child.is_signalled) and child.level == "process":
            with self._lock:
                self._recycled += 1
            if observes(ChildRecycled):
                report(ChildRecycled(self._worker, self.isolation.level, self.isolation.key[:KEY_LENGTH], child.pid))

    @contextmanager
    def reading(self, child: PooledChild) -> Iterator[None]:
        """Inside this block, messages of the child are read. One that cannot be read is a crash: the child is killed.

        The handler has been called, so its attempt must count.
        """
        try:
            yield
        except (PoolClosed, ChildCrashed):
            raise
        except Exception as error:
            if isinstance(error, RemoteError) and error.type_name != MessageTooLarge.__name__:
                raise
            child.kill()
            raise ChildCrashed(-signal.SIGKILL, f"Its reply cannot be read: {describe(error)}") from error

    def attempts_left(self, child: PooledChild) -> int | None:
        """Return how many attempts the child may run before it is replaced; None for no limit."""
        limit = self.isolation.max_jobs_per_worker
        return None if limit is None else max(limit - child.jobs, 1)

    def is_too_large(self, child: PooledChild) -> bool:
        """Return whether the child is to be replaced, because it uses too much memory."""
        limit = self.isolation.max_rss_bytes
        return limit is not None and child.rss > limit

    def count_death(self, *, was_killed: bool) -> None:
        """Count a child that died while it ran an attempt. ``was_killed``: because the attempt did not stop."""
        with self._lock:
            self._killed += was_killed
            self._crashed += not was_killed

    def state(self) -> PoolState:
        """Return the state that the worker reports in its heartbeat and its health."""
        children = self._pool.children
        sizes = [child.rss for child in children if child.level != "thread"]  # These have the memory of this process.
        busy = sum(child.is_busy for child in children)
        with self._lock:
            return PoolState(
                level=self.isolation.level,
                key=self.isolation.key[:KEY_LENGTH],
                workers=len(children),
                busy=busy,
                max_workers=self.max_workers,
                is_saturated=busy >= self.max_workers,
                cannot_start=self.closed_seconds > 0,
                is_weakened=self._pool.is_weakened,
                rss_bytes=sum(sizes),
                largest_rss_bytes=max(sizes, default=0),
                recycled=self._recycled,
                crashed=self._crashed,
                killed=self._killed,
            )

    def terminate(self) -> None:
        """Kill all child processes."""
        self._pool.terminate()

    def _on_fallback(self, fallback: Fallback) -> None:
        report(IsolationWeakened(self._worker, fallback.requested, fallback.actual, fallback.reason))
        if self.isolation.on_fallback is not None:
            self.isolation.on_fallback(fallback)
