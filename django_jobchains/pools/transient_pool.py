"""A pool whose workers are used once."""

import threading
import time

from django_jobchains.handlers.abort_signal import refuse_on_event_loop
from django_jobchains.isolation import GRACE_SECONDS, MESSAGE_LIMIT, FallbackCallback, Isolation
from django_jobchains.pools.pool_errors import PoolClosed
from django_jobchains.pools.pooled_worker import PooledWorker
from django_jobchains.pools.process_pool import ProcessPool


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
        self._workers: set[PooledWorker] = set()

    def acquire(self, key: str = "default", timeout: float | None = None) -> PooledWorker:
        """Start a process. Raises ``PoolTimeout`` if that takes longer than ``timeout`` seconds, or ``PoolClosed``."""
        refuse_on_event_loop("pool.acquire() would block", "'await pool.arun(…)'")
        if self._is_closed:
            raise PoolClosed
        deadline = None if timeout is None else time.monotonic() + timeout
        worker = self._launcher.launch(key, deadline, timeout or 0)
        if not self._add(worker):
            worker.end()
            raise PoolClosed
        return worker

    def _add(self, worker: PooledWorker) -> bool:
        """Record that a worker is in use. Return False if the pool was terminated in the meantime."""
        with self._lock:
            if not self._is_closed:
                self._workers.add(worker)
            return not self._is_closed

    def release(self, worker: PooledWorker, *, broken: bool = False) -> None:
        """End the process. ``broken`` makes no difference."""
        with self._lock:
            self._workers.discard(worker)
        worker.end()

    @property
    def size(self) -> int:
        """Always 0: it keeps no workers."""
        return 0

    @property
    def workers(self) -> tuple[PooledWorker, ...]:
        """The workers in use."""
        with self._lock:
            return tuple(self._workers)

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
            workers, self._workers = self._workers, set()
        super().terminate()
        self._launcher.close()
        for worker in workers:
            worker.close()
