"""Keeps callers from waiting for a server that is unavailable."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_jobchains.text.errors import describe

MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0


class Unreachable(Exception):
    """The call was not attempted, because the server did not respond a moment ago."""

    def __init__(self, seconds: float, error: BaseException) -> None:
        super().__init__(f"the server is not called for another {seconds:.1f} s, after {describe(error)}")


class CircuitBreaker:
    """Rejects calls for a while after a failure. Each further failure doubles the pause, and any response ends it.

    ``failures``: the exceptions that mean that the server is unavailable. Any other exception is a response.
    """

    def __init__(self, *failures: type[Exception]) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._pause = MIN_PAUSE_SECONDS
        self._next_at = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Raise ``Unreachable`` during a pause. After it, one caller probes the server while the others still fail."""
        is_probe = self._enter()
        try:
            yield
        except self._failures as error:
            self._open(error, is_probe=is_probe)
            raise
        except Exception:
            self._close()
            raise
        self._close()

    def _enter(self) -> bool:
        with self._lock:
            if self._error is None:
                return False
            now = time.monotonic()
            if now < self._next_at:
                raise Unreachable(self._next_at - now, self._error)
            self._next_at = now + self._pause
            return True

    def _open(self, error: BaseException, *, is_probe: bool) -> None:
        with self._lock:
            if self._error is not None and not is_probe:
                return  # calls that were under way at the first failure do not count again
            self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS) if is_probe else MIN_PAUSE_SECONDS
            self._error, self._next_at = error, time.monotonic() + self._pause

    def _close(self) -> None:
        with self._lock:
            self._error = None
