"""The layout of the graph of a chain, its blockers and the chains that wait for it: boxes in columns.

A template draws the coordinates as an SVG. Colours and fonts are in the style sheet.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext

from django_jobchains.admin.detail.queries import Dependent, Slice
from django_jobchains.admin.detail.steps import ChainLink, Presenter
from django_jobchains.chains.tree import ChainTree, Step
from django_jobchains.models import Chain
from django_jobchains.statuses import Status
from django_jobchains.text.humanize import number

WIDTH = 190
HEIGHT = 44
GAP_X = 44
GAP_Y = 12
MARGIN = 4
MAX_BOXES_PER_COLUMN = 8
MAX_TITLE_LENGTH = 24


@dataclass(frozen=True)
class GraphLine:
    """A line from a blocker to a waiting chain, by their ids. It is open while the chain still waits."""

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


@dataclass(frozen=True)
class Graph:
    """The boxes and paths of a graph, with its size."""

    width: int
    height: int
    boxes: Sequence[Box]
    #: The lines between boxes: for each, the path ``d`` and whether it ``is_open``.
    paths: Sequence[dict[str, Any]]
    #: The numbers of chains without a box, at the ends of columns: for each, its place and text.
    more_labels: Sequence[dict[str, Any]]
    box_width: int = WIDTH
    box_height: int = HEIGHT


@dataclass
class GraphColumn:
    """The chains of a column, the number of omitted ones, and whether there are others that were not counted."""

    links: list[ChainLink]
    omitted: int = 0
    has_uncounted: bool = False

    @property
    def has_more(self) -> bool:
        return self.has_uncounted or self.omitted > 0


def graph_of(chain: Chain, steps: Iterable[Step], dependents: Slice, presenter: Presenter) -> Graph | None:
    """Return the graph of a chain, or None if it has neither blockers nor dependents."""
    columns, lines = _blocker_columns(chain, list(steps), presenter)
    rows: Sequence[Dependent] = dependents.rows
    if not columns and not rows:
        return None
    columns.append(GraphColumn([presenter.link(chain)]))
    if rows:
        after = {row.chain.id: presenter.link(row.chain) for row in rows}
        columns.append(GraphColumn([*after.values()], has_uncounted=bool(dependents.next)))
        lines += [GraphLine(str(chain.id), str(row.chain.id), row.job.status == Status.BLOCKED) for row in rows]
    return layout(columns, lines, str(chain.id))


def _blocker_columns(
    chain: Chain, steps: Sequence[Step], presenter: Presenter
) -> tuple[list[GraphColumn], list[GraphLine]]:
    """Return the blockers of a chain, with a column for each level, and the lines from them."""
    columns: list[GraphColumn] = []
    lines: list[GraphLine] = []
    level = [(chain, tree) for step in steps for tree in step.blockers]
    omitted = sum(step.blocker_count - len(step.blockers) for step in steps)
    while level:
        shown = [presenter.link(tree.chain) for _waiting, tree in level if not tree.is_repeated]
        columns.insert(0, GraphColumn(shown, omitted))
        lines += [GraphLine(str(tree.chain.id), str(waiting.id), _is_open(waiting, tree)) for waiting, tree in level]
        omitted = 0
        level = [(tree.chain, next_) for _waiting, tree in level for step in tree.steps for next_ in step.blockers]
    return columns, lines


def _is_open(waiting: Chain, tree: ChainTree) -> bool:
    return bool(waiting.status == Status.BLOCKED and tree.chain.status != Status.COMPLETED)


def layout(columns: Sequence[GraphColumn], lines: Iterable[GraphLine], own_id: str) -> Graph:
    """Arrange columns from left to right, each centred vertically. A chain has one box, in the first column with it."""
    shown = [_truncated(column) for column in columns]
    height = max((_height(column) for column in shown), default=0) + 2 * MARGIN
    boxes: dict[str, Box] = {}
    more_labels: list[dict[str, Any]] = []
    for index, column in enumerate(shown):
        x, y = MARGIN + index * (WIDTH + GAP_X), (height - _height(column)) // 2
        for link in column.links:
            # The end of a long name is more specific than its beginning.
            title = link.type_name
            if len(title) > MAX_TITLE_LENGTH:
                title = f"…{title[1 - MAX_TITLE_LENGTH :]}"
            boxes.setdefault(link.id, Box(link, x, y, title, link.id == own_id))
            y += HEIGHT + GAP_Y
        if column.has_more:
            counted = gettext("and %(count)s more") % {"count": number(column.omitted)}
            text = gettext("and more") if column.has_uncounted else counted
            more_labels.append({"x": x, "y": y + HEIGHT // 2, "text": text})
    width = 2 * MARGIN + len(shown) * WIDTH + max(0, len(shown) - 1) * GAP_X
    paths: list[dict[str, Any]] = []
    for line in dict.fromkeys(lines):
        if line.blocker in boxes and line.waiting in boxes:
            # A curve from the right side of a box to the left side of another.
            begin, end = boxes[line.blocker], boxes[line.waiting]
            x1, y1, x2, y2 = begin.x + WIDTH, begin.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
            bend = max(GAP_X // 2, abs(x2 - x1) // 2)
            curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
            paths.append({"d": curve, "is_open": line.is_open})
    return Graph(width, height, list(boxes.values()), paths, more_labels)


def _truncated(column: GraphColumn) -> GraphColumn:
    kept = column.links[:MAX_BOXES_PER_COLUMN]
    return GraphColumn(kept, column.omitted + len(column.links) - len(kept), column.has_uncounted)


def _height(column: GraphColumn) -> int:
    rows = len(column.links) + column.has_more
    return rows * HEIGHT + max(0, rows - 1) * GAP_Y
