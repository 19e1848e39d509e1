"""The asyncio task in which an async handler runs: how an abort cancels it, and the tasks that it leaves running."""

import asyncio
import contextvars
from collections.abc import Coroutine
from logging import getLogger
from typing import Any, TypeVar

from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal, call_on

logger = getLogger("django_jobchains")

ResultT = TypeVar("ResultT")

#: The unfinished tasks that the handler of the running attempt has started.
side_tasks: "contextvars.ContextVar[set[asyncio.Task[Any]] | None]" = contextvars.ContextVar(
    "jobchains_side_tasks", default=None
)


class HandlerTask:
    """A cancellation ends the handler, but not the calls that run on a thread."""

    def __init__(self, signal: AbortSignal) -> None:
        #: Unfinished tasks that the handler started.
        self.side_tasks: set[asyncio.Task[Any]] = set()
        #: The handler's task while the handler runs.
        self.task: asyncio.Task[Any] | None = None
        #: Whether the event loop has died, so that nothing can be awaited.
        self.is_loop_dead = False
        self._signal = signal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Use the current task from now on, and cancel it when the attempt is asked to stop."""
        self.task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        side_tasks.set(self.side_tasks)
        self._signal.listeners.append(self._on_abort)
        if self._signal.aborted:
            self._on_abort()

    def end(self, label: str) -> bool:
        """Cancel what the handler left running. Return False if this was done before. ``label`` is its name in logs."""
        if self.task is None:
            return False
        self.task = None
        if self.side_tasks:
            text = "%s left %d tasks running; they are cancelled. Await them, or use asyncio.TaskGroup."
            logger.warning(text, label, len(self.side_tasks))
        for task in list(self.side_tasks):
            task.cancel()
        return True

    def as_abort(self, error: BaseException) -> BaseException:
        """Return ``JobAborted`` for a cancellation that the signal caused."""
        if self._signal.reason is None or not _is_stop(error):
            return error
        aborted = JobAborted(self._signal.reason)
        aborted.__cause__ = error
        return aborted

    def _on_abort(self) -> None:
        if self._loop is not None:
            call_on(self._loop, self._cancel)

    def _cancel(self) -> None:
        """Cancel the handler once, so that it can clean up, and not the steps that follow it."""
        if self.task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self.task.cancel()


def _is_stop(error: BaseException) -> bool:
    """Return whether the error consists of cancellations and aborts only, including those in a task group."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_stop(part) for part in error.exceptions)
    return isinstance(error, asyncio.CancelledError | JobAborted)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Record the tasks that handlers start on this loop in their ``side_tasks``."""
    loop.set_task_factory(_create_task)  # type: ignore[arg-type]


def create_library_task(coroutine: Coroutine[Any, Any, ResultT]) -> "asyncio.Task[ResultT]":
    """Create a task that, unlike the handler's side tasks, is not cancelled when the handler ends."""
    context = contextvars.copy_context()
    context.run(side_tasks.set, None)
    return asyncio.get_running_loop().create_task(coroutine, context=context)


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    tasks = side_tasks.get() if context is None else context.get(side_tasks)
    if tasks is not None and not task.done():
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return task
