"""The asyncio task in which an async handler runs: how an abort cancels it, and the tasks that it leaves running."""

import asyncio
from logging import getLogger
from typing import Any

from django_jobchains.attempts.async_tasks import side_tasks
from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal, call_on

logger = getLogger("django_jobchains")


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
