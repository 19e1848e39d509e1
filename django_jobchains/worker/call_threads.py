"""The threads on which async handlers meet the database. Owned: each has its connections, and ends by a deadline.

Two kinds: a transaction takes a thread for itself until it ends; the single queries of Django's async ORM share some.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import DataError, Error, IntegrityError

from django_jobchains.async_attempts import Result, apart
from django_jobchains.exceptions import ConnectionLost, TransactionLeftOpen
from django_jobchains.hygiene import ThreadConnections, close_all
from django_jobchains.worker.threads import OwnedThread

ResultT = TypeVar("ResultT")


class CallThread(Executor):
    """Runs the calls it is given, in their order. Starts with the first."""

    def __init__(self, name: str, *, worker: str, give_up: Callable[[], None]) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = OwnedThread(name, self._step, worker=worker, give_up=give_up)
        self._is_started = False
        self._is_calling = False

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def backlog(self) -> int:
        """Calls that wait or run."""
        return self._calls.qsize() + self._is_calling

    def post(self, call: Callable[[], object]) -> None:
        """From the thread of the event loop only."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        self._calls.put(call)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.post(partial(_resolve, future, partial(function, *args, **kwargs)))
        return future

    def call(self, function: Callable[[], ResultT]) -> "asyncio.Future[Result[ResultT]]":
        own: Any = self
        return apart(sync_to_async(Result[ResultT], thread_sensitive=False, executor=own)(function))

    def stop(self) -> None:
        self._thread.stop()
        self._calls.put(None)

    def join(self, deadline: float) -> bool:
        return self._thread.join(deadline)

    def _step(self) -> None:
        call = self._calls.get()
        if call is None:
            return
        self._is_calling = True
        try:
            call()
        finally:
            self._is_calling = False


def _resolve(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = function()
    except (StopIteration, GeneratorExit) as error:  # raised through a future they would end the coroutines
        future.set_exception(RuntimeError(f"A function for another thread raised {error!r}."))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)


class Threads:
    """At most ``count`` call threads, made as they are needed."""

    def __init__(self, name: str, count: int, *, worker: str, give_up: Callable[[], None]) -> None:
        self.count = count
        self.made: list[CallThread] = []
        self._name = name
        self._worker = worker
        self._give_up = give_up

    def make(self) -> CallThread:
        name = f"{self._name}-{len(self.made) + 1}"
        self.made.append(CallThread(name, worker=self._worker, give_up=self._give_up))
        return self.made[-1]

    def stop(self) -> None:
        for thread in self.made:
            thread.stop()

    def join(self, deadline: float) -> list[str]:
        """The names of those that still run at the deadline."""
        return [thread.name for thread in self.made if not thread.join(deadline)]


class TransactionThreads:
    """Lends each thread to one attempt at a time, in the order in which they ask. Used on the event loop alone."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._free: list[CallThread] = []
        self._waiting: deque[asyncio.Future[CallThread]] = deque()

    async def borrow(self) -> CallThread:
        if self._free:
            return self._free.pop()
        if len(self._threads.made) < self._threads.count:
            return self._threads.make()
        future: asyncio.Future[CallThread] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it was lent at the same moment
                self.give_back(future.result())
            raise

    def give_back(self, thread: CallThread) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(thread)
                return
        self._free.append(thread)

    def forget_waiting(self) -> None:
        """The event loop has died, and with it those who waited."""
        self._waiting.clear()


class QueryThreads:
    """Runs what ``sync_to_async`` is given, so Django's async ORM. An attempt keeps to the thread it had first."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def use(self) -> None:
        """For the current task, and those it starts."""
        context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[context] = _QueriesOfAttempt(self)
        SyncToAsync.thread_sensitive_context.set(context)

    def least_busy(self) -> CallThread:
        made = self._threads.made
        best = min(made, key=lambda thread: thread.backlog, default=None)
        if best is None or (best.backlog and len(made) < self._threads.count):
            return self._threads.make()
        return best


class _QueriesOfAttempt(Executor):
    def __init__(self, threads: QueryThreads) -> None:
        self._threads = threads
        self._thread: CallThread | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._thread = self._thread or self._threads.least_busy()
        return self._thread.submit(_query, partial(function, *args, **kwargs))


def _query(function: Callable[[], Any]) -> Any:
    """The connection is shared: a transaction that is left open would swallow what others write.

    Others may iterate over results on it, so errors that say nothing of the connection do not end it.
    """
    connections = ThreadConnections()
    try:
        value = function()
    except BaseException as error:
        is_suspicious = isinstance(error, Error) and not isinstance(error, IntegrityError | DataError)
        connections.clean(suspicious=is_suspicious)
        raise
    _check(connections)
    return value


def _check(connections: ThreadConnections) -> None:
    try:
        connections.check()
        connections.clean()
    except (TransactionLeftOpen, ConnectionLost):
        connections.clean()
        raise
    except Exception:  # too broken to be asked: the next query opens another
        close_all()


class SideThreads(ThreadPoolExecutor):
    """What ``asyncio.to_thread`` uses. Connections that are opened there are closed after each call."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="jobchains-async-side")
        self._count_lock = threading.Lock()
        self.running = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._call, function, *args, **kwargs)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._count_lock:
            self.running += 1
        try:
            return function(*args, **kwargs)
        finally:
            close_all()
            with self._count_lock:
                self.running -= 1
