"""The unused workers of a pool, the longest idle first."""

import threading
import time
from collections import deque
from collections.abc import Iterator

from django_jobchains.pools.pooled_worker import PooledWorker


class IdleWorkers:
    """The idle workers of a pool. The pool holds its lock, the lock of ``changed``, while it calls a method.

    Workers that are idle for ``ttl`` seconds end. A thread waits for this as long as there are idle workers.
    """

    def __init__(self, changed: threading.Condition, ttl: float | None) -> None:
        self._changed = changed
        self._ttl = ttl
        self._workers: deque[tuple[float, PooledWorker]] = deque()
        #: How many processes end now. They count until they have ended.
        self.ending = 0
        self._has_thread = False

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[PooledWorker]:
        return (worker for _, worker in self._workers)

    def has(self, key: str) -> bool:
        return any(worker.key == key for worker in self)

    def add(self, worker: PooledWorker) -> None:
        self._workers.append((time.monotonic(), worker))
        if self._ttl is not None and not self._has_thread:
            threading.Thread(target=self._expire, args=[self._ttl], name="jobchains-idle-workers", daemon=True).start()
            self._has_thread = True

    def take(self, key: str) -> PooledWorker | None:
        """Remove and return the worker of this key that has been idle for the longest time."""
        for entry in self._workers:
            if entry[1].key == key:
                self._workers.remove(entry)
                return entry[1]
        return None

    def take_oldest(self) -> PooledWorker:
        return self._workers.popleft()[1]

    def take_all(self) -> list[PooledWorker]:
        workers = list(self)
        self._workers.clear()
        return workers

    def drop_dead(self) -> None:
        """Forget workers that were killed while they were idle."""
        for entry in [entry for entry in self._workers if not entry[1].is_alive]:
            self._workers.remove(entry)
            entry[1].end()

    def _expire(self, ttl: float) -> None:
        with self._changed:
            while self._workers:
                remaining = self._workers[0][0] + ttl - time.monotonic()
                if remaining > 0:
                    self._changed.wait(remaining)
                else:
                    self._end(self.take_oldest())
            self._has_thread = False

    def _end(self, worker: PooledWorker) -> None:
        self.ending += 1
        self._changed.release()
        try:
            worker.end()
        finally:
            self._changed.acquire()
            self.ending -= 1
            self._changed.notify_all()
