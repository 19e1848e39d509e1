"""The base of the pools of child processes: their options, calls for sync and async callers, and their end."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Self

from django_jobchains.children.launcher import Launcher
from django_jobchains.children.limits import cpu_count
from django_jobchains.children.open_pools import add_pool
from django_jobchains.children.pool_calls import Arguments, PoolCall, StreamedCall, astream, stream
from django_jobchains.children.pool_errors import PoolClosed
from django_jobchains.children.pooled_child import PooledChild
from django_jobchains.handlers.abort_signal import AbortSignal, refuse_on_event_loop
from django_jobchains.isolation import Isolation, Level, check_level


class ProcessPool(ABC):
    level: ClassVar[Level]
    isolation: Isolation

    @classmethod
    def of(cls, isolation: Isolation, imports: Sequence[str] = ()) -> Self:
        """Return a pool with the limits of an ``Isolation``. ``imports``: modules that children import first."""
        pool = cls.__new__(cls)
        pool._open(isolation, imports)
        return pool

    def _open(self, isolation: Isolation, imports: Sequence[str] = ()) -> None:
        check_level(isolation, self.level)
        self.isolation = isolation
        self._imports = imports
        self._ids = itertools.count()
        self._is_closed = False
        self.start_anew()
        add_pool(self)

    def start_anew(self) -> None:
        """Begin without children, in a new pool or in a forked process."""
        #: The threads of ``arun``, ``stream`` and ``astream``: one for each call that may have a child.
        self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="jobchains-pool-call")
        self._launcher = Launcher(self.isolation, self.next_request_id, self._imports)

    @property
    def concurrency(self) -> int:
        """How many calls of ``arun`` and of streams run at once. The others wait in turn, without a thread."""
        return self.isolation.max_workers or (1 if self.level == "process" else cpu_count())

    @abstractmethod
    def acquire(self, key: str = "default", timeout: float | None = None) -> PooledChild: ...

    @abstractmethod
    def release(self, child: PooledChild, *, broken: bool = False) -> None: ...

    def run(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: float | None = None,
        signal: AbortSignal | None = None,
    ) -> Any:
        """Acquire a child, call a function in it, and release it. See ``PooledChild.run``.

        ``timeout`` begins with the call; the wait for a child has no limit.
        """
        child = self.acquire(key)
        try:
            return child.run(target, payload, timeout=timeout, signal=signal)
        finally:
            self.release(child)

    async def arun(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:
        """``run`` for async code. If the task is cancelled, the call is aborted, and the child is released.

        The task ends after that: a function that does not stop gets SIGTERM after half of the grace, and is killed at
        its end.
        """
        return await PoolCall(self, Arguments(target, key, timeout), payload).aresult()

    def stream(
        self, target: str, payloads: Iterable[Any], *, key: str = "default", timeout: float | None = None
    ) -> Iterator[StreamedCall]:
        """Call a function with each payload, and yield the calls as they end. Up to ``concurrency`` run at once.

        ``payloads`` is read as calls begin, so it may be long. ``timeout``: for each call. When the loop over the
        stream ends early, no more calls begin, and those that run are aborted, as in ``arun``.
        """
        refuse_on_event_loop("pool.stream() would block", "'async for call in pool.astream(…)'")
        return stream(self, Arguments(target, key, timeout), payloads)

    def astream(
        self,
        target: str,
        payloads: Iterable[Any],
        *,
        key: str = "default",
        timeout: float | None = None,
    ) -> AsyncIterator[StreamedCall]:
        """``stream`` for async code. To end it early, close it: ``async with contextlib.aclosing(…) as calls``."""
        return astream(self, Arguments(target, key, timeout), payloads)

    def next_request_id(self) -> int:
        """Return the number of the next call, from 0."""
        return next(self._ids)

    @property
    def is_weakened(self) -> bool:
        """Whether calls run on threads of this process, because child processes do not start."""
        return bool(self._launcher.problem)

    def submit(self, call: PoolCall) -> "Future[Any]":
        """Run a call on one of the pool's threads. Raises ``PoolClosed``."""
        try:
            return self._threads.submit(call)
        except RuntimeError as error:  # The pool, or the interpreter, has ended.
            raise PoolClosed from error

    def terminate(self) -> None:
        self._threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.terminate()
