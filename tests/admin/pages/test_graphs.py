"""The layout of the graph."""

import re
from itertools import combinations
from uuid import uuid4

import pytest
from django.template.loader import render_to_string
from django.test import override_settings

from django_jobchains.admin.detail.graph import (
    GAP_X,
    HEIGHT,
    MAX_BOXES_PER_COLUMN,
    ROW_HEIGHT,
    WIDTH,
    GraphColumn,
    GraphLine,
    GraphStep,
    layout,
)
from django_jobchains.admin.detail.steps import ChainLink
from django_jobchains.models import Job
from django_jobchains.models.jobs import ShownStatus
from tests.admin import rows


def link(type_name="shop.order"):
    return ChainLink(str(uuid4()), "/x/", type_name, ShownStatus.RUNNING)


def test_boxes_are_in_columns_from_left_to_right_and_do_not_overlap():
    columns = [GraphColumn([link() for _ in range(size)]) for size in (7, 3, 20, 1)]
    own = columns[-1].links[0].id
    graph = layout(columns, [], own)
    assert [box.x for box in graph.boxes if box.is_self] == [4 + 3 * (WIDTH + GAP_X)]
    assert sorted({box.x for box in graph.boxes}) == [4 + place * (WIDTH + GAP_X) for place in range(4)]
    for one, other in combinations(graph.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT
    for box in graph.boxes:
        assert 0 <= box.x <= graph.width - WIDTH
        assert 0 <= box.y <= graph.height - HEIGHT


def test_a_long_column_shows_how_many_are_omitted():
    columns = [GraphColumn([link() for _ in range(20)], omitted=12_000), GraphColumn([link()], has_uncounted=True)]
    graph = layout(columns, [], columns[1].links[0].id)
    assert len(graph.boxes) == MAX_BOXES_PER_COLUMN + 1
    assert [more["text"] for more in graph.more_labels] == ["and 12,012 more", "and more"]


def test_a_repeated_chain_has_one_box_and_lines_connect_shown_boxes_once():
    left, right = link(), link()
    lines = [GraphLine(left.id, right.id, True), GraphLine(left.id, right.id, True), GraphLine("gone", right.id, True)]
    graph = layout([GraphColumn([left]), GraphColumn([right]), GraphColumn([left])], lines, right.id)
    assert [box.link for box in graph.boxes] == [left, right]
    [path] = graph.paths
    assert path["d"] == f"M{4 + WIDTH} 26 C{4 + WIDTH + 22} 26 {4 + WIDTH + 22} 26 {4 + WIDTH + 44} 26"


def test_arrows_begin_and_end_at_the_steps_that_own_them():
    part, order, mail = link("shop.part"), link(), link("shop.mail")
    steps = {order.id: [GraphStep("second", "2. shop.sum"), GraphStep("last", "4. shop.end")]}
    lines = [GraphLine(part.id, order.id, True, "second"), GraphLine(order.id, mail.id, True, "first of mail")]
    graph = layout([GraphColumn([part]), GraphColumn([order]), GraphColumn([mail])], lines, order.id, steps)
    box = graph.boxes[1]
    assert box.height == HEIGHT + 2 * ROW_HEIGHT
    assert [row["text"] for row in box.rows] == ["2. shop.sum", "4. shop.end"]
    places = [row["y"] for row in box.rows]
    assert box.y + HEIGHT // 2 < places[0] < places[1] < box.y + box.height
    ends = [tuple(map(int, re.findall(r"^M(?:\d+) (\d+) .* (\d+)$", path["d"])[0])) for path in graph.paths]
    middle = graph.boxes[0].y + HEIGHT // 2
    assert ends == [(middle, places[0]), (places[1], middle)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "on_failure", "is_open"),
    [
        ("running", "wait", True),
        ("completed", "wait", False),
        ("failed", "wait", True),
        ("failed", "run", False),
        ("cancelled", "run", False),
    ],
)
def test_an_arrow_is_dashed_while_its_step_waits_for_the_chain(open_page, status, on_failure, is_open):
    """On the page of either chain, although the step still waits for another one."""
    waiting, part, other = rows.chain(1, "blocked"), rows.chain(1, status, "shop.part"), rows.chain(1, "running")
    Job.objects.filter(pk=waiting[0].pk).update(on_blocker_failure=on_failure)
    rows.waits(waiting[0], part, other)
    assert open_page(waiting[0]).count("jobchains-graph-line-open") == 1 + is_open
    assert open_page(part[0]).count("jobchains-graph-line-open") == is_open


@pytest.mark.django_db
def test_the_graph_of_a_fan_in_ends_at_the_waiting_step(open_page):
    jobs = rows.chain(2, "blocked")
    Job.objects.filter(pk=jobs[1].pk).update(type_name="shop.sum_up")
    rows.waits(jobs[1], rows.chain(1, "running", "shop.part"))
    assert "2. shop.sum_up</text>" in open_page(jobs[0])


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_numbers_in_graphs_and_bars_have_no_thousand_separator():
    graph = layout([GraphColumn([link()], omitted=12_000) for _ in range(6)], [], "")
    assert graph.width > 1_000
    for name, context in (("graph", {"graph": graph}), ("bar", {"bar": [{"start": 1_000, "length": 1_234}]})):
        drawn = render_to_string(f"admin/django_jobchains/{name}.html", context)
        assert not re.search(r'="[0-9 ]*[0-9],[0-9]{3}', drawn)


def test_a_long_name_is_cut_at_its_beginning():
    [box] = layout([GraphColumn([link("shop." + "x" * 100 + ".charge")])], [], "").boxes
    assert len(box.title) == 24
    assert box.title.startswith("…")
    assert box.title.endswith(".charge")
