"""Tables that fit the terminal: optional columns are omitted and long texts are cut, but never ids."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from django_jobchains.text.errors import printable

Paint = Callable[[str], str]
GAP = "  "


class Cell(NamedTuple):
    text: str
    paint: Paint | None = None


@dataclass(frozen=True)
class Column:
    """A column. It may be cut to ``min_width``, if that is set. ``is_optional`` columns are omitted, last one first."""

    title: str
    min_width: int | None = None
    is_number: bool = False
    is_optional: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], width: int | None, bold: Paint) -> list[str]:
    """Return the lines of a table, with titles in the first. ``width`` None means no limit."""
    cells = [[_cell(part) for part in row] for row in rows]
    widths = [
        max([width_of(column.title), *(width_of(row[index].text) for row in cells)])
        for index, column in enumerate(columns)
    ]
    shown = _fitting(columns, widths, width)
    titles = [Cell(column.title, bold) for column in columns]
    return [_line(row, columns, shown) for row in [titles, *cells]]


def fitted(text: str, width: int) -> str:
    """Return the text, cut with an ellipsis if it is wider than ``width``."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - 1
    for letter in text:
        if (room := room - width_of(letter)) < 0:
            break
        kept += letter
    return f"{kept}…" if width > 0 else ""


def width_of(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _cell(part: Cell | str) -> Cell:
    text, paint = (part, None) if isinstance(part, str) else part
    return Cell(printable(text), paint)


def _fitting(columns: Sequence[Column], widths: list[int], width: int | None) -> dict[int, int]:
    """Return the columns to show, by index, with the width of each."""
    shown = dict(enumerate(widths))
    if width is None:
        return shown
    while _min_total(columns, shown) > width and (optional := [index for index in shown if columns[index].is_optional]):
        del shown[optional[-1]]
    while (excess := _total(shown.values()) - width) > 0:
        indexes = [index for index in shown if shown[index] > _min_width(columns[index], shown[index])]
        if not indexes:
            break
        widest = max(indexes, key=lambda index: shown[index])
        others = [shown[index] for index in indexes if shown[index] < shown[widest]]
        down_to = max(_min_width(columns[widest], shown[widest]), shown[widest] - excess, max(others, default=0))
        shown[widest] = min(down_to, shown[widest] - 1)
    return shown


def _min_width(column: Column, width: int) -> int:
    return width if column.min_width is None else min(width, max(column.min_width, width_of(column.title)))


def _min_total(columns: Sequence[Column], shown: dict[int, int]) -> int:
    return _total([_min_width(columns[index], width) for index, width in shown.items()])


def _total(widths: Iterable[int]) -> int:
    values = list(widths)
    return sum(values) + len(GAP) * max(0, len(values) - 1)


def _line(row: Sequence[Cell], columns: Sequence[Column], shown: dict[int, int]) -> str:
    parts = []
    for index, width in shown.items():
        text = fitted(row[index].text, width)
        padding = " " * (width - width_of(text))
        paint = row[index].paint
        painted = paint(text) if paint and text else text
        parts.append(padding + painted if columns[index].is_number else painted + padding)
    return GAP.join(parts).rstrip()
