"""The abort signal, which asks a handler to stop."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import getLogger
from typing import Any, Literal

from django.core.exceptions import SynchronousOnlyOperation

from django_jobchains.exceptions import JobAborted
from django_jobchains.text.errors import log_error
from django_jobchains.values import ANY_DURATION, DurationLike

logger = getLogger("django_jobchains")

AbortReason = Literal[
    "taken_by_another_worker", "already_completed", "not_found", "error", "cancelled", "timed_out", "worker_stopping"
]


class AbortSignal:
    """A signal that asks a handler to stop. ``reason`` is the first reason, or None. Thread-safe."""

    # There may be thousands of signals per second. They share a lock, and most never set any of these attributes.
    _lock = threading.Lock()
    _event: threading.Event | None = None
    _async_event: asyncio.Event | None = None
    _callbacks: tuple[Callable[[], object], ...] = ()
    reason: AbortReason | None = None
    #: The monotonic time of the abort.
    aborted_at: float | None = None
    #: Whether the attempt's own transaction has the job row locked, so that no other worker can take the job.
    is_row_locked = False
    #: Whether the handler has returned. A lost lease is then detected when the outcome is written.
    is_over = False
    #: Whether the attempt may end in another process, which reports this before.
    ends_elsewhere = False
    #: Whether the worker has given up the attempt, because it did not stop. It must not write anything then.
    is_detached = False

    @property
    def listeners(self) -> list[Callable[[], object]]:
        """Callbacks of this package, which do not block."""
        # Unlike cached_property, setdefault creates only one list if two threads ask for it.
        return self.__dict__.setdefault("_listeners", [])  # type: ignore[no-any-return]

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def raise_if_aborted(self) -> None:
        """Raise ``JobAborted`` if the attempt was asked to stop."""
        if self.reason is not None:
            raise JobAborted(self.reason)

    def wait(self, seconds: DurationLike) -> bool:
        """Sleep for this time, or until the attempt is asked to stop. Return whether it was asked to stop."""
        pause = ANY_DURATION.check("seconds", seconds)
        refuse_on_event_loop("job.signal.wait() would block", "'await job.signal.async_wait(seconds)'")
        with self._lock:
            if self.aborted:
                return True
            self._event = self._event or threading.Event()
        return self._event.wait(min(pause, threading.TIMEOUT_MAX))

    async def async_wait(self, seconds: DurationLike) -> bool:
        """``wait`` for async code, in tasks that the handler shields or starts.

        The handler's own task is cancelled when the attempt is asked to stop.
        """
        pause = ANY_DURATION.check("seconds", seconds)
        if self._async_event is None:
            event = self._async_event = asyncio.Event()
            loop = asyncio.get_running_loop()
            self.listeners.append(lambda: call_on(loop, event.set))
            if self.aborted:
                return True
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._async_event.wait()
        return self.aborted

    def on_abort(self, callback: Callable[[], object]) -> None:
        """Call a function on abort, in a separate thread, or now in this thread if the signal is already aborted."""
        with self._lock:
            if not self.aborted:
                self._callbacks += (callback,)
                return
        _call_all([callback])

    def abort(self, reason: AbortReason) -> None:
        with self._lock:
            if self.aborted:
                return
            self.reason, self.aborted_at = reason, time.monotonic()
        if self._event is not None:
            self._event.set()
        _call_all(self.listeners)
        if self._callbacks:  # they may block, and this thread has other work
            threading.Thread(target=_call_all, args=[self._callbacks], name="jobchains-on-abort", daemon=True).start()

    # Between the attempt and the worker that may detach it

    @property
    def has_ended(self) -> bool:
        """Whether the attempt, or the worker instead of it, is about to write the outcome."""
        return self.is_over or self.is_detached

    def lock_row(self) -> bool:
        """Note that the attempt has locked the row. Return False if it was detached, and must release it."""
        with self._lock:
            self.is_row_locked = not self.is_detached
            return self.is_row_locked

    def unlock_row(self) -> None:
        """Note that the attempt no longer locks the row."""
        self.is_row_locked = False

    def end(self) -> bool:
        """Note that the handler has returned. Return False if the attempt was detached before."""
        with self._lock:
            self.is_over = not self.is_detached
            return self.is_over

    def detach(self) -> bool:
        """Let the worker write the outcome. Return False if it already does, or the attempt is about to write it."""
        with self._lock:
            if self.is_detached or self.is_over or self.is_row_locked:
                return False
            self.is_detached = True
            return True


def _call_all(callbacks: Sequence[Callable[[], object]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            log_error(logger, error, "An on_abort callback failed: %s")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call a function on an event loop, from any thread, unless the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def refuse_on_event_loop(problem: str, remedy: str) -> None:
    """Raise ``SynchronousOnlyOperation`` on the thread of a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousOnlyOperation(f"{problem} the event loop: use {remedy}.")
