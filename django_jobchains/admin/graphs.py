"""A chain among those it waits for and those that wait for it: boxes in columns, from what is waited for to what waits.

Plain numbers for an SVG that a template writes; no colour and no font, which are the style sheet's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext

from django_jobchains.admin.reads import Dependent, Part
from django_jobchains.admin.steps import ChainLink, Showing
from django_jobchains.admin.words import number
from django_jobchains.models import Chain
from django_jobchains.statuses import Status
from django_jobchains.trees import ChainTree, Step

WIDTH = 190
HEIGHT = 44
GAP_X = 44
GAP_Y = 12
MARGIN = 4
#: Boxes of one column, and letters on a line of one.
MOST_IN_COLUMN = 8
MOST_LETTERS = 24


@dataclass(frozen=True)
class Line:
    """``waiting`` is blocked by ``blocker``, both by their ids."""

    blocker: str
    waiting: str
    is_open: bool


@dataclass(frozen=True)
class Box:
    link: ChainLink
    x: int
    y: int
    title: str
    is_self: bool

    @property
    def text_x(self) -> int:
        return self.x + 10

    @property
    def title_y(self) -> int:
        return self.y + 18

    @property
    def status_y(self) -> int:
        return self.y + 35


@dataclass(frozen=True)
class Path:
    d: str
    is_open: bool


@dataclass(frozen=True)
class More:
    """Those that have no box, at the end of a column."""

    x: int
    y: int
    text: str


@dataclass(frozen=True)
class Graph:
    width: int
    height: int
    boxes: Sequence[Box]
    paths: Sequence[Path]
    mores: Sequence[More]
    box_width: int = WIDTH
    box_height: int = HEIGHT


@dataclass
class Column:
    """The chains of a column; ``left_out``: how many more there are, ``is_more``: and others, not counted."""

    links: list[ChainLink]
    left_out: int = 0
    is_more: bool = False

    @property
    def has_more(self) -> bool:
        return self.is_more or self.left_out > 0


def graph_of(chain: Chain, steps: Iterable[Step], dependents: Part, showing: Showing) -> Graph | None:
    """Of what was read; None when nothing is waited for, and nothing waits."""
    columns, lines = _before(chain, list(steps), showing)
    rows: Sequence[Dependent] = dependents.rows
    if not columns and not rows:
        return None
    columns.append(Column([showing.link(chain)]))
    if rows:
        after = {row.chain.id: showing.link(row.chain) for row in rows}
        columns.append(Column([*after.values()], is_more=bool(dependents.next)))
        lines += [Line(str(chain.id), str(row.chain.id), row.job.status == Status.BLOCKED) for row in rows]
    return laid_out(columns, lines, str(chain.id))


def _before(chain: Chain, steps: Sequence[Step], showing: Showing) -> tuple[list[Column], list[Line]]:
    """What a chain waits for, a column for each level of it."""
    columns: list[Column] = []
    lines: list[Line] = []
    level = [(chain, tree) for step in steps for tree in step.blockers]
    left_out = sum(step.blocker_count - len(step.blockers) for step in steps)
    while level:
        shown = [showing.link(tree.chain) for _waiting, tree in level if not tree.is_repeated]
        columns.insert(0, Column(shown, left_out))
        lines += [Line(str(tree.chain.id), str(waiting.id), _is_open(waiting, tree)) for waiting, tree in level]
        left_out = 0
        level = [(tree.chain, next_) for _waiting, tree in level for step in tree.steps for next_ in step.blockers]
    return columns, lines


def _is_open(waiting: Chain, tree: ChainTree) -> bool:
    return waiting.status == Status.BLOCKED and tree.chain.status != Status.COMPLETED


def laid_out(columns: Sequence[Column], lines: Iterable[Line], own_id: str) -> Graph:
    """Columns from left to right, each in the middle of the height; a chain stands where it comes first."""
    shown = [_bounded(column, own_id) for column in columns]
    height = max((_height(column) for column in shown), default=0) + 2 * MARGIN
    boxes: dict[str, Box] = {}
    mores: list[More] = []
    for place, column in enumerate(shown):
        x, y = MARGIN + place * (WIDTH + GAP_X), (height - _height(column)) // 2
        for link in column.links:
            boxes.setdefault(link.id, Box(link, x, y, _short(link.type_name), link.id == own_id))
            y += HEIGHT + GAP_Y
        if column.has_more:
            mores.append(More(x, y + HEIGHT // 2, _more(column)))
    width = 2 * MARGIN + len(shown) * WIDTH + max(0, len(shown) - 1) * GAP_X
    return Graph(width, height, list(boxes.values()), _paths(lines, boxes), mores)


def _bounded(column: Column, own_id: str) -> Column:
    kept = column.links[:MOST_IN_COLUMN]
    return Column(kept, column.left_out + len(column.links) - len(kept), column.is_more)


def _more(column: Column) -> str:
    if column.is_more:
        return gettext("and more")
    return gettext("and %(count)s more") % {"count": number(column.left_out)}


def _height(column: Column) -> int:
    rows = len(column.links) + column.has_more
    return rows * HEIGHT + max(0, rows - 1) * GAP_Y


def _paths(lines: Iterable[Line], boxes: dict[str, Box]) -> list[Path]:
    known = dict.fromkeys(lines)
    return [
        Path(_curve(boxes[line.blocker], boxes[line.waiting]), line.is_open)
        for line in known
        if line.blocker in boxes and line.waiting in boxes
    ]


def _curve(begin: Box, end: Box) -> str:
    """From the right side of a box to the left side of another."""
    x1, y1, x2, y2 = begin.x + WIDTH, begin.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    bend = max(GAP_X // 2, abs(x2 - x1) // 2)
    return f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


def _short(text: str) -> str:
    """The end of a long name says more than its beginning."""
    return text if len(text) <= MOST_LETTERS else f"…{text[1 - MOST_LETTERS :]}"
