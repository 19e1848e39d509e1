"""Forwards an abort signal to a call, and ends the child if the call does not stop."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal


class Abortable(Protocol):
    def abort(self, reason: AbortReason) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class AbortWatch:
    """Inside its block, an abort reaches the call. SIGTERM follows after half of the grace, and SIGKILL at its end."""

    def __init__(self, call: Abortable, signal: AbortSignal | None, grace_seconds: float) -> None:
        self._call = call
        self._signal = signal
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._has_ended = False
        #: Set at the end. It is created by the first abort, because most calls are not aborted.
        self._end: threading.Event | None = None
        #: Why the call was aborted, or None.
        self.reason: AbortReason | None = None

    def __enter__(self) -> Self:
        if self._signal is not None:
            self._signal.listeners.append(self._on_abort)
            if self._signal.aborted:  # Aborted just before the listener was added.
                self._on_abort()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        with self._lock:
            self._has_ended = True
            if self._end is not None:
                self._end.set()
        if self._signal is not None:
            with suppress(ValueError):
                self._signal.listeners.remove(self._on_abort)

    def _on_abort(self) -> None:
        with self._lock:
            if self.reason is not None or self._signal is None or self._has_ended:
                return
            self.reason = self._signal.reason
            end = self._end = threading.Event()
        if self.reason is not None:
            self._call.abort(self.reason)
            threading.Thread(target=self._enforce, args=[end], name="jobchains-abort-watch", daemon=True).start()

    def _enforce(self, end: threading.Event) -> None:
        for stop in (self._call.terminate, self._call.kill):
            end.wait(self._grace_seconds / 2)
            with self._lock:  # The child may run another call as soon as this one has ended.
                if self._has_ended:
                    return
                stop()
