"""Calls of a pool on its own threads, for async callers, and for streams of results."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from django_jobchains.children.pooled_child import PooledChild
from django_jobchains.handlers.abort_signal import AbortSignal, call_on


class Pool(Protocol):
    @property
    def concurrency(self) -> int: ...
    def acquire(self, key: str = "default", timeout: float | None = None) -> PooledChild: ...
    def release(self, child: PooledChild, *, broken: bool = False) -> None: ...
    def submit(self, call: "PoolCall") -> "Future[Any]": ...


class Arguments(NamedTuple):
    """What the calls of a stream have in common."""

    target: str
    key: str
    timeout: float | None


class PoolCall:
    """A call on a thread of the pool: it acquires a child, runs the function, and releases the child."""

    def __init__(self, pool: Pool, arguments: Arguments, payload: Any) -> None:
        self._pool = pool
        self._arguments = arguments
        self._payload = payload
        self._signal = AbortSignal()
        #: Whether it has got a child. Until then, nobody has to wait for a call that was cancelled.
        self._has_child = False
        self.future = pool.submit(self)

    def __call__(self) -> Any:
        target, key, timeout = self._arguments
        self._signal.raise_if_aborted()
        child = self._pool.acquire(key)
        self._has_child = True
        try:
            return child.run(target, self._payload, timeout=timeout, signal=self._signal)
        finally:
            self._pool.release(child)

    def cancel(self) -> bool:
        """Abort the call. Return whether its end is worth a wait, because it has a child."""
        self._signal.abort("cancelled")
        self.future.cancel()
        return self._has_child and not self.future.done()

    async def aresult(self) -> Any:
        """Wait for the result. If the task is cancelled, abort the call, and wait until it has released its child."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self.future.add_done_callback(lambda future: call_on(loop, ended.set))
        try:
            await ended.wait()
        except asyncio.CancelledError:
            while self.cancel():
                with suppress(asyncio.CancelledError):
                    await ended.wait()
            raise
        return self.future.result()


@dataclass(frozen=True)
class StreamedCall:
    """A call of a stream that has ended. ``index``: the position of its payload, from 0."""

    index: int
    payload: Any
    _ended: "Future[Any] | asyncio.Task[Any]"

    def result(self) -> Any:
        """Return what the function returned, or raise the error that ended the call, as ``PooledChild.run`` does."""
        return self._ended.result()


def stream(pool: Pool, arguments: Arguments, payloads: Iterable[Any]) -> Iterator[StreamedCall]:
    unread = enumerate(payloads)
    running: dict[Future[Any], tuple[int, Any, PoolCall]] = {}
    try:
        while True:
            for index, payload in islice(unread, pool.concurrency - len(running)):
                call = PoolCall(pool, arguments, payload)
                running[call.future] = index, payload, call
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index, payload, _ = running.pop(future)
                yield StreamedCall(index, payload, future)
    finally:
        wait([future for future, (_, _, call) in running.items() if call.cancel()])


async def astream(pool: Pool, arguments: Arguments, payloads: Iterable[Any]) -> AsyncIterator[StreamedCall]:
    unread = enumerate(payloads)
    running: dict[asyncio.Task[Any], tuple[int, Any]] = {}
    try:
        while True:
            for index, payload in islice(unread, pool.concurrency - len(running)):
                running[asyncio.create_task(PoolCall(pool, arguments, payload).aresult())] = index, payload
            if not running:
                return
            for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                yield StreamedCall(*running.pop(task), task)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
