"""Where the boxes of a graph stand."""

from itertools import combinations
from uuid import uuid4

from django_jobchains.admin.graphs import GAP_X, HEIGHT, MOST_IN_COLUMN, WIDTH, Column, Graph, Line, laid_out
from django_jobchains.admin.steps import ChainLink
from django_jobchains.shown_statuses import ShownStatus


def _link(type_name: str = "shop.order") -> ChainLink:
    return ChainLink(str(uuid4()), "/x/", type_name, ShownStatus.RUNNING)


def _graph(*sizes: int) -> Graph:
    columns = [Column([_link() for _ in range(size)]) for size in sizes]
    own = columns[-1].links[0].id
    lines = [Line(left.id, own, is_open=True) for column in columns[:-1] for left in column.links]
    return laid_out(columns, lines, own)


def test_columns_stand_from_left_to_right() -> None:
    graph = _graph(2, 1)
    assert [box.x for box in graph.boxes] == [4, 4, 4 + WIDTH + GAP_X]
    assert [box.is_self for box in graph.boxes] == [False, False, True]


def test_no_two_boxes_overlap_and_all_are_inside() -> None:
    graph = _graph(7, 3, 20, 1, 8)
    for one, other in combinations(graph.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT
    for box in graph.boxes:
        assert 0 <= box.x <= graph.width - WIDTH
        assert 0 <= box.y <= graph.height - HEIGHT


def test_a_column_that_is_too_long_says_how_many_more_there_are() -> None:
    columns = [Column([_link() for _ in range(20)], left_out=12_000), Column([_link()])]
    graph = laid_out(columns, [], columns[1].links[0].id)
    assert len(graph.boxes) == MOST_IN_COLUMN + 1
    assert [more.text for more in graph.mores] == ["and 12,012 more"]


def test_what_was_not_counted_is_only_said_to_be_more() -> None:
    graph = laid_out([Column([_link()], is_more=True)], [], "")
    assert [more.text for more in graph.mores] == ["and more"]


def test_lines_join_boxes_that_are_shown_each_once() -> None:
    left, right = _link(), _link()
    lines = [Line(left.id, right.id, True), Line(left.id, right.id, True), Line("gone", right.id, True)]
    graph = laid_out([Column([left]), Column([right])], lines, right.id)
    assert [path.d for path in graph.paths] == [
        f"M{4 + WIDTH} 26 C{4 + WIDTH + 22} 26 {4 + WIDTH + 22} 26 {4 + WIDTH + 44} 26"
    ]


def test_a_chain_that_comes_twice_has_one_box() -> None:
    link, own = _link(), _link()
    assert len(laid_out([Column([link]), Column([own]), Column([link])], [], own.id).boxes) == 2


def test_a_long_name_is_cut_at_its_beginning() -> None:
    link = _link("shop." + "x" * 100 + ".charge")
    (box,) = laid_out([Column([link])], [], "").boxes
    assert len(box.title) == 24
    assert box.title.startswith("…")
    assert box.title.endswith(".charge")
