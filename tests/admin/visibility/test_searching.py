"""The search finds visible rows, however many hidden rows match before them."""

from base64 import urlsafe_b64decode
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from django_jobchains.admin import JobAdmin
from django_jobchains.admin.lists import changelists
from django_jobchains.admin.lists import search as searching
from django_jobchains.models import Job
from tests.admin.lists.browsing import open_list
from tests.admin.pages import rows
from tests.admin.visibility.world import OWN, RIVAL, SHARED_KEY, SHARED_START, browser, own

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("model", ["chain", "job"])


def many(count: int, type_name: str = RIVAL, **fields: object) -> None:
    """Create many chains of one job."""
    [first] = rows.chain(1, type_name=type_name, **fields)
    copies = [Job.objects.get(pk=first.pk) for _ in range(count - 1)]
    for number, copy in enumerate(copies):
        copy.pk = copy.chain_id = UUID(f"{SHARED_START}-0000-4000-8000-{number:012}")
    Job.objects.bulk_create(copies)


def _decoded(link: str) -> str:
    """Return the decoded cursor of a link."""
    cursor = parse_qs(urlsplit(link).query).get("after", [""])[0]
    return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


def ids(model: str, **query: str) -> list[str]:
    return open_list(browser("view_chain", "view_job"), model, query).ids


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("term", [SHARED_KEY, SHARED_START])
def test_visible_rows_are_found_behind_many_hidden_ones(way, model, term):
    [mine] = own(deduplication_key=SHARED_KEY)
    last = UUID(f"{SHARED_START}-ffff-4000-8000-000000000000")
    Job.objects.filter(pk=mine.pk).update(id=last, chain_id=last, created_at="2001-01-01T00:00:00Z")
    many(searching.MAX_MATCHES + 100, deduplication_key=SHARED_KEY)
    page = open_list(browser("view_chain", "view_job"), model, {"q": term})
    assert page.ids == [str(last)]
    assert "There are more than" not in page.text


@BOTH
def test_visible_types_are_found_behind_many_hidden_ones(way, model, monkeypatch):
    monkeypatch.setattr(searching, "MAX_TYPES", 2)
    [mine] = rows.chain(1, type_name="rz.own")
    for number in range(3):
        many(1, f"rival.type-{number}")
    page = open_list(browser("view_chain", "view_job"), model, {"q": "r"})
    assert page.ids == [str(mine.pk)]
    assert "Types that start with this text." in page.text


@BOTH
def test_hidden_rows_do_not_affect_the_choice_of_the_lookup(way, model):
    """The term is also the id, the key and the type of hidden rows, which would be looked up first."""
    [hidden] = rows.chain(1, type_name=RIVAL)
    [by_key] = own(deduplication_key=str(hidden.pk))
    assert ids(model, q=str(hidden.pk)) == [str(by_key.pk)]
    [by_type] = rows.chain(1, type_name="shop.word")
    rows.chain(1, type_name=RIVAL, deduplication_key="shop.word")
    assert ids(model, q="shop.word") == [str(by_type.pk)]


@BOTH
def test_the_type_filter_offers_types_of_visible_rows(way, model):
    own()
    many(1)
    html = open_list(browser("view_chain", "view_job"), model).html
    assert f'<option value="{OWN}"' in html
    assert "rival" not in html


@BOTH
def test_the_row_count_does_not_include_hidden_rows(way, model, monkeypatch):
    monkeypatch.setattr(changelists.ListAdmin, "list_per_page", 2)
    for _ in range(3):
        own()
    many(50)
    assert "53" not in open_list(browser("view_chain", "view_job"), model).text


@BOTH
def test_pages_of_a_list_have_each_visible_row_once(way, model, monkeypatch):
    monkeypatch.setattr(changelists.ListAdmin, "list_per_page", 3)
    wanted = []
    for _ in range(8):
        wanted.append(str(own()[0].pk))
        rows.chain(1, type_name=RIVAL)
        rows.chain(1, type_name=RIVAL)
    client = browser("view_chain", "view_job")
    hidden = set(map(str, Job.objects.filter(type_name=RIVAL).values_list("pk", flat=True)))
    page, found = open_list(client, model), []
    while True:
        found.append(page.ids)
        assert not [id_ for link in page.links.values() for id_ in hidden if id_ in _decoded(link)]
        if "Next page" not in page.links:
            break
        page = open_list(client, model, page.links["Next page"])
    assert [id_ for part in found for id_ in part] == wanted[::-1]
    assert [len(part) for part in found if part] == [3, 3, 2]


def test_a_search_does_not_find_jobs_of_hidden_chains(way):
    outer = rows.chain(2, type_name=RIVAL, deduplication_key="k")
    Job.objects.filter(pk=outer[1].pk).update(type_name=OWN)
    Job.objects.filter(pk=outer[0].pk).update(deduplication_key="k")
    assert ids("job") == [str(outer[1].pk)]
    for term in (str(outer[0].pk), "k"):
        assert ids("job", q=term) == []


def test_a_hidden_job_does_not_lead_to_its_visible_chain(monkeypatch):
    own_queryset = JobAdmin.get_queryset
    monkeypatch.setattr(
        JobAdmin, "get_queryset", lambda self, request: own_queryset(self, request).exclude(type_name=RIVAL)
    )
    jobs = rows.chain(2, type_name=OWN)
    Job.objects.filter(pk=jobs[1].pk).update(type_name=RIVAL)
    assert ids("chain", q=str(jobs[0].pk)) == [str(jobs[0].pk)]
    assert ids("chain", q=str(jobs[1].pk)) == []
