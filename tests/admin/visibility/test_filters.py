"""No filter of the lists reveals a hidden row, by its results, their number, or its options."""

import re
from typing import Any

import pytest

from django_jobchains.admin.lists import changelists
from django_jobchains.models import Chain, Job
from tests.admin.lists.browsing import CHAINS, JOBS, open_list
from tests.admin.pages import rows
from tests.admin.visibility.world import BY_QUERY, OWN, RIVAL, browser, own, rival

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("model", [CHAINS, JOBS])


def seen(model: str, **query: str) -> Any:
    return open_list(browser("view_chain", "view_job"), model, query)


def offered(model: str, name: str) -> list[str]:
    html = seen(model).html
    [select] = re.findall(rf'<select name="{name}".*?</select>', html, re.DOTALL) or [""]
    return re.findall(r'<option value="([^"]+)"', select)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    "query",
    [{"queue": "default"}, {"queue": "rival-queue"}, {"created": "hour"}, {"roots": "1"}, {"chain_type": RIVAL}],
    ids=str,
)
def test_hidden_rows_change_neither_a_page_nor_the_number_of_rows(way, model, query, monkeypatch):
    monkeypatch.setattr(changelists.ListAdmin, "list_per_page", 2)
    mine = [own()[0] for _ in range(5)]

    def shown() -> Any:
        page = seen(model, **query)
        return page.ids, re.findall(r"\S+ \S+ in total", page.text)

    before = shown()
    hidden = [rival("blocked")[0] for _ in range(4)]
    Job.objects.filter(pk=hidden[0].pk).update(queue="default")
    rows.waits(hidden[1], mine[3:])
    assert shown() == before


@BOTH
def test_the_queue_of_a_hidden_job_finds_nothing(way, world, model):
    """It does not find the visible chain whose current job is hidden either."""
    assert seen(model, queue="rival-queue").ids == []
    assert "rival-queue" not in offered(model, "queue")


def test_chains_are_found_by_the_queue_of_a_visible_job(way, world):
    found = set(seen(CHAINS, queue="default").ids)
    assert str(world.ends_hidden[0].pk) not in found
    assert (str(world.plain.pk) in found) == (way == BY_QUERY)


def test_the_type_of_a_hidden_chain_does_not_find_its_visible_job(way, world):
    assert str(world.inside.pk) in seen(JOBS).ids
    assert seen(JOBS, chain_type=RIVAL).ids == []
    assert RIVAL not in offered(JOBS, "chain_type")


def test_jobs_are_found_by_the_type_of_their_visible_chain(way, world):
    found = set(seen(JOBS, chain_type=OWN).ids)
    assert (str(world.plain.pk) in found) == (way == BY_QUERY)
    assert offered(JOBS, "chain_type") == ([OWN] if way == BY_QUERY else [])


def test_the_filter_for_blockers_ignores_hidden_jobs_that_wait(way):
    [awaited] = own()
    rows.waits(rival("blocked")[0], [awaited])
    page = seen(CHAINS, roots="1")
    assert page.ids == [str(awaited.pk)]
    assert "not a blocker" not in page.text


@BOTH
def test_the_filter_by_time_finds_visible_rows(way, world, model):
    all_rows = {CHAINS: Chain, JOBS: Job}[model].objects
    assert set(seen(model, created="hour").ids) == {str(row.pk) for row in all_rows.filter(type_name=OWN)}
