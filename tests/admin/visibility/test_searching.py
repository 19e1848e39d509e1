"""The search box among hidden rows: it finds one's own, however many hidden ones would be found first."""

from base64 import urlsafe_b64decode
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from django_jobchains.admin import JobAdmin, lists, searching
from django_jobchains.models import Job
from tests.admin.lists.seen import look
from tests.admin.pages import rows
from tests.admin.visibility.world import OWN, RIVAL, SHARED_KEY, SHARED_START, browser, own

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("model", ["chain", "job"])


def many(count: int, type_name: str = RIVAL, **fields: object) -> None:
    """Chains of one job, as quickly as can be."""
    [first] = rows.chain(1, type_name=type_name, **fields)
    copies = [Job.objects.get(pk=first.pk) for _ in range(count - 1)]
    for number, copy in enumerate(copies):
        copy.pk = copy.chain_id = UUID(f"{SHARED_START}-0000-4000-8000-{number:012}")
    Job.objects.bulk_create(copies)


def _decoded(link: str) -> str:
    """A cursor as it was before it was encoded."""
    cursor = parse_qs(urlsplit(link).query).get("after", [""])[0]
    return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


def ids(model: str, **query: str) -> list[str]:
    return look(browser("view_chain", "view_job"), model, query).ids


@BOTH
@pytest.mark.parametrize("term", [SHARED_KEY, SHARED_START])
def test_behind_more_hidden_rows_than_are_looked_at(way: str, model: str, term: str) -> None:
    [mine] = own(deduplication_key=SHARED_KEY)
    last = UUID(f"{SHARED_START}-ffff-4000-8000-000000000000")
    Job.objects.filter(pk=mine.pk).update(id=last, chain_id=last, created_at="2001-01-01T00:00:00Z")
    many(searching.MOST_FOUND + 100, deduplication_key=SHARED_KEY)
    page = look(browser("view_chain", "view_job"), model, {"q": term})
    assert page.ids == [str(last)]
    assert "There are more than" not in page.text


@BOTH
def test_behind_more_hidden_types_than_are_looked_at(way: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_TYPES", 2)
    [mine] = rows.chain(1, type_name="rz.own")
    for number in range(3):
        many(1, f"rival.type-{number}")
    page = look(browser("view_chain", "view_job"), model, {"q": "r"})
    assert page.ids == [str(mine.pk)]
    assert "Types that start with this text." in page.text


@BOTH
def test_what_is_hidden_takes_no_way_of_finding(way: str, model: str) -> None:
    """The term is also the id, the key and the type of hidden rows, which are looked for first."""
    [hidden] = rows.chain(1, type_name=RIVAL)
    [by_key] = own(deduplication_key=str(hidden.pk))
    assert ids(model, q=str(hidden.pk)) == [str(by_key.pk)]
    [by_type] = rows.chain(1, type_name="shop.word")
    rows.chain(1, type_name=RIVAL, deduplication_key="shop.word")
    assert ids(model, q="shop.word") == [str(by_type.pk)]


@BOTH
def test_types_to_filter_by_are_those_of_visible_rows(way: str, model: str) -> None:
    own()
    many(1)
    html = look(browser("view_chain", "view_job"), model).html
    assert f'<option value="{OWN}"' in html
    assert "rival" not in html


@BOTH
def test_how_many_there_are_does_not_count_hidden_rows(way: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists.ListedAdmin, "list_per_page", 2)
    for _ in range(3):
        own()
    many(50)
    assert "53" not in look(browser("view_chain", "view_job"), model).text


@BOTH
def test_pages_of_a_list_have_each_visible_row_once(way: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists.ListedAdmin, "list_per_page", 3)
    wanted = []
    for _ in range(8):
        wanted.append(str(own()[0].pk))
        rows.chain(1, type_name=RIVAL)
        rows.chain(1, type_name=RIVAL)
    client = browser("view_chain", "view_job")
    hidden = set(map(str, Job.objects.filter(type_name=RIVAL).values_list("pk", flat=True)))
    page, found = look(client, model), []
    while True:
        found.append(page.ids)
        assert not [id_ for link in page.links.values() for id_ in hidden if id_ in _decoded(link)]
        if "Next page" not in page.links:
            break
        page = look(client, model, page.links["Next page"])
    assert [id_ for part in found for id_ in part] == wanted[::-1]
    assert [len(part) for part in found if part] == [3, 3, 2]


def test_a_term_of_a_chain_does_not_find_the_jobs_of_a_hidden_one(way: str) -> None:
    outer = rows.chain(2, type_name=RIVAL, deduplication_key="k")
    Job.objects.filter(pk=outer[1].pk).update(type_name=OWN)
    Job.objects.filter(pk=outer[0].pk).update(deduplication_key="k")
    assert ids("job") == [str(outer[1].pk)]
    for term in (str(outer[0].pk), "k"):
        assert ids("job", q=term) == []


def test_where_only_jobs_are_hidden_a_hidden_one_does_not_lead_to_its_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    own_queryset = JobAdmin.get_queryset
    monkeypatch.setattr(
        JobAdmin, "get_queryset", lambda self, request: own_queryset(self, request).exclude(type_name=RIVAL)
    )
    jobs = rows.chain(2, type_name=OWN)
    Job.objects.filter(pk=jobs[1].pk).update(type_name=RIVAL)
    assert ids("chain", q=str(jobs[0].pk)) == [str(jobs[0].pk)]
    assert ids("chain", q=str(jobs[1].pk)) == []
