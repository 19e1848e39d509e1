"""The output of a subcommand: lines and tables for people, or JSON for programs.

On a terminal, rich (the extra ``cli``) colors them and cuts them to the width. Otherwise, they are plain text that is
not cut. Every text is redacted here, except in sentences, and its control characters are replaced.
"""

import io
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from typing import Any, NamedTuple
from uuid import UUID

from django.core.management.base import OutputWrapper
from django.db import Error as DatabaseError
from django.utils import timezone

from django_jobchains.db.setup import is_column_missing, is_table_missing
from django_jobchains.db.times import Times
from django_jobchains.payloads.codecs import Unreadable
from django_jobchains.store.errors import INSUFFICIENT_PRIVILEGE, sqlstate
from django_jobchains.text import errors
from django_jobchains.text.errors import printable
from django_jobchains.text.humanize import ago, number
from django_jobchains.text.redaction import redacted, redacted_text

#: The styles of rich for results, for titles, and for the states of jobs, workers, pools and queues.
STYLES = {
    "heading": "bold cyan",
    **dict.fromkeys(("success", "completed"), "green"),
    **dict.fromkeys(("error", "failed", "stale", "stuck", "cannot"), "bold red"),
    **dict.fromkeys(("warning", "blocked", "saturated", "paused", "stopping"), "yellow"),
    **dict.fromkeys(("running", "cancelled", "expired"), "cyan"),
}
GAP = "  "
#: The width of an output that is painted although it is not a terminal.
UNLIMITED_WIDTH = 1_000_000
#: A progress bar appears after this time.
PROGRESS_DELAY_SECONDS = 0.5


class Cell(NamedTuple):
    """A text with the name of a style."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A column. ``value`` returns the text of a row.

    On a narrow terminal, ``is_optional`` columns are omitted, last one first, and columns with a ``min_width`` are cut.
    """

    title: str
    value: Callable[[Any], Cell | str]
    min_width: int | None = None
    is_number: bool = False
    is_optional: bool = False


class Screen:
    """Writes lines, tables or JSON. ``width`` is None if nothing is cut: without a terminal, or without rich."""

    def __init__(
        self,
        out: OutputWrapper,
        errors: OutputWrapper,
        form: str,
        times: "ElapsedTimes",
        *,
        width: int | None,
        is_painted: bool,
    ) -> None:
        self.out = out
        self.errors = errors
        self.form = form
        self.times = times
        self._is_painted = is_painted
        self._console: Any = _console(is_painted=is_painted) if width is not None or is_painted else None
        self.width = width if self._console else None

    def on(self, out: OutputWrapper, width: int) -> "Screen":
        """Return the same screen with another output."""
        return Screen(out, self.errors, self.form, self.times, width=width, is_painted=self._is_painted)

    @property
    def is_json(self) -> bool:
        return self.form == "json"

    def json(self, value: Any, **sentences: Any) -> None:
        """Write JSON, redacted, in ASCII: control characters in the data must not reach a terminal.

        ``sentences``: further members, which are not redacted. See ``sentence``.
        """
        shown = {**redacted(value), **sentences} if sentences else redacted(value)
        self.out.write(json.dumps(shown, default=as_json, indent=2 if self.out.isatty() else None))

    def heading(self, text: str) -> None:
        self.line(text, "heading")

    def line(self, text: str = "", style: str = "", *, begin: str = "") -> None:
        """Write a line, redacted and cut to the width; ``begin`` has no style."""
        self._write([Cell(_safe(begin)), Cell(_safe(text), style)])

    def sentence(self, text: str, style: str = "", *, begin: str = "") -> None:
        """Write a line whose names the caller has redacted one by one, because the whole is not a name and its value.

        The number in ``token-mails: at most 3 at once`` is not a secret.
        """
        self._write([Cell(begin), Cell(printable(text), style)])

    def lines(self, text: str, begin: str = "") -> None:
        """Write every line of a text, redacted but not cut."""
        for part in redacted_text(text).splitlines():
            self.out.write(printable(begin) + printable(part))

    def table(self, columns: Sequence[Column], rows: Sequence[Any], begin: str = "") -> None:
        """Write a table with redacted cells that fits the width if it can: ids and numbers are never cut."""
        lines = [[Cell(column.title, "bold") for column in columns]]
        lines += [[_safe_cell(column.value(row)) for column in columns] for row in rows]
        widths = [max(self._width_of(line[index].text) for line in lines) for index in range(len(columns))]
        shown = _fitting(columns, widths, math.inf if self.width is None else self.width - len(begin))
        for line in lines:
            parts = [Cell(begin)]
            for index, width in shown.items():
                text, style = line[index]
                padding = Cell(" " * (width - self._width_of(text)))
                cell = Cell(self._cut(text, width), style)
                parts += [padding, cell] if columns[index].is_number else [cell, padding]
                parts.append(Cell(GAP))
            self._write(parts, is_cut=False)

    def _write(self, parts: Sequence[Cell], *, is_cut: bool = True) -> None:
        """Write the parts of a line."""
        if self._console is None:
            self.out.write("".join(part.text for part in parts).rstrip())
            return
        from rich.text import Text

        line = Text.assemble(*parts)
        line.rstrip()
        if is_cut and self.width is not None:
            line.truncate(self.width, overflow="ellipsis")
        with self._console.capture() as captured:
            self._console.print(line, no_wrap=True, crop=False, end="")
        self.out.write(captured.get())

    def _width_of(self, text: str) -> int:
        """Return the number of terminal columns that a text takes."""
        if self._console is None or text.isascii():
            return len(text)
        from rich.cells import cell_len

        return cell_len(text)

    def _cut(self, text: str, width: int) -> str:
        if self._width_of(text) <= width:
            return text
        from rich.text import Text

        cut = Text(text)
        cut.truncate(width, overflow="ellipsis")
        return cut.plain

    @contextmanager
    def progress(self, noun: str) -> Iterator[Callable[[int, float], None]]:
        """Return a function that gets the number of what is done, and the share from 0 to 1, for a progress bar.

        The bar appears if the operation takes longer than half a second, needs a terminal, and disappears at the end.
        """
        console = _console(is_painted=True, file=sys.stderr) if self.errors.isatty() else None
        if console is None:
            yield lambda done, share: None
            return
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        bar = Progress(
            BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), console=console, transient=True
        )
        task = bar.add_task(noun, total=1.0)
        starts_at = time.monotonic() + PROGRESS_DELAY_SECONDS

        def show(done: int, share: float) -> None:
            bar.update(task, completed=share, description=f"{number(done)} {noun}")
            if time.monotonic() >= starts_at:
                bar.start()

        try:
            yield show
        finally:
            bar.stop()


