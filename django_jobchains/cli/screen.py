"""The output of a subcommand: lines for people, cut to the terminal and colored, or JSON for programs."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from django.core.management.base import OutputWrapper
from django.core.management.color import Style, no_style

from django_jobchains.cli.formatting import ElapsedTimes, as_json
from django_jobchains.cli.tables import Cell, Column, Paint, fitted, table, width_of
from django_jobchains.text.errors import printable
from django_jobchains.text.humanize import number
from django_jobchains.text.redaction import redacted, redacted_text

#: A progress bar appears after this time, and is updated this often.
PROGRESS_DELAY_SECONDS = 0.5
PROGRESS_INTERVAL_SECONDS = 0.1
PROGRESS_WIDTH = 24


class Screen:
    """Writes lines, tables or JSON. ``width`` is None if the output is not a terminal: then nothing is cut."""

    def __init__(
        self,
        out: OutputWrapper,
        errors: OutputWrapper,
        style: Style,
        form: str,
        times: ElapsedTimes,
        *,
        is_painted: bool = False,
    ) -> None:
        self.out = out
        self.errors = errors
        self.form = form
        self.times = times
        self.style: Any = style if is_painted or out.isatty() else no_style()
        self.width = terminal_width(out)

    @property
    def is_json(self) -> bool:
        return self.form == "json"

    @property
    def bold(self) -> Paint:
        return self.style.HTTP_INFO  # type: ignore[no-any-return]

    def paint_of(self, status: str) -> Paint | None:
        """Return the style of a status, or of the state of a worker or queue."""
        names = {
            "completed": "SUCCESS",
            "failed": "ERROR",
            "stale": "ERROR",
            "stuck": "ERROR",
            "running": "MIGRATE_HEADING",
            "blocked": "WARNING",
            "cannot": "ERROR",
            "saturated": "WARNING",
            "paused": "WARNING",
            "stopping": "WARNING",
            "cancelled": "NOTICE",
        }
        return getattr(self.style, names[status]) if status in names else None

    def status(self, status: str) -> Cell:
        return Cell(status, self.paint_of(status.split(maxsplit=1)[0] if status else ""))

    def json(self, value: Any) -> None:
        """Write JSON, redacted, in ASCII: control characters in the data must not reach a terminal."""
        self.out.write(json.dumps(redacted(value), default=as_json, indent=2 if self.out.isatty() else None))

    def heading(self, text: str) -> None:
        self.out.write(self.style.MIGRATE_HEADING(printable(redacted_text(text))))

    def line(self, text: str = "", paint: Paint | None = None, *, begin: str = "") -> None:
        """Write a line, redacted and cut to the width; ``begin`` is not painted."""
        begin, text = printable(redacted_text(begin)), printable(redacted_text(text))
        if self.width is not None:
            begin = fitted(begin, self.width - 1)
            text = fitted(text, self.width - width_of(begin))
        self.out.write(begin + (paint(text) if paint and text else text))

    def lines(self, text: str, begin: str = "") -> None:
        """Write every line of a text, redacted but not cut."""
        for part in redacted_text(text).splitlines():
            self.out.write(printable(begin) + printable(part))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], begin: str = "") -> None:
        """Write a table with redacted cells."""
        width = None if self.width is None else self.width - len(begin)
        for line in table(columns, [[_redacted_cell(cell) for cell in row] for row in rows], width, self.bold):
            self.out.write(begin + line)


class ProgressBar:
    """A bar for operations that take longer than half a second. It disappears at the end, and needs a terminal."""

    def __init__(self, stream: OutputWrapper, noun: str) -> None:
        self._stream = stream
        self._noun = noun
        self._next_at = time.monotonic() + PROGRESS_DELAY_SECONDS
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")

    def show(self, done: int, share: float) -> None:
        """Update the bar. ``share`` is from 0 to 1."""
        if time.monotonic() < self._next_at or not self._stream.isatty():
            return
        self._next_at, self._is_shown = time.monotonic() + PROGRESS_INTERVAL_SECONDS, True
        filled = round(max(0.0, min(1.0, share)) * PROGRESS_WIDTH)
        self._write(
            f"\r\x1b[K{'█' * filled}{'░' * (PROGRESS_WIDTH - filled)} {share:4.0%}  {number(done)} {self._noun}"
        )

    def _write(self, text: str) -> None:
        self._stream.write(text, ending="")
        self._stream.flush()


def _redacted_cell(cell: Cell | str) -> Cell | str:
    return redacted_text(cell) if isinstance(cell, str) else cell._replace(text=redacted_text(cell.text))


def terminal_width(out: OutputWrapper) -> int | None:
    """Return ``COLUMNS`` or the width of the terminal, or None without both."""
    if os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]) > 0:
        return int(os.environ["COLUMNS"])
    if not out.isatty():
        return None
    return shutil.get_terminal_size().columns


def discard_output() -> None:
    """Discard what is still to be written, also at the end of the process, because the reader has closed the pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
