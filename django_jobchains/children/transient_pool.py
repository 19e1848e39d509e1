"""A pool whose children are used once."""

import threading
import time

from django_jobchains.children.pool_errors import PoolClosed
from django_jobchains.children.pooled_child import PooledChild
from django_jobchains.children.process_pool import ProcessPool
from django_jobchains.handlers.abort_signal import refuse_on_event_loop
from django_jobchains.isolation import GRACE_SECONDS, MESSAGE_LIMIT, FallbackCallback, Isolation


class TransientPool(ProcessPool):
    """A new process for each ``acquire``, which ends when it is released. See ``Isolation`` for the arguments.

    It has no limit of processes and nothing to clean up.
    """

    level = "transient"

    def __init__(
        self,
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
        self._open(
            Isolation(
                "transient",
                memory_limit=memory_limit,
                message_limit=message_limit,
                cpu_seconds=cpu_seconds,
                grace_seconds=grace_seconds,
                minimal_env=minimal_env,
                setup=setup,
                strict=strict,
                on_fallback=on_fallback,
            )
        )

    def start_anew(self) -> None:
        super().start_anew()
        self._lock = threading.Lock()
        self._children: set[PooledChild] = set()

    def acquire(self, key: str = "default", timeout: float | None = None) -> PooledChild:
        """Start a process. Raises ``PoolTimeout`` if that takes longer than ``timeout`` seconds, or ``PoolClosed``."""
        refuse_on_event_loop("pool.acquire() would block", "'await pool.arun(…)'")
        if self._is_closed:
            raise PoolClosed
        deadline = None if timeout is None else time.monotonic() + timeout
        child = self._launcher.launch(key, deadline, timeout or 0)
        if not self._add(child):
            child.end()
            raise PoolClosed
        return child

    def _add(self, child: PooledChild) -> bool:
        """Record that a child is in use. Return False if the pool was terminated in the meantime."""
        with self._lock:
            if not self._is_closed:
                self._children.add(child)
            return not self._is_closed

    def release(self, child: PooledChild, *, broken: bool = False) -> None:
        """End the process. ``broken`` makes no difference."""
        with self._lock:
            self._children.discard(child)
        child.end()

    @property
    def size(self) -> int:
        """Always 0: it keeps no children."""
        return 0

    @property
    def children(self) -> tuple[PooledChild, ...]:
        """The children in use."""
        with self._lock:
            return tuple(self._children)

    def is_full(self) -> bool:
        """Return False: there is always room."""
        return False

    def is_saturated(self) -> bool:
        """Return False: ``acquire`` never waits for another user."""
        return False

    def terminate(self) -> None:
        """Kill the processes that are in use. Their calls raise ``PoolClosed``, and so does ``acquire``."""
        with self._lock:
            self._is_closed = True
            children, self._children = self._children, set()
        super().terminate()
        self._launcher.close()
        for child in children:
            child.close()
