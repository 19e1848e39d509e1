"""Access to the lists, their pagination and row counts, subclasses, and hostile values in URLs."""

from urllib.parse import quote, urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_jobchains.admin import ChainAdmin, JobAdmin, base
from django_jobchains.admin.lists import changelists
from django_jobchains.models import Job
from tests.admin.browsing import open_list, url
from tests.support.chain_shapes import rows, statements, steps

pytestmark = pytest.mark.django_db


@pytest.fixture
def _few(monkeypatch):
    """Show four rows on a page."""
    for each in (ChainAdmin, JobAdmin):
        monkeypatch.setattr(each, "list_per_page", 4)


few = pytest.mark.usefixtures("_few")


def walk(client, model, query=""):
    page = open_list(client, model, query)
    yield page
    while "Next page" in page.links:
        page = open_list(client, model, page.links["Next page"])
        yield page


def ids_of(pages):
    return [id_ for page in pages for id_ in page.ids]


def test_lists_require_a_login_and_the_view_permission(staff, model):
    address = url("changelist", model=model)
    assert "/login/" in Client().get(address)["Location"]
    assert staff(view=False).get(address).status_code == 403
    assert f"<h1>{model.capitalize()}s</h1>" in open_list(staff(), model).html


@few
def test_pages_have_every_row_once_in_both_orders(staff, model):
    """The pagination of the QuerySets is tested in ``tests/queries``."""
    chain_ids, client = [*rows(5), steps(3), *rows(3)], staff()
    Job.objects.update(created_at="2024-05-01T00:00:00Z")  # all at the same time
    jobs = Job.objects.order_by("chain_id", "chain_index").values_list("id", flat=True)
    oldest_first = list(map(str, chain_ids if model == "chain" else jobs))
    assert ids_of(walk(client, model)) == oldest_first[::-1]
    sortable = {text: link for text, link in open_list(client, model).links.items() if "o=" in link}
    assert sortable.keys() == {"Age"}
    assert ids_of(walk(client, model, sortable["Age"])) == oldest_first
    newest = open_list(client, model).links["Next page"].split("after=")[1]
    assert "This page does not exist." in open_list(client, model, f"{sortable['Age']}&after={newest}").text


@few
def test_links_keep_filters_and_search(staff, model):
    rows(9, status="failed"), rows(9, status="running")
    first, second, third = walk(staff(), model, "?status=failed&q=shop.&type=shop.pack")
    assert [len(page.ids) for page in (first, second, third)] == [4, 4, 1]
    assert "First page" not in first.links
    assert third.links["First page"] == "?q=shop.&status=failed&type=shop.pack"
    assert "Next page" not in third.links


@few
def test_an_invalid_cursor_shows_the_first_page_and_a_message(staff, model):
    ids, client = rows(5), staff()
    for cursor in ("x", "\0", "bnVsbA", "W10", "9" * 5_000, "ä", "../", "WyItaWQiLCAieCJd"):
        page = open_list(client, model, {"after": cursor})
        assert (page.status, page.ids) == (200, [str(id_) for id_ in ids[:0:-1]]), cursor
        assert "This page does not exist. Showing the first page instead." in page.text
        assert "First page" not in page.links


@few
def test_a_page_shows_the_row_count_and_no_page_numbers(staff, model):
    rows(1)
    client = staff()
    assert "1 in total" in open_list(client, model).text
    rows(8)
    assert all("9 in total" in page.text for page in walk(client, model))
    page = open_list(client, model, "?all=1&p=3")
    assert len(page.ids) == 4
    assert not {"1", "2", "3", "Show all"} & page.links.keys()
    assert "Select all" not in page.text


def give_up(*args):
    raise base.TimeLimitExceeded


@few
def test_many_rows_are_counted_up_to_a_limit_of_rows_and_of_time(staff, model, monkeypatch):
    rows(9)
    monkeypatch.setattr(changelists, "COUNT_LIMIT", 8)
    monkeypatch.setattr(changelists, "_planner_estimate", lambda rows: None)
    assert "more than 8 in total" in open_list(staff(), model).text
    monkeypatch.setattr(changelists, "time_limit", give_up)
    page = open_list(staff(), model)
    assert (len(page.ids), "more than 4 in total" in page.text) == (4, True)


@pytest.mark.postgresql
def test_many_rows_are_estimated_by_the_planner(staff, model):
    rows(12_000, status="failed", last_error="x"), rows(400, status="running")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_jobchains_job")
    client = staff()
    for query, text in (("", "about 12,000"), ("?status=failed", "about 12,000"), ("?status=running", "400")):
        assert f"{text} in total" in open_list(client, model, query).text


@few
def test_no_statement_counts_or_skips_without_a_limit(staff, model):
    rows(9, status="failed")
    client = staff()
    for query in ("", "?status=failed", "?q=shop", open_list(client, model).links["Next page"]):
        for sql in statements(lambda query=query: open_list(client, model, query)):
            if "django_jobchains_" in sql and "EXPLAIN" not in sql and "auth_permission" not in sql:
                assert "LIMIT" in sql, sql
                assert "OFFSET" not in sql


