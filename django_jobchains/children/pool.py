"""Pools of child processes: who gets which child, calls for sync and async callers, and the end of a pool."""

import asyncio
import atexit
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, TypedDict, Unpack

from django_jobchains.children.child_process import close_preload
from django_jobchains.children.limits import cpu_count
from django_jobchains.children.pooled_child import Launcher, PooledChild
from django_jobchains.db import call_in_forks
from django_jobchains.exceptions import PoolClosed, PoolKeyConflict, PoolTimeout
from django_jobchains.handlers.abort_signal import AbortSignal, call_on, refuse_on_event_loop
from django_jobchains.isolation import FallbackCallback, Isolation, Level
from django_jobchains.values import DurationLike, timeout_seconds


class ChildPool(Protocol):
    """The protocol of pools, whose children have one user at a time. Thread-safe. See ``Pool`` for the methods."""

    def acquire(self, key: str = "default", timeout: DurationLike | None = None) -> PooledChild: ...
    def release(self, child: PooledChild, *, broken: bool = False) -> None: ...
    def run(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: DurationLike | None = None,
        signal: AbortSignal | None = None,
    ) -> Any: ...
    async def arun(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: DurationLike | None = None,  # noqa: ASYNC109
    ) -> Any: ...
    def stream(
        self, target: str, payloads: Iterable[Any], *, key: str = "default", timeout: DurationLike | None = None
    ) -> Iterator["StreamedCall"]: ...
    def astream(
        self, target: str, payloads: Iterable[Any], *, key: str = "default", timeout: DurationLike | None = None
    ) -> AsyncGenerator["StreamedCall", None]: ...
    def next_request_id(self) -> int: ...
    @property
    def size(self) -> int: ...
    def is_full(self) -> bool: ...
    def is_saturated(self) -> bool: ...
    def terminate(self) -> None: ...


