"""The event loop of a child process, on which async handlers run one at a time."""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from logging import getLogger
from typing import Any, TypeVar

from django_jobchains.attempts.handler_task import follow_tasks
from django_jobchains.text.errors import log_error
from django_jobchains.worker.call_threads import QueryThreadPool, SideThreads, Threads, TransactionThreadPool

logger = getLogger("django_jobchains")

ResultT = TypeVar("ResultT")


def this_loop(worker: str) -> "ChildLoop":
    """Return the event loop of this thread, created at its first use."""
    loop = _this_thread.loop = _this_thread.loop or ChildLoop(worker)
    return loop


class ChildLoop:
    """An event loop, with one thread for transactions and one for queries of Django's async ORM."""

    def __init__(self, worker: str) -> None:
        self.transactions = TransactionThreadPool(_threads("transactions", worker))
        self._queries = QueryThreadPool(_threads("queries", worker))
        self._loop = asyncio.new_event_loop()
        follow_tasks(self._loop)
        self._loop.set_default_executor(SideThreads())

    def run(self, attempt: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run an attempt as a task, and return what it returns."""
        task = self._loop.create_task(self._run(attempt), context=contextvars.Context())
        while not task.done():
            try:
                self._loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:  # Raised by another task, and passed on by asyncio.
                log_error(logger, error, "A task on the event loop raised an exception. The loop continues: %s")
        return task.result()

    async def _run(self, attempt: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        self._queries.use()
        return await attempt()


def _threads(name: str, worker: str) -> Threads:
    return Threads(f"async-{name}", 1, worker=worker, give_up=_give_up)


def _give_up() -> None:
    """End this process, because one of its threads cannot continue."""
    os._exit(1)


class _LoopOfThread(threading.local):
    """The event loop of a thread: after a fallback, threads of the worker process replace child processes."""

    loop: ChildLoop | None = None


_this_thread = _LoopOfThread()
