"""Keeps an enqueue from waiting for a server that is away."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_jobchains.texts import describe

FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 10.0


class Unreachable(Exception):
    """Not even tried: the server did not answer a moment ago."""

    def __init__(self, seconds: float, error: BaseException) -> None:
        super().__init__(f"the server is not asked for another {seconds:.1f} s, after {describe(error)}")


class Breaker:
    """After a failure nobody tries for a while: each further failure doubles it, any answer ends it.

    ``failures``: the errors that say that the server is away. Any other is an answer.
    """

    def __init__(self, *failures: type[Exception]) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._next_at = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Raises ``Unreachable`` while nobody is to try. After a pause one caller finds out, the others go on."""
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
                return  # many were under way when it failed: one failure
            self._pause = min(self._pause * 2, LAST_PAUSE_SECONDS) if is_probe else FIRST_PAUSE_SECONDS
            self._error, self._next_at = error, time.monotonic() + self._pause

    def _close(self) -> None:
        with self._lock:
            self._error = None
