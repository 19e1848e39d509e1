"""The layout of the graph of a chain, its blockers and the chains that wait for it: boxes in columns.

A box has a row for each later step that waits, where its arrows end. Arrows begin at the last step of a box.
A template draws the coordinates as an SVG. Colors and fonts are in the style sheet.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext

from django_jobchains.admin.detail.queries import Dependent, Slice
from django_jobchains.admin.detail.steps import ChainLink, Presenter
from django_jobchains.chains.tree import Step
from django_jobchains.models import Chain, Job
from django_jobchains.statuses import FINAL, Status
from django_jobchains.text.humanize import number

WIDTH = 190
HEIGHT = 44
ROW_HEIGHT = 20
GAP_X = 44
GAP_Y = 12
MARGIN = 4
MAX_BOXES_PER_COLUMN = 8
MAX_TITLE_LENGTH = 24
#: The length of a status and a label, which share a line.
MAX_LABEL_LENGTH = 26


@dataclass(frozen=True)
class GraphLine:
    """An arrow from a blocker to a step of a waiting chain, by their ids. It is open while the step waits for it."""

    blocker: str
    waiting: str
    is_open: bool
    step: str = ""


@dataclass(frozen=True)
class GraphStep:
    id: str
    text: str


@dataclass(frozen=True)
class Box:
    link: ChainLink
    x: int
    y: int
    title: str
    label: str
    is_self: bool
    height: int
    #: The steps with a row: for each, its id, its text and the middle ``y`` of the row.
    rows: Sequence[dict[str, Any]] = ()

    def end_of(self, step_id: str) -> int:
        """Return where an arrow to a step ends."""
        return next((row["y"] for row in self.rows if row["id"] == step_id), self.y + HEIGHT // 2)

    @property
    def begin(self) -> int:
        """Where arrows to waiting chains begin: the last step ends the chain."""
        return int(self.rows[-1]["y"]) if self.rows else self.y + HEIGHT // 2


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
    columns, lines, waiting = _blocker_columns(chain, list(steps), presenter)
    rows: Sequence[Dependent] = dependents.rows
    if not columns and not rows:
        return None
    columns.append(GraphColumn([presenter.link(chain)]))
    if rows:
        after = {row.chain.id: presenter.link(row.chain) for row in rows}
        columns.append(GraphColumn([*after.values()], has_uncounted=bool(dependents.next)))
        for row in rows:
            lines.append(GraphLine(str(chain.id), str(row.chain.id), _is_open(row.job, chain), str(row.job.id)))
            if not row.is_job_hidden:
                waiting.append(row.job)
    current = [step.job for step in steps if step.job.id == chain.current_job_id]
    return layout(columns, lines, str(chain.id), _rows([*waiting, *current]))


def _rows(jobs: Iterable[Job]) -> dict[str, list[GraphStep]]:
    """Return the steps with a row, by their chains. A first step has no row, because the chain has its type."""
    by_chain: dict[str, list[GraphStep]] = defaultdict(list)
    for job in sorted({job.id: job for job in jobs}.values(), key=lambda job: job.chain_index):
        if job.chain_index:
            values = {"number": number(job.chain_index + 1), "type": job.type_name}
            by_chain[str(job.chain_id)].append(GraphStep(str(job.id), gettext("%(number)s. %(type)s") % values))
    return by_chain


def _blocker_columns(
    chain: Chain, steps: Sequence[Step], presenter: Presenter
) -> tuple[list[GraphColumn], list[GraphLine], list[Job]]:
    """Return the blockers of a chain, with a column for each level, the lines from them, and the steps that wait."""
    columns: list[GraphColumn] = []
    lines: list[GraphLine] = []
    waiting_steps: list[Job] = []
    level = [(chain, step, tree) for step in steps for tree in step.blockers]
    omitted = sum(step.blocker_count - len(step.blockers) for step in steps)
    while level:
        shown = [presenter.link(tree.chain) for _waiting, _step, tree in level if not tree.is_repeated]
        columns.insert(0, GraphColumn(shown, omitted))
        lines += [
            GraphLine(str(tree.chain.id), str(waiting.id), _is_open(step.job, tree.chain), str(step.job.id))
            for waiting, step, tree in level
        ]
        waiting_steps += [step.job for _waiting, step, _tree in level]
        omitted = 0
        level = [(tree.chain, step, next_) for *_, tree in level for step in tree.steps for next_ in step.blockers]
    return columns, lines, waiting_steps


def _is_open(waiting: Job, blocker: Chain) -> bool:
    """Return whether a job still waits for a chain. A failed one lets it run if the job allows that."""
    runs = waiting.on_blocker_failure == Job.OnBlockerFailure.RUN
    return waiting.status == Status.BLOCKED and blocker.status not in (FINAL if runs else [Status.COMPLETED])


def layout(
    columns: Sequence[GraphColumn],
    lines: Iterable[GraphLine],
    own_id: str,
    steps: Mapping[str, Sequence[GraphStep]] | None = None,
) -> Graph:
    """Arrange columns from left to right, each centred vertically. A chain has one box, in the first column with it.

    ``steps``: those that have a row, by the ids of their chains.
    """
    steps = steps or {}
    shown = [_truncated(column) for column in columns]
    height = max((_height(column, steps) for column in shown), default=0) + 2 * MARGIN
    boxes: dict[str, Box] = {}
    more_labels: list[dict[str, Any]] = []
    for index, column in enumerate(shown):
        x, y = MARGIN + index * (WIDTH + GAP_X), (height - _height(column, steps)) // 2
        for link in column.links:
            rows = [
                {
                    "id": step.id,
                    "text": _shortened(step.text),
                    "y": y + HEIGHT + ROW_HEIGHT * place + ROW_HEIGHT // 2 - 4,
                }
                for place, step in enumerate(steps.get(link.id, ()))
            ]
            box_height = HEIGHT + ROW_HEIGHT * len(rows)
            label = _beginning(link.label, MAX_LABEL_LENGTH - len(link.status.label))
            box = Box(link, x, y, _shortened(link.type_name), label, link.id == own_id, box_height, rows)
            boxes.setdefault(link.id, box)
            y += box_height + GAP_Y
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
            x1, y1, x2, y2 = begin.x + WIDTH, begin.begin, end.x, end.end_of(line.step)
            bend = max(GAP_X // 2, abs(x2 - x1) // 2)
            curve = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
            paths.append({"d": curve, "is_open": line.is_open})
    return Graph(width, height, list(boxes.values()), paths, more_labels)


def _truncated(column: GraphColumn) -> GraphColumn:
    kept = column.links[:MAX_BOXES_PER_COLUMN]
    return GraphColumn(kept, column.omitted + len(column.links) - len(kept), column.has_uncounted)


def _shortened(name: str) -> str:
    """The end of a long name is more specific than its beginning."""
    return name if len(name) <= MAX_TITLE_LENGTH else f"…{name[1 - MAX_TITLE_LENGTH :]}"


def _beginning(label: str, limit: int) -> str:
    return label if len(label) <= limit else f"{label[: limit - 1]}…"


def _height(column: GraphColumn, steps: Mapping[str, Sequence[GraphStep]]) -> int:
    places = len(column.links) + column.has_more
    rows = sum(len(steps.get(link.id, ())) for link in column.links)
    return places * HEIGHT + rows * ROW_HEIGHT + max(0, places - 1) * GAP_Y
