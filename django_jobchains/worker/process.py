"""The process of a worker or supervisor: requests to stop, and its memory."""

import time
from collections.abc import Callable
from types import FrameType

#: Signals that arrive within this time after the first one count as copies of it: a wrapper such as ``uv run`` or
#: ``tini`` forwards a signal that the service manager or the terminal has also sent to the worker.
COPIES_SECONDS = 0.25


class StopRequest:
    """A request to stop, by a signal or another thread. A signal that is not a copy of the first makes it urgent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signalled_at: float | None = None
        self.is_made = False
        #: Whether not to wait for running handlers.
        self.is_urgent = False
        #: Whether a supervisor decides about urgency. Its workers may receive a signal twice, at any interval: from the
        #: sender and from the supervisor.
        self.has_supervisor = False

    def make(self) -> None:
        self.is_made = True

    def make_urgent(self) -> None:
        self.is_made = self.is_urgent = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT. Only sets attributes, because a handler may run in the middle of anything."""
        if self._signalled_at is None:
            self._signalled_at = self._clock()
        elif not (self.has_supervisor or self.expects_copies):
            self.is_urgent = True
        self.is_made = True

    @property
    def expects_copies(self) -> bool:
        """Whether the first signal arrived so recently that another one would be a copy of it."""
        return self._signalled_at is not None and self._clock() - self._signalled_at <= COPIES_SECONDS


def megabytes(size: int) -> str:
    return f"{size / 1024**2:.0f}M"
