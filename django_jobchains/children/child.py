"""What a function in a child process uses: its abort signal, and messages to the process that called it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal


@dataclass(frozen=True)
class RunningCall:
    """The call that a child runs. ``send``: passes a JSON value to the caller's ``on_message``."""

    id: int
    send: Callable[[Any], object]
    signal: AbortSignal = field(default_factory=AbortSignal)
    _parts: dict[str, AbortSignal] = field(default_factory=dict)

    def part(self, name: str) -> AbortSignal:
        """Return the signal of a part of the call, such as one item of many."""
        return self._parts.setdefault(name, AbortSignal())

    def abort(self, reason: AbortReason, part: str | None = None) -> None:
        """Abort the signal of the call, or of the part with this name."""
        signal = self.signal if part is None else self.part(part)
        signal.abort(reason)


#: Set around each call. Threads that the function starts do not have it: pass the signal to them.
running_call: ContextVar[RunningCall] = ContextVar("running_call")


def current_signal() -> AbortSignal:
    """Return the signal of the running call, which ``Call.abort`` aborts. Raises ``RuntimeError`` outside of a call."""
    return _current_call().signal


def send(message: Any) -> None:
    """Send a JSON value to the ``on_message`` callback of the caller, such as the progress of the call."""
    _current_call().send(message)


def _current_call() -> RunningCall:
    try:
        return running_call.get()
    except LookupError:
        raise RuntimeError(
            "This code does not run in a call of a pool's child, or it runs on a thread other than the function's: "
            "get the signal in the function, and pass it to the thread."
        ) from None