@few
def test_an_empty_list_shows_the_next_step(staff, model):
    client = staff()
    assert "manage.py run_jobworker" in open_list(client, model).text
    page = open_list(client, model, "?status=failed&q=nothing")
    assert "No results." in page.text
    assert page.links["Clear search and filters"] == "?"
    ids = rows(5)
    last = open_list(client, model).links["Next page"]
    Job.objects.filter(pk=ids[0]).delete()
    page = open_list(client, model, last)
    assert "There are no more rows." in page.text
    assert page.links["First page"] == "?"


def test_a_list_that_exceeds_the_time_limit_shows_what_to_do(staff, model, monkeypatch):
    rows(1)
    monkeypatch.setattr(changelists.ListAdmin, "searched", give_up)
    page = open_list(staff(), model, {"q": "slow"})
    assert page.status == 503
    assert "The database would have to read too many rows" in page.text
    assert "result_list" not in page.html


# Subclasses


class ShopJobs(JobAdmin):
    list_per_page = 2

    def get_queryset(self, request):
        return super().get_queryset(request).filter(type_name__startswith="shop.")

    def get_list_display(self, request):
        return [*super().get_list_display(request), "priority"]


def test_a_subclass_can_change_the_page_size_and_the_columns(rf):
    rows(3)
    request = rf.get("/")
    request.user = User.objects.create_superuser("root")
    jobs = ShopJobs(Job, admin.site)
    page = jobs.changelist_view(request).render().content.decode()
    assert page.count('class="field-priority"') == 2
    assert "Next page" in page
    for term in ("\0", "a\0b", "shop.\0"):
        found, _ = jobs.get_search_results(request, Job.objects.all(), term)
        assert list(found) == [], "a search that was not validated"


# Hostile values in URLs

#: Parameters that Django's change list and this one accept, and some that attackers would try.
NAMES = [
    "q", "o", "p", "e", "all", "after", "status", "type", "blocked_by", "_popup", "_to_field", "_facets",
    "_changelist_filters", "_source_model", "id", "id__in", "pk", "type_name__regex", "chain_id__isnull",
    "current_job__last_error__icontains", "run_at__year", "input__a__b", "__", "a__", "__class__", "", "queue",
    "status__in", "created_at__gte", "1=1",
]  # fmt: skip
VALUES = [
    "", "1", "-1", "0", "9" * 30, "9" * 5_000, "failed", "open", "shop.pack", "\0", "a\0", "%", "'", "' OR 1=1 --",
    "id", "id__x", "None", "true", "[]", "{}", "W10", "bnVsbA==", "x" * 3_000, "\u202e", "\ud7ff", "..", "1.2.-3",
    "00000000-0000-0000-0000-000000000000", "0" * 32, "abcdef12", "(a+)+$", "\r\nX: 1", "../../", "//evil.example",
]  # fmt: skip
PAIRS = st.tuples(
    st.one_of(st.sampled_from(NAMES), st.text(max_size=20)), st.one_of(st.sampled_from(VALUES), st.text(max_size=40))
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs=st.lists(PAIRS, max_size=6))
@example(pairs=[(name, value) for name in NAMES for value in ("x", "1")])
@example(pairs=[("o", "9" * 5_000), ("p", "9" * 5_000), ("after", "9" * 5_000)])
def test_no_url_causes_a_server_error(superuser, model, pairs):
    address = url("changelist", model=model)
    encoded = urlencode([(key.encode(errors="replace"), value.encode(errors="replace")) for key, value in pairs])
    reply = superuser.get(f"{address}?{encoded}")
    assert reply.status_code in (200, 302, 400)
    if reply.status_code == 302:
        assert reply["Location"].startswith(address)


def test_unusual_values_cause_no_server_error(superuser, model):
    rows(1)
    address, encoded = url("changelist", model=model), [quote(value, errors="replace") for value in VALUES[::4]]
    queries = [f"{name}={value}" for name in ("q", "after", "type", "o") for value in encoded]
    for query in ("%ff%fe=%ff", "q=%ff%fe", "type=%ed%a0%80", "&&&=", "?", "status[]=failed", "%", *queries):
        assert superuser.get(f"{address}?{query}", follow=True).status_code == 200, query


def test_lists_have_no_views_that_change_rows(superuser, model):
    rows(3, status="failed")
    before = list(Job.objects.order_by("id").values())
    open_list(superuser, model, "?action=delete_selected&_selected_action=1&index=0&_save=1")
    forged = {"_save": "1", "form-TOTAL_FORMS": "1", "form-0-status": "completed"}
    superuser.post(url("changelist", model=model), forged)
    assert list(Job.objects.order_by("id").values()) == before
