"""A bar on the terminal for what takes long; nothing where there is no terminal."""

import time
from types import TracebackType
from typing import Self

from django.core.management.base import OutputWrapper

from django_jobchains.console.words import number

FIRST_SECONDS = 0.5
EVERY_SECONDS = 0.1
WIDTH = 24


class Progress:
    """Shown from half a second on, and gone at the end."""

    def __init__(self, stream: OutputWrapper, noun: str) -> None:
        self._stream = stream
        self._noun = noun
        self._next_at = time.monotonic() + FIRST_SECONDS
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")

    def show(self, done: int, share: float) -> None:
        """``share``: of the way, 0 to 1."""
        if time.monotonic() < self._next_at or not self._stream.isatty():
            return
        self._next_at, self._is_shown = time.monotonic() + EVERY_SECONDS, True
        filled = round(max(0.0, min(1.0, share)) * WIDTH)
        self._write(f"\r\x1b[K{'█' * filled}{'░' * (WIDTH - filled)} {share:4.0%}  {number(done)} {self._noun}")

    def _write(self, text: str) -> None:
        self._stream.write(text, ending="")
        self._stream.flush()
