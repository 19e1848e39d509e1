"""The search and the pagination find visible rows, however many hidden rows match before them."""

from base64 import urlsafe_b64decode
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from django_jobchains.admin.lists import changelists
from django_jobchains.admin.lists import search as searching
from django_jobchains.models import Job
from tests.admin import rows
from tests.admin.browsing import open_list
from tests.admin.visibility.world import OWN, RIVAL, SHARED_KEY, SHARED_START, own


def many(count, type_name=RIVAL, **fields):
    """Create many chains of one job."""
    [first] = rows.chain(1, type_name=type_name, **fields)
    copies = [Job.objects.get(pk=first.pk) for _ in range(count - 1)]
    for number, copy in enumerate(copies):
        copy.pk = copy.chain_id = UUID(f"{SHARED_START}-0000-4000-8000-{number:012}")
    Job.objects.bulk_create(copies)


def decoded(link):
    """Return the decoded cursor of a link."""
    cursor = parse_qs(urlsplit(link).query).get("after", [""])[0]
    return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


@pytest.mark.parametrize("term", [SHARED_KEY, SHARED_START])
def test_visible_rows_are_found_behind_many_hidden_ones(way, reader, model, term, monkeypatch):
    monkeypatch.setattr(searching, "MAX_MATCHES", 10)
    [mine] = own(deduplication_key=SHARED_KEY)
    last = UUID(f"{SHARED_START}-ffff-4000-8000-000000000000")
    Job.objects.filter(pk=mine.pk).update(id=last, chain_id=last, created_at="2001-01-01T00:00:00Z")
    many(30, deduplication_key=SHARED_KEY)
    page = open_list(reader, model, {"q": term})
    assert (page.ids, "Only the first" in page.text) == ([str(last)], False)


def test_visible_types_are_found_behind_many_hidden_ones(way, reader, model, monkeypatch):
    monkeypatch.setattr(searching, "MAX_TYPES", 2)
    [mine] = rows.chain(1, type_name="rz.own")
    for number in range(3):
        many(1, f"rival.type-{number}")
    page = open_list(reader, model, {"q": "r"})
    assert (page.ids, "Types that start with this text." in page.text) == ([str(mine.pk)], True)


def test_hidden_rows_do_not_affect_the_choice_of_the_lookup(way, reader, model):
    """The term is also the id, the key and the type of hidden rows, which would be looked up first."""
    [hidden] = rows.chain(1, type_name=RIVAL)
    [by_key] = own(deduplication_key=str(hidden.pk))
    assert open_list(reader, model, {"q": str(hidden.pk)}).ids == [str(by_key.pk)]
    [by_type] = rows.chain(1, type_name="shop.word")
    rows.chain(1, type_name=RIVAL, deduplication_key="shop.word")
    assert open_list(reader, model, {"q": "shop.word"}).ids == [str(by_type.pk)]


def test_pages_of_a_list_have_each_visible_row_once(way, reader, model, monkeypatch):
    monkeypatch.setattr(changelists.ListAdmin, "list_per_page", 3)
    wanted = []
    for _ in range(8):
        wanted.append(str(own()[0].pk))
        rows.chain(1, type_name=RIVAL)
        rows.chain(1, type_name=RIVAL)
    hidden = set(map(str, Job.objects.filter(type_name=RIVAL).values_list("pk", flat=True)))
    pages = [open_list(reader, model)]
    while "Next page" in pages[-1].links:
        pages.append(open_list(reader, model, pages[-1].links["Next page"]))
    for page in pages:
        assert "24" not in page.text.partition("in total")[0][-20:], "the count includes hidden rows"
        assert not [id_ for link in page.links.values() for id_ in hidden if id_ in decoded(link)]
    assert [id_ for page in pages for id_ in page.ids] == wanted[::-1]
    assert [len(page.ids) for page in pages if page.ids] == [3, 3, 2]


def test_a_search_does_not_find_jobs_of_hidden_chains(way, reader):
    outer, inside = rows.chain(2, type_name=RIVAL, deduplication_key="k")
    Job.objects.filter(pk=inside.pk).update(type_name=OWN)
    Job.objects.filter(pk=outer.pk).update(deduplication_key="k")
    assert open_list(reader, "job").ids == [str(inside.pk)]
    for term in (str(outer.pk), "k"):
        assert open_list(reader, "job", {"q": term}).ids == []


def test_a_hidden_job_does_not_lead_to_its_visible_chain(way, reader):
    first, hidden, last = rows.chain(3, type_name=OWN)
    Job.objects.filter(pk=hidden.pk).update(type_name=RIVAL)
    for job, found in ((first, [str(first.pk)]), (last, [str(first.pk)]), (hidden, [])):
        for term in (str(job.pk), job.pk.hex[:31]):
            assert open_list(reader, "chain", {"q": term}).ids == found