class Pool:
    """The children that an ``Isolation`` describes. ``imports``: modules that children import first."""

    level: ClassVar[Level]

    def __init__(self, isolation: Isolation, imports: Sequence[str] = ()) -> None:
        if isolation.level != self.level:
            raise ValueError(
                f"level={isolation.level!r} does not fit this pool, whose child processes are {self.level!r}."
            )
        self.isolation = isolation
        self._imports = imports
        self._ids = itertools.count()
        self._is_closed = False
        self.start_anew()
        _pools.add(self)

    @classmethod
    def of(cls, isolation: Isolation, imports: Sequence[str] = ()) -> Self:
        """Return a pool with the limits of an ``Isolation``."""
        pool = cls.__new__(cls)
        Pool.__init__(pool, isolation, imports)
        return pool

    def start_anew(self) -> None:
        """Begin without children, in a new pool or in a forked process."""
        #: The threads of ``arun``, ``stream`` and ``astream``: one for each call that may have a child.
        self.threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="jobchains-pool-call")
        self._launcher = Launcher(self.isolation, self.next_request_id, self._imports)
        self._changed = threading.Condition()
        #: The longest idle first.
        self._idle: deque[PooledChild] = deque()
        self._busy: set[PooledChild] = set()
        self._creating = 0
        #: How many idle processes end now. They count until they have ended.
        self._ending = 0
        self._has_expiry_thread = False

    @property
    def concurrency(self) -> int:
        """How many calls of ``arun`` and of streams run at the same time. The others wait in turn, without a thread."""
        return self.isolation.max_workers or (1 if self.level == "process" else cpu_count())

    @property
    def is_weakened(self) -> bool:
        """Whether calls run on threads of this process, because child processes do not start."""
        return bool(self._launcher.problem)

    def next_request_id(self) -> int:
        """Return the number of the next call, from 0."""
        return next(self._ids)

    # Children

    def acquire(self, key: str = "default", timeout: DurationLike | None = None) -> PooledChild:
        """Return a child for this key. Raises ``PoolTimeout`` after the ``timeout``, or ``PoolClosed``.

        A strict pool raises ``PoolKeyConflict`` instead of replacing a child of another key.
        """
        refuse_on_event_loop("pool.acquire() would block", "'await pool.arun(…)'")
        seconds = timeout_seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            child = self._idle_or_room(key, deadline)
        if child is None or child.key != key:
            child = self._create(key, deadline, replaced=child)
        if child is None:
            with self._changed:
                self._drop_dead()
                child = self._take_idle(key)
        if child is None:
            raise PoolTimeout(key, seconds or 0)
        return child

    def _idle_or_room(self, key: str, deadline: float | None) -> PooledChild | None:
        """Return an idle child of the key, or the one that a new child is to replace, or None if there is room.

        The new child counts from now on.
        """
        started = time.monotonic()
        while True:
            if self._is_closed:
                raise PoolClosed
            self._drop_dead()
            replaced = None if self._has_room() else self._take_another(key)
            if self._has_room():
                self._creating += 1
                return replaced
            if child := self._take_idle(key):
                return child
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise PoolTimeout(key, time.monotonic() - started)
            self._changed.wait(remaining)

    def _has_room(self) -> bool:
        count = len(self._idle) + self._ending + len(self._busy) + self._creating
        return self.level == "transient" or count < self.concurrency

    def _take_idle(self, key: str) -> PooledChild | None:
        """Remove and return the child of this key that has been idle for the longest time."""
        child = next((child for child in self._idle if child.key == key), None)
        if child is not None:
            self._idle.remove(child)
            self._busy.add(child)
        return child

    def _take_another(self, key: str) -> PooledChild | None:
        """Remove and return the longest-idle child of another key, if no idle one has this key."""
        if not self._idle or any(child.key == key for child in self._idle):
            return None
        if self.isolation.strict:
            if any(child.key == key for child in self._busy):
                return None
            raise PoolKeyConflict(key)
        return self._idle.popleft()

    def _drop_dead(self) -> None:
        """Forget children that were killed while they were idle."""
        for child in [child for child in self._idle if not child.is_alive]:
            self._idle.remove(child)
            child.end()

    def _create(self, key: str, deadline: float | None, replaced: PooledChild | None) -> PooledChild | None:
        """Start a child, outside of the lock, after the one that it replaces has ended. Return None at the deadline."""
        child = None
        launcher = self._launcher
        try:
            if replaced is not None:
                replaced.end()
            child = launcher.launch(key, deadline)
        finally:
            with self._changed:
                self._creating -= 1
                is_closed = self._is_closed
                if child is not None and not is_closed:
                    self._busy.add(child)
                self._changed.notify_all()
        if child is not None and is_closed:
            child.end()
            raise PoolClosed
        return child

    def release(self, child: PooledChild, *, broken: bool = False) -> None:
        """Keep the child for the next user, unless it has died, has reached a limit, or still runs a call.

        ``broken``: end it, because its state is not trusted. The child of a ``TransientPool`` always ends.
        """
        is_kept = not broken and self._is_reusable(child)
        with self._changed:
            renewed = child.renewed() if is_kept and child in self._busy else None
            if renewed is not None:
                self._idle.append(renewed)
                if self.isolation.idle_ttl is not None and not self._has_expiry_thread:
                    threading.Thread(target=self._expire, name="jobchains-idle-children", daemon=True).start()
                    self._has_expiry_thread = True
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
        if child.level != "process" or child.is_busy or child.is_signalled or not child.is_alive:
            return False
        if limits.max_jobs_per_worker is not None and child.jobs >= limits.max_jobs_per_worker:
            return False
        return limits.max_rss_bytes is None or child.rss <= limits.max_rss_bytes

    def _expire(self) -> None:
        """End children that are idle for ``idle_ttl`` seconds, as long as there are idle children."""
        with self._changed:
            while self._idle and (ttl := self.isolation.idle_ttl) is not None:
                remaining = self._idle[0].since + ttl - time.monotonic()
                if remaining > 0:
                    self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
                    continue
                child = self._idle.popleft()
                self._ending += 1
                self._changed.release()
                try:
                    child.end()
                finally:
                    self._changed.acquire()
                    self._ending -= 1
                    self._changed.notify_all()
            self._has_expiry_thread = False

    @property
    def children(self) -> tuple[PooledChild, ...]:
        """The live children, with the children in use first."""
        with self._changed:
            self._drop_dead()
            return (*self._busy, *self._idle)

    @property
    def size(self) -> int:
        """The number of live children, idle and in use."""
        with self._changed:
            self._drop_dead()
            return len(self._idle) + sum(child.is_alive for child in self._busy)

    def is_full(self) -> bool:
        """Return whether there is no room for another child. Children that are being created count."""
        with self._changed:
            self._drop_dead()
            return not self._is_closed and not self._has_room()

    def is_saturated(self) -> bool:
        """Return whether no child is idle, and there is no room for another, so that ``acquire`` would wait."""
        with self._changed:
            self._drop_dead()
            return not (self._is_closed or self._has_room() or self._idle)

    def terminate(self) -> None:
        """Dispose of the pool: kill its children. Running calls and waiting callers raise ``PoolClosed``.

        A second call, and a late ``release``, do nothing.
        """
        with self._changed:
            self._is_closed = True
            idle, busy = list(self._idle), list(self._busy)
            self._idle.clear()
            self._busy.clear()
            self._changed.notify_all()
        self.threads.shutdown(wait=False)
        self._launcher.close()
        for child in (*busy, *idle):
            child.close()
        for child in idle:
            child.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.terminate()

    # Calls

    def run(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: DurationLike | None = None,
        signal: AbortSignal | None = None,
    ) -> Any:
        """Acquire a child, call a function in it, and release it. See ``PooledChild.run``.

        ``timeout`` begins with the call; the wait for a child has no limit.
        """
        with ChildSession(self, key) as child:
            return child.run(target, payload, timeout=timeout, signal=signal)

    async def arun(
        self,
        target: str,
        payload: Any = None,
        *,
        key: str = "default",
        timeout: DurationLike | None = None,  # noqa: ASYNC109
    ) -> Any:
        """``run`` for async code. If the task is cancelled, the call is aborted, and the child is released.

        The task ends after that: a function that does not stop gets SIGTERM after half of the grace, and is killed at
        its end.
        """
        return await _CallOnThread(self, target, payload, key, timeout).aresult()

    def stream(
        self, target: str, payloads: Iterable[Any], *, key: str = "default", timeout: DurationLike | None = None
    ) -> Iterator["StreamedCall"]:
        """Call a function with each payload, and yield the calls as they end. Up to ``concurrency`` run in parallel.

        ``payloads`` is read as calls begin, so it may be long. ``timeout``: for each call. When the loop over the
        stream ends early, no more calls begin, and those that run are aborted, as in ``arun``.
        """
        refuse_on_event_loop("pool.stream() would block", "'async for call in pool.astream(…)'")
        return self._stream(target, payloads, key, timeout)

    def _stream(
        self, target: str, payloads: Iterable[Any], key: str, timeout: DurationLike | None
    ) -> Iterator["StreamedCall"]:
        unread = enumerate(payloads)
        running: dict[Future[Any], tuple[int, Any, _CallOnThread]] = {}
        try:
            while True:
                for index, payload in itertools.islice(unread, self.concurrency - len(running)):
                    call = _CallOnThread(self, target, payload, key, timeout)
                    running[call.future] = index, payload, call
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index, payload, _ = running.pop(future)
                    yield StreamedCall(index, payload, future)
        finally:
            wait([future for future, (_, _, call) in running.items() if call.cancel()])

    async def astream(
        self,
        target: str,
        payloads: Iterable[Any],
        *,
        key: str = "default",
        timeout: DurationLike | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator["StreamedCall", None]:
        """``stream`` for async code. To end it early, close it: ``async with contextlib.aclosing(…) as calls``."""
        unread = enumerate(payloads)
        running: dict[asyncio.Task[Any], tuple[int, Any]] = {}
        try:
            while True:
                for index, payload in itertools.islice(unread, self.concurrency - len(running)):
                    call = _CallOnThread(self, target, payload, key, timeout)
                    running[asyncio.create_task(call.aresult())] = index, payload
                if not running:
                    return
                for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                    yield StreamedCall(*running.pop(task), task)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class PoolOptions(TypedDict, total=False):
    """The options of both pools. See ``Isolation``."""

    memory_limit: int | str | None
    message_limit: int | str
    cpu_seconds: DurationLike | None
    grace_seconds: DurationLike
    minimal_env: bool
    setup: str | None
    strict: bool
    on_fallback: FallbackCallback | None


class ReusablePool(Pool):
    """A pool of up to ``max_workers`` processes. Each has one user at a time, and is used again after its release.

    ``acquire`` creates children until there are ``max_workers``. After that, or if a new child does not start within
    the timeout, it uses idle children with the same key in turn. If there are none, it replaces the child of another
    key that has been idle for the longest time. See ``Isolation`` for the arguments.
    """

    level = "process"

    def __init__(
        self,
        max_workers: int = 1,
        max_jobs_per_worker: int | None = None,
        max_rss: int | str | None = None,
        idle_ttl: DurationLike | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        super().__init__(
            Isolation(
                "process",
                max_workers=max_workers,
                max_jobs_per_worker=max_jobs_per_worker,
                max_rss=max_rss,
                idle_ttl=idle_ttl,
                **options,
            )
        )


class TransientPool(Pool):
    """A pool with a new process for each ``acquire``, which ends at its release. See ``Isolation`` for the arguments.

    The number of processes is not limited, so the pool is never full, and ``acquire`` never waits for another user.
    """

    level = "transient"

    def __init__(self, **options: Unpack[PoolOptions]) -> None:
        super().__init__(Isolation("transient", **options))

    @property
    def size(self) -> int:
        """Always 0, because the pool keeps no children."""
        return 0


class ChildSession:
    """Acquires a child, and releases it at the end of the ``with`` block.

    Without a pool, the child is a new process that ends with the block. ``timeout`` is the timeout of ``acquire``.
    """

    def __init__(
        self, pool: ChildPool | None = None, key: str = "default", timeout: DurationLike | None = None
    ) -> None:
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


@dataclass(frozen=True)
class StreamedCall:
    """A call of a stream that has ended. ``index`` is the position of its payload, from 0."""

    index: int
    payload: Any
    _ended: "Future[Any] | asyncio.Task[Any]"

    def result(self) -> Any:
        """Return the result of the function, or raise the error of the call, as ``PooledChild.run`` does."""
        return self._ended.result()


class _CallOnThread:
    """A call on a thread of the pool: it acquires a child, runs the function, and releases the child.

    Raises ``PoolClosed`` if the pool was terminated.
    """

    def __init__(self, pool: Pool, target: str, payload: Any, key: str, timeout: DurationLike | None) -> None:
        self._pool = pool
        self._signal = AbortSignal()
        #: Whether it has got a child. Until then, a call that was cancelled need not be waited for.
        self._has_child = False
        try:
            self.future = pool.threads.submit(self._run, target, payload, key, timeout)
        except RuntimeError as error:  # The pool, or the interpreter, has ended.
            raise PoolClosed from error

    def _run(self, target: str, payload: Any, key: str, timeout: DurationLike | None) -> Any:
        self._signal.raise_if_aborted()
        with ChildSession(self._pool, key) as child:
            self._has_child = True
            return child.run(target, payload, timeout=timeout, signal=self._signal)

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


_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


def terminate_pools() -> None:
    """End every pool and child of this process, so that no thread waits for one forever."""
    for pool in list(_pools):
        pool.terminate()
    close_preload()


def _start_anew() -> None:
    for pool in list(_pools):
        pool.start_anew()


# Called before the interpreter waits for non-daemon threads, because one of them may wait for a child that hangs.
# ``concurrent.futures`` does the same, and has registered its function before, so that it is called after this one.
# An ``atexit`` function is called after that wait, which is too late.
getattr(threading, "_register_atexit", atexit.register)(terminate_pools)
call_in_forks(_start_anew)  # The children belong to the process that was forked.
