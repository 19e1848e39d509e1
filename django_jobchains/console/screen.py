"""Where a subcommand writes: lines for people, cut to the terminal and painted, or JSON for programs."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style, no_style

from django_jobchains.console.tables import Cell, Column, Paint, fitted, table, width_of
from django_jobchains.console.words import Times, as_json
from django_jobchains.redaction import redacted, redacted_text
from django_jobchains.texts import printable


class Screen:
    """``width`` None: it is no terminal, and nothing is cut."""

    def __init__(
        self,
        out: OutputWrapper,
        errors: OutputWrapper,
        style: Style,
        form: str,
        times: Times,
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
        """How a status, or the state of something, is painted."""
        names = {
            "completed": "SUCCESS",
            "failed": "ERROR",
            "stale": "ERROR",
            "stuck": "ERROR",
            "running": "MIGRATE_HEADING",
            "blocked": "WARNING",
            "paused": "WARNING",
            "stopping": "WARNING",
            "cancelled": "NOTICE",
        }
        return getattr(self.style, names[status]) if status in names else None

    def status(self, status: str) -> Cell:
        return Cell(status, self.paint_of(status.split(maxsplit=1)[0] if status else ""))

    def json(self, value: Any) -> None:
        """ASCII: what stands in the data cannot drive a terminal. Redacted as lines are."""
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
        """Every line of a text, whole; redacted."""
        for part in redacted_text(text).splitlines():
            self.out.write(printable(begin) + printable(part))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], begin: str = "") -> None:
        """Write a table, each cell of it redacted."""
        width = None if self.width is None else self.width - len(begin)
        for line in table(columns, [[_redacted_cell(cell) for cell in row] for row in rows], width, self.bold):
            self.out.write(begin + line)


def _redacted_cell(cell: Cell | str) -> Cell | str:
    return redacted_text(cell) if isinstance(cell, str) else cell._replace(text=redacted_text(cell.text))


def terminal_width(out: OutputWrapper) -> int | None:
    """Of the terminal, or as ``COLUMNS`` says; None where nobody does."""
    if os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]) > 0:
        return int(os.environ["COLUMNS"])
    if not out.isatty():
        return None
    return shutil.get_terminal_size().columns


def give_up_output() -> None:
    """Nobody reads on: what is still to be written goes nowhere, also at the end of the process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
