"""No filter of the lists reveals a hidden row, by its results, their number, or its options."""

import re

import pytest

from django_jobchains.admin.lists import changelists
from django_jobchains.models import Chain, Job
from tests.admin import rows
from tests.admin.browsing import open_list
from tests.admin.visibility.world import BY_QUERY, OWN, RIVAL, own, rival


@pytest.mark.parametrize(
    "query",
    [{"queue": "default"}, {"queue": "rival-queue"}, {"created": "hour"}, {"roots": "1"}, {"chain_type": RIVAL}],
    ids=str,
)
def test_hidden_rows_change_neither_a_page_nor_the_number_of_rows(way, reader, model, query, monkeypatch):
    monkeypatch.setattr(changelists.ListAdmin, "list_per_page", 2)
    mine = [own()[0] for _ in range(5)]

    def shown():
        page = open_list(reader, model, query)
        return page.ids, re.findall(r"\S+ \S+ in total", page.text)

    before = shown()
    hidden = [rival("blocked")[0] for _ in range(4)]
    Job.objects.filter(pk=hidden[0].pk).update(queue="default")
    rows.waits(hidden[1], mine[3:])
    assert shown() == before


def test_filters_find_and_offer_only_visible_rows(way, world, reader, model):
    own_rows = {"chain": Chain, "job": Job}[model].objects.filter(type_name=OWN)
    assert set(open_list(reader, model, {"created": "hour"}).ids) == {str(row.pk) for row in own_rows}
    page = open_list(reader, model, {"queue": "rival-queue"})
    assert page.ids == [], "not even the visible chain whose current job is hidden"
    page = open_list(reader, model)
    assert (page.choices("type"), "rival" in page.html) == (["All", OWN], False)


def test_chains_are_found_by_the_queue_of_a_visible_job(way, world, reader):
    found = open_list(reader, "chain", {"queue": "default"}).ids
    assert str(world.ends_hidden[0].pk) not in found
    assert (str(world.plain.pk) in found) == (way == BY_QUERY)


def test_jobs_are_found_by_the_type_of_their_visible_chain(way, world, reader):
    page = open_list(reader, "job")
    assert str(world.inside.pk) in page.ids
    assert page.choices("chain type") == (["All", OWN] if way == BY_QUERY else [])
    assert open_list(reader, "job", {"chain_type": RIVAL}).ids == []
    assert (str(world.plain.pk) in open_list(reader, "job", {"chain_type": OWN}).ids) == (way == BY_QUERY)


def test_the_filter_for_blockers_ignores_hidden_jobs_that_wait(way, reader):
    [awaited] = own()
    rows.waits(rival("blocked")[0], [awaited])
    page = open_list(reader, "chain", {"roots": "1"})
    assert page.ids == [str(awaited.pk)]
    assert "not a blocker" not in page.text
