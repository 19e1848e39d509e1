"""The threads on which async handlers use the database. Each has its own connections and is joined with a deadline.

There are two kinds: a transaction has its own thread until it ends, and queries of Django's async ORM share threads.
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

from django_jobchains.attempts.async_calls import Result
from django_jobchains.attempts.handler_task import create_library_task
from django_jobchains.db.connections import ThreadConnections, close_thread_connections
from django_jobchains.exceptions import ConnectionLost, TransactionLeftOpen
from django_jobchains.worker.threads import OwnedThread

ResultT = TypeVar("ResultT")


class CallThread(Executor):
    """Runs calls in their order, on a thread that starts with the first one."""

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
        """The number of calls that wait or run."""
        return self._calls.qsize() + self._is_calling

    def post(self, call: Callable[[], object]) -> None:
        """Add a call. Only the thread of the event loop may do so."""
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
        return create_library_task(sync_to_async(Result[ResultT], thread_sensitive=False, executor=own)(function))

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
    except (StopIteration, GeneratorExit) as error:  # If a future raised them, they would end the coroutine.
        future.set_exception(RuntimeError(f"A function for another thread raised {error!r}."))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)


class Threads:
    """Up to ``count`` call threads, created when they are needed."""

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
        """Return the names of the threads that still run at the deadline."""
        return [thread.name for thread in self.made if not thread.join(deadline)]


class TransactionThreadPool:
    """Lends each thread to one attempt at a time, first come, first served. Only the event loop's thread uses it."""

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
            if future.done() and not future.cancelled():  # A thread was lent at the same moment.
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
        """Remove the waiting attempts, after the event loop has failed."""
        self._waiting.clear()


class QueryThreadPool:
    """Runs calls of ``sync_to_async``, which Django's async ORM uses. An attempt always uses the same thread."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def use(self) -> None:
        """Use this pool in the current task, and in those it starts."""
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
    def __init__(self, threads: QueryThreadPool) -> None:
        self._threads = threads
        self._thread: CallThread | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._thread = self._thread or self._threads.least_busy()
        return self._thread.submit(_query, partial(function, *args, **kwargs))


def _query(function: Callable[[], Any]) -> Any:
    """Run a query on a shared connection. A transaction left open is an error: it would include writes of others.

    Other attempts may iterate over results on the connection, so errors that do not concern it do not close it.
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
    except Exception:  # It is too broken to be checked: the next query opens another.
        close_thread_connections()


class SideThreads(ThreadPoolExecutor):
    """The executor of ``asyncio.to_thread``. Closes the connections of each call after it."""

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
            close_thread_connections()
            with self._count_lock:
                self.running -= 1
