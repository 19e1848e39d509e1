"""The layout of the graph."""

from itertools import combinations
from uuid import uuid4

from django_jobchains.admin.detail.graph import (
    GAP_X,
    HEIGHT,
    MAX_BOXES_PER_COLUMN,
    WIDTH,
    Graph,
    GraphColumn,
    GraphLine,
    layout,
)
from django_jobchains.admin.detail.steps import ChainLink
from django_jobchains.models.jobs import ShownStatus


def _link(type_name: str = "shop.order") -> ChainLink:
    return ChainLink(str(uuid4()), "/x/", type_name, ShownStatus.RUNNING)


def _graph(*sizes: int) -> Graph:
    columns = [GraphColumn([_link() for _ in range(size)]) for size in sizes]
    own = columns[-1].links[0].id
    lines = [GraphLine(left.id, own, is_open=True) for column in columns[:-1] for left in column.links]
    return layout(columns, lines, own)


def test_columns_are_arranged_from_left_to_right():
    graph = _graph(2, 1)
    assert [box.x for box in graph.boxes] == [4, 4, 4 + WIDTH + GAP_X]
    assert [box.is_self for box in graph.boxes] == [False, False, True]


def test_no_two_boxes_overlap_and_all_are_inside():
    graph = _graph(7, 3, 20, 1, 8)
    for one, other in combinations(graph.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT
    for box in graph.boxes:
        assert 0 <= box.x <= graph.width - WIDTH
        assert 0 <= box.y <= graph.height - HEIGHT


def test_a_long_column_shows_how_many_are_omitted():
    columns = [GraphColumn([_link() for _ in range(20)], omitted=12_000), GraphColumn([_link()])]
    graph = layout(columns, [], columns[1].links[0].id)
    assert len(graph.boxes) == MAX_BOXES_PER_COLUMN + 1
    assert [more["text"] for more in graph.more_labels] == ["and 12,012 more"]


def test_uncounted_chains_are_shown_as_more():
    graph = layout([GraphColumn([_link()], has_uncounted=True)], [], "")
    assert [more["text"] for more in graph.more_labels] == ["and more"]


def test_lines_connect_shown_boxes_once():
    left, right = _link(), _link()
    lines = [GraphLine(left.id, right.id, True), GraphLine(left.id, right.id, True), GraphLine("gone", right.id, True)]
    graph = layout([GraphColumn([left]), GraphColumn([right])], lines, right.id)
    assert [path["d"] for path in graph.paths] == [
        f"M{4 + WIDTH} 26 C{4 + WIDTH + 22} 26 {4 + WIDTH + 22} 26 {4 + WIDTH + 44} 26"
    ]


def test_a_repeated_chain_has_one_box():
    link, own = _link(), _link()
    assert len(layout([GraphColumn([link]), GraphColumn([own]), GraphColumn([link])], [], own.id).boxes) == 2


def test_a_long_name_is_cut_at_its_beginning():
    link = _link("shop." + "x" * 100 + ".charge")
    (box,) = layout([GraphColumn([link])], [], "").boxes
    assert len(box.title) == 24
    assert box.title.startswith("…")
    assert box.title.endswith(".charge")
