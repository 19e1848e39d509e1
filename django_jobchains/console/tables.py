"""Tables as wide as the terminal: what is less needed is left out, what is long is cut, and ids never are."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from django_jobchains.texts import printable

Paint = Callable[[str], str]
GAP = "  "


class Cell(NamedTuple):
    text: str
    paint: Paint | None = None


@dataclass(frozen=True)
class Column:
    """``least``: how narrow it may be cut; None: it is never. ``is_optional``: left out first, the last one first."""

    title: str
    least: int | None = None
    is_number: bool = False
    is_optional: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], width: int | None, bold: Paint) -> list[str]:
    """The lines of a table with a line of titles; ``width`` None is without an end."""
    cells = [[_cell(part) for part in row] for row in rows]
    widths = [
        max([width_of(column.title), *(width_of(row[place].text) for row in cells)])
        for place, column in enumerate(columns)
    ]
    shown = _fitting(columns, widths, width)
    titles = [Cell(column.title, bold) for column in columns]
    return [_line(row, columns, shown) for row in [titles, *cells]]


def fitted(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - 1
    for letter in text:
        if (room := room - width_of(letter)) < 0:
            break
        kept += letter
    return f"{kept}…" if width > 0 else ""


def width_of(text: str) -> int:
    """The places that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _cell(part: Cell | str) -> Cell:
    text, paint = (part, None) if isinstance(part, str) else part
    return Cell(printable(text), paint)


def _fitting(columns: Sequence[Column], widths: list[int], width: int | None) -> dict[int, int]:
    """The columns to show, by their place, with the width of each."""
    shown = dict(enumerate(widths))
    if width is None:
        return shown
    while _least(columns, shown) > width and (optional := [place for place in shown if columns[place].is_optional]):
        del shown[optional[-1]]
    while (excess := _total(shown.values()) - width) > 0:
        places = [place for place in shown if shown[place] > _floor(columns[place], shown[place])]
        if not places:
            break
        widest = max(places, key=lambda place: shown[place])
        others = [shown[place] for place in places if shown[place] < shown[widest]]
        down_to = max(_floor(columns[widest], shown[widest]), shown[widest] - excess, max(others, default=0))
        shown[widest] = min(down_to, shown[widest] - 1)
    return shown


def _floor(column: Column, width: int) -> int:
    return width if column.least is None else min(width, max(column.least, width_of(column.title)))


def _least(columns: Sequence[Column], shown: dict[int, int]) -> int:
    return _total([_floor(columns[place], width) for place, width in shown.items()])


def _total(widths: Iterable[int]) -> int:
    values = list(widths)
    return sum(values) + len(GAP) * max(0, len(values) - 1)


def _line(row: Sequence[Cell], columns: Sequence[Column], shown: dict[int, int]) -> str:
    parts = []
    for place, width in shown.items():
        text = fitted(row[place].text, width)
        padding = " " * (width - width_of(text))
        paint = row[place].paint
        painted = paint(text) if paint and text else text
        parts.append(padding + painted if columns[place].is_number else painted + padding)
    return GAP.join(parts).rstrip()
