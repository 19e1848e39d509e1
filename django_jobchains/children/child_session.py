"""The interface of all pools, and the use of one child in a ``with`` block."""

from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol

from django_jobchains.children.pool_calls import StreamedCall
from django_jobchains.children.pooled_child import PooledChild
from django_jobchains.children.transient_pool import TransientPool
from django_jobchains.handlers.abort_signal import AbortSignal


class ChildPool(Protocol):
    """Hands out children, each to one user at a time. Thread-safe."""

    def acquire(self, key: str = "default", timeout: float | None = None) -> PooledChild:
        """Return a child for this key. Raises ``PoolTimeout`` after ``timeout`` seconds, or ``PoolClosed``."""

    def release(self, child: PooledChild, *, broken: bool = False) -> None:
        """Return a child to the pool. ``broken``: end it, because its state is not trusted."""

    def run(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: float | None = None,
        signal: AbortSignal | None = None,
    ) -> Any:
        """Acquire a child, call a function in it, and release it. ``timeout``: for the call."""

    async def arun(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:
        """``run`` for async code. If the task is cancelled, the call is aborted, and the child is released."""

    def stream(
        self, target: str, payloads: Iterable[Any], *, key: str = "default", timeout: float | None = None
    ) -> Iterator[StreamedCall]:
        """Call a function with each payload, a limited number at once, and yield the calls as they end."""

    def astream(
        self, target: str, payloads: Iterable[Any], *, key: str = "default", timeout: float | None = None
    ) -> AsyncIterator[StreamedCall]:
        """``stream`` for async code."""

    def next_request_id(self) -> int:
        """Return the number of the next call, from 0."""

    @property
    def size(self) -> int:
        """The number of live children; always 0 for the transient pool."""

    def is_full(self) -> bool:
        """Return whether there is no room for another child. Live children and children being created count."""

    def is_saturated(self) -> bool:
        """Return whether no child is idle, and there is no room for another: ``acquire`` would wait."""

    def terminate(self) -> None:
        """Dispose of the pool: kill its children. Running calls and waiting callers raise ``PoolClosed``.

        A second call, and a late ``release``, do nothing.
        """


class ChildSession:
    """Acquires a child, and releases it at the end of the ``with`` block.

    Without a pool, the child is a fresh process that ends with the block. ``timeout``: for ``acquire``.
    """

    def __init__(self, pool: ChildPool | None = None, key: str = "default", timeout: float | None = None) -> None:
        self._pool = TransientPool() if pool is None else pool
        self._key = key
        self._timeout = timeout
        self._child: PooledChild | None = None

    def __enter__(self) -> PooledChild:
        if self._child is not None:
            raise RuntimeError("This ChildSession is in use. Create one for each child.")
        self._child = self._pool.acquire(self._key, self._timeout)
        return self._child

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if self._child is not None:
            self._pool.release(self._child)
            self._child = None