def _console(*, is_painted: bool, file: Any = None) -> Any:
    """Return a console of rich, or None if rich is not installed. Without a ``file``, it only renders."""
    try:
        from rich.console import Console
        from rich.theme import Theme
    except ImportError:
        return None
    return Console(
        file=file or io.StringIO(),
        width=None if file else UNLIMITED_WIDTH,
        force_terminal=True,
        color_system="standard" if is_painted else None,
        theme=Theme(STYLES),
        highlight=False,
        markup=False,
        emoji=False,
    )


def _safe(text: str) -> str:
    return printable(redacted_text(text))


def _safe_cell(cell: Cell | str) -> Cell:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Cell(_safe(text), style)


def _fitting(columns: Sequence[Column], widths: Sequence[int], limit: float) -> dict[int, int]:
    """Return the columns to show, by index, with the width of each."""
    shown = dict(enumerate(widths))
    least = [
        width if column.min_width is None else min(width, max(column.min_width, len(column.title)))
        for column, width in zip(columns, widths, strict=True)
    ]

    def total(of: Iterable[int]) -> int:
        each = list(of)
        return sum(each) + len(GAP) * (len(each) - 1)

    while total(least[index] for index in shown) > limit:
        optional = [index for index in shown if columns[index].is_optional]
        if not optional:
            break
        del shown[optional[-1]]
    while total(shown.values()) > limit:
        uncut = [index for index in shown if shown[index] > least[index]]
        if not uncut:
            break
        shown[max(uncut, key=lambda index: shown[index])] -= 1
    return shown


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


# Values


def status_cell(text: str) -> Cell:
    """Return the status of a job, or the state of a worker, pool or queue, in the style of its first word."""
    return Cell(text, text.partition(" ")[0].rstrip(","))


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 job``, ``2,000 jobs``, ``2 crashes``."""
    plural = "es" if noun.endswith("sh") else "s"
    return f"{number(count)} {noun}{'' if count == 1 else plural}"


def shortened(value: Any, limit: int = 100) -> str:
    """Return a JSON value on one line, redacted, and cut to ``limit`` characters."""
    text = json.dumps(redacted(value), ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}… ({number(len(text))} characters)"


def first_line(text: str | None) -> str:
    """Return the first line of an error, redacted."""
    return errors.first_line(redacted_text(text or ""))


def database_message(error: DatabaseError) -> str:
    """Return a database error on one line, with a remedy if one is known."""
    text, remedy = first_line(str(error)).rstrip("."), ""
    if is_table_missing(error) or is_column_missing(error):
        remedy = " Has manage.py migrate been run?"
    elif sqlstate(error) == INSUFFICIENT_PRIVILEGE:
        remedy = " Grant the privilege to the database user of this command."
    return f"Database error: {text}.{remedy}"


def as_json(value: Any) -> Any:
    """Return the JSON form of a time, in UTC, of an id, or of a value that cannot be read."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID | date | time_of_day | Unreadable):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON.")


class ElapsedTimes(Times):
    """Times as the command line shows them."""

    def iso(self, moment: datetime | None) -> str | None:
        return None if moment is None else str(as_json(self.aware(moment)))

    def shown(self, moment: datetime) -> str:
        """Return the time in the current time zone."""
        return self.aware(moment).astimezone(timezone.get_current_timezone()).strftime("%Y-%m-%d %H:%M:%S")

    def ago(self, moment: datetime | None) -> str:
        return "" if moment is None else ago(self.seconds_since(moment))
