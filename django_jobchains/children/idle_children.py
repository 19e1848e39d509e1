"""The unused children of a pool, the longest idle first."""

import threading
import time
from collections import deque
from collections.abc import Iterator

from django_jobchains.children.pooled_child import PooledChild


class IdleChildren:
    """The idle children of a pool. The pool holds its lock, the lock of ``changed``, while it calls a method.

    Children that are idle for ``ttl`` seconds end. A thread waits for this as long as there are idle children.
    """

    def __init__(self, changed: threading.Condition, ttl: float | None) -> None:
        self._changed = changed
        self._ttl = ttl
        self._children: deque[tuple[float, PooledChild]] = deque()
        #: How many processes end now. They count until they have ended.
        self.ending = 0
        self._has_thread = False

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[PooledChild]:
        return (child for _, child in self._children)

    def has(self, key: str) -> bool:
        return any(child.key == key for child in self)

    def add(self, child: PooledChild) -> None:
        self._children.append((time.monotonic(), child))
        if self._ttl is not None and not self._has_thread:
            threading.Thread(target=self._expire, args=[self._ttl], name="jobchains-idle-children", daemon=True).start()
            self._has_thread = True

    def take(self, key: str) -> PooledChild | None:
        """Remove and return the child of this key that has been idle for the longest time."""
        for entry in self._children:
            if entry[1].key == key:
                self._children.remove(entry)
                return entry[1]
        return None

    def take_oldest(self) -> PooledChild:
        return self._children.popleft()[1]

    def take_all(self) -> list[PooledChild]:
        children = list(self)
        self._children.clear()
        return children

    def drop_dead(self) -> None:
        """Forget children that were killed while they were idle."""
        for entry in [entry for entry in self._children if not entry[1].is_alive]:
            self._children.remove(entry)
            entry[1].end()

    def _expire(self, ttl: float) -> None:
        with self._changed:
            while self._children:
                remaining = self._children[0][0] + ttl - time.monotonic()
                if remaining > 0:
                    self._changed.wait(remaining)
                else:
                    self._end(self.take_oldest())
            self._has_thread = False

    def _end(self, child: PooledChild) -> None:
        self.ending += 1
        self._changed.release()
        try:
            child.end()
        finally:
            self._changed.acquire()
            self.ending -= 1
            self._changed.notify_all()
