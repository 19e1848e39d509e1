"""A pool whose children are used many times."""

import threading
import time

from django_jobchains.children.idle_children import IdleChildren
from django_jobchains.children.pool_errors import PoolClosed, PoolKeyConflict, PoolTimeout
from django_jobchains.children.pooled_child import PooledChild
from django_jobchains.children.process_pool import ProcessPool
from django_jobchains.handlers.abort_signal import refuse_on_event_loop
from django_jobchains.isolation import GRACE_SECONDS, MESSAGE_LIMIT, FallbackCallback, Isolation


class ReusablePool(ProcessPool):
    """Up to ``max_workers`` processes, each used by one caller at a time, and again after its release.

    While there is room, ``acquire`` creates a child. After that, or if a new child does not start within the timeout,
    idle children of the key are used in turn. If there is none, the longest-idle child of another key is replaced. See
    ``Isolation`` for the arguments.
    """

    level = "process"

    def __init__(
        self,
        max_workers: int = 1,
        max_jobs_per_worker: int | None = None,
        max_rss: int | str | None = None,
        idle_ttl: float | None = None,
        *,
        memory_limit: int | str | None = None,
        message_limit: int | str = MESSAGE_LIMIT,
        cpu_seconds: float | None = None,
        grace_seconds: float = GRACE_SECONDS,
        minimal_env: bool = False,
        setup: str | None = None,
        strict: bool = False,
        on_fallback: FallbackCallback | None = None,
    ) -> None:
        isolation = Isolation(
            "process",
            max_workers=max_workers,
            max_jobs_per_worker=max_jobs_per_worker,
            max_rss=max_rss,
            idle_ttl=idle_ttl,
            memory_limit=memory_limit,
            message_limit=message_limit,
            cpu_seconds=cpu_seconds,
            grace_seconds=grace_seconds,
            minimal_env=minimal_env,
            setup=setup,
            strict=strict,
            on_fallback=on_fallback,
        )
        self._open(isolation)

    def start_anew(self) -> None:
        super().start_anew()
        self.max_workers = self.concurrency
        self._changed = threading.Condition()
        self._idle = IdleChildren(self._changed, self.isolation.idle_ttl)
        self._busy: set[PooledChild] = set()
        self._creating = 0
        #: How many threads wait for a child.
        self.waiting = 0

    def acquire(self, key: str = "default", timeout: float | None = None) -> PooledChild:
        """Return a child for this key. Raises ``PoolTimeout`` after ``timeout`` seconds, or ``PoolClosed``.

        A strict pool raises ``PoolKeyConflict`` instead of replacing a child of another key.
        """
        refuse_on_event_loop("pool.acquire() would block", "'await pool.arun(…)'")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            child = self._idle_or_room(key, deadline)
        if child is not None and child.key == key:
            return child
        try:
            return self._create(key, deadline, timeout or 0, replaced=child)
        except PoolTimeout:
            with self._changed:
                self._idle.drop_dead()
                if child := self._take_idle(key):
                    return child
            raise

    def _idle_or_room(self, key: str, deadline: float | None) -> PooledChild | None:
        """Return an idle child of the key, or the one that a new child is to replace, or None if there is room.

        The new child counts from now on.
        """
        started = time.monotonic()
        while True:
            if self._is_closed:
                raise PoolClosed
            self._idle.drop_dead()
            replaced = None if self._has_room() else self._take_another(key)
            if self._has_room():
                self._creating += 1
                return replaced
            if child := self._take_idle(key):
                return child
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise PoolTimeout(key, time.monotonic() - started)
            self.waiting += 1
            try:
                self._changed.wait(remaining)
            finally:
                self.waiting -= 1

    def _take_idle(self, key: str) -> PooledChild | None:
        if child := self._idle.take(key):
            self._busy.add(child)
        return child

    def _has_room(self) -> bool:
        return len(self._idle) + self._idle.ending + len(self._busy) + self._creating < self.max_workers

    def _take_another(self, key: str) -> PooledChild | None:
        """Remove and return the longest-idle child of another key, if no idle one has this key."""
        if not self._idle or self._idle.has(key):
            return None
        if self.isolation.strict:
            if any(child.key == key for child in self._busy):
                return None
            raise PoolKeyConflict(key)
        return self._idle.take_oldest()

    def _create(self, key: str, deadline: float | None, timeout: float, replaced: PooledChild | None) -> PooledChild:
        """Start a child, outside of the lock, after the end of the one that it replaces."""
        child = None
        launcher = self._launcher
        try:
            if replaced is not None:
                replaced.end()
            child = launcher.launch(key, deadline, timeout)
        finally:
            with self._changed:
                self._creating -= 1
                is_closed = self._is_closed
                if child is not None and not is_closed:
                    self._busy.add(child)
                self._changed.notify_all()
        if is_closed:
            child.end()
            raise PoolClosed
        return child

    def release(self, child: PooledChild, *, broken: bool = False) -> None:
        """Keep the child for the next user, unless it has died, has reached a limit, or still runs a call.

        ``broken``: end it, because its state is not trusted.
        """
        is_kept = not broken and self._is_reusable(child)
        with self._changed:
            renewed = child.renewed() if is_kept and child in self._busy else None
            if renewed is not None:
                self._idle.add(renewed)
                self._forget(child)
                return
        if child.end():
            with self._changed:  # The process has counted until its end.
                self._forget(child)

    def _forget(self, child: PooledChild) -> None:
        self._busy.discard(child)
        self._changed.notify_all()

    def _is_reusable(self, child: PooledChild) -> bool:
        limits = self.isolation
        if child.level != limits.level or child.is_busy or child.is_signalled or not child.is_alive:
            return False
        if limits.max_jobs_per_worker is not None and child.jobs >= limits.max_jobs_per_worker:
            return False
        return limits.max_rss_bytes is None or child.rss <= limits.max_rss_bytes

    @property
    def size(self) -> int:
        """The number of live children, idle and in use."""
        with self._changed:
            self._idle.drop_dead()
            return len(self._idle) + sum(child.is_alive for child in self._busy)

    @property
    def children(self) -> tuple[PooledChild, ...]:
        """The live children, with the children in use first."""
        with self._changed:
            self._idle.drop_dead()
            return (*self._busy, *self._idle)

    def is_full(self) -> bool:
        """Return whether there is no room for another child. Children that are being created count."""
        with self._changed:
            self._idle.drop_dead()
            return not self._is_closed and not self._has_room()

    def is_saturated(self) -> bool:
        """Return whether no child is idle, and there is no room for another, so that ``acquire`` would wait."""
        with self._changed:
            self._idle.drop_dead()
            return not (self._is_closed or self._has_room() or self._idle)

    def terminate(self) -> None:
        """Dispose of the pool: kill its children. Running calls and waiting callers raise ``PoolClosed``.

        A second call, and a late ``release``, do nothing.
        """
        with self._changed:
            self._is_closed = True
            idle, busy = self._idle.take_all(), list(self._busy)
            self._busy.clear()
            self._changed.notify_all()
        super().terminate()
        self._launcher.close()
        for child in busy:
            child.close()
        for child in idle:
            child.close()
            child.end()
