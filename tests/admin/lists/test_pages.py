"""Access to the lists, and their pagination."""

from collections.abc import Callable, Iterator
from random import Random
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client

from django_jobchains.admin import ChainAdmin, JobAdmin, base
from django_jobchains.admin.lists import changelists
from django_jobchains.models import Job
from tests.admin.lists.browsing import CHAINS, JOBS, ListPage, address, open_list
from tests.support.chain_shapes import rows, statements, steps

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])


@pytest.fixture
def few(monkeypatch):
    for each in (ChainAdmin, JobAdmin):
        monkeypatch.setattr(each, "list_per_page", 4)
    return 4


def walk(client: Client, name: str, query: str = "", between: Callable[[], object] = bool) -> Iterator[ListPage]:
    page = open_list(client, name, query)
    yield page
    while "Next page" in page.links:
        between()
        page = open_list(client, name, page.links["Next page"])
        yield page


def oldest_first(client: Client, name: str) -> str:
    """Return the link of the column header."""
    page = open_list(client, name)
    [link] = {link for text, link in page.links.items() if text == "Age"}
    return link


@BOTH
def test_lists_require_a_login_and_the_view_permission(staff, name):
    reply = Client().get(address(name))
    assert (reply.status_code, "/login/" in reply["Location"]) == (302, True)
    assert staff(view=False).get(address(name)).status_code == 403
    assert staff().get(address(name)).status_code == 200


@BOTH
def test_pages_have_every_row_once_newest_first(staff, name, few):
    chain_ids = [*rows(5), steps(3), *rows(3)]
    Job.objects.update(created_at="2024-05-01T00:00:00Z")  # all at the same time
    found = [id_ for page in walk(staff(), name) for id_ in page.ids]
    ordered = Job.objects.order_by("-chain_id", "-chain_index").values_list("id", flat=True)
    assert found == [str(id_) for id_ in (ordered if name == JOBS else reversed(chain_ids))]


@BOTH
def test_the_age_column_reverses_the_order(staff, name, few):
    ids = rows(9)
    client = staff()
    link = oldest_first(client, name)
    assert [id_ for page in walk(client, name, link) for id_ in page.ids] == list(map(str, ids))


@BOTH
def test_no_other_column_is_sortable(staff, name):
    ids = rows(3)
    client = staff()
    heads = {text for text, link in open_list(client, name).links.items() if "o=" in link}
    assert heads == {"Age"}
    for order in ("1", "-1", "2.3", "99", "-99", "x", "1.2.-4.x", "--4", "9" * 5_000):
        assert open_list(client, name, {"o": order}).ids in ([str(id_) for id_ in ids[::-1]], [str(id_) for id_ in ids])


@BOTH
def test_pagination_is_stable_while_rows_are_added_and_deleted(staff, name, few):
    random = Random(7)
    there = rows(25, [uuid4() for _ in range(25)])
    stays = set(there)

    def insert_and_delete() -> None:
        rows(2, [uuid4() for _ in range(2)])
        gone = random.choice(sorted(stays))
        stays.discard(gone)
        Job.objects.filter(pk=gone).delete()

    found = [UUID(id_) for page in walk(staff(), name, between=insert_and_delete) for id_ in page.ids]
    assert len(found) == len(set(found))
    assert stays <= set(found)
    assert found == sorted(found, reverse=True)


@BOTH
def test_links_keep_filters_and_search(staff, name, few):
    rows(9, status="failed"), rows(9, status="running")
    client = staff()
    first, second, third = walk(client, name, "?status=failed&q=shop.&type=shop.pack")
    assert [len(page.ids) for page in (first, second, third)] == [4, 4, 1]
    assert "First page" not in first.links
    assert third.links["First page"] == "?q=shop.&status=failed&type=shop.pack"
    assert "Next page" not in third.links


@BOTH
def test_an_invalid_cursor_shows_the_first_page_and_a_message(staff, name, few):
    ids, client = rows(5), staff()
    for cursor in ("x", "%00", "bnVsbA", "W10", "9" * 5_000, "ä", "../", "WyItaWQiLCAieCJd"):
        page = open_list(client, name, f"?after={cursor}")
        assert (page.status, page.ids) == (200, [str(id_) for id_ in ids[:0:-1]]), cursor
        assert "This page does not exist. Showing the first page instead." in page.text
        assert "First page" not in page.links


@BOTH
def test_the_cursor_of_the_other_order_is_invalid(staff, name, few):
    rows(9)
    client = staff()
    turned = oldest_first(client, name)
    newest = open_list(client, name).links["Next page"].split("after=")[1]
    assert "This page does not exist." in open_list(client, name, f"{turned}&after={newest}").text


@BOTH
def test_there_are_no_page_numbers_and_no_select_across(staff, name, few):
    rows(9)
    page = open_list(staff(), name, "?all=1&p=3")
    assert len(page.ids) == 4
    assert not {"1", "2", "3", "Show all"} & page.links.keys()
    assert "Select all" not in page.text


@BOTH
def test_a_page_shows_the_row_count(staff, name, few):
    client = staff()
    rows(1)
    assert "1 in total" in open_list(client, name).text
    rows(8)
    assert "9 in total" in open_list(client, name).text
    assert "9 in total" in list(walk(client, name))[-1].text


@BOTH
def test_many_rows_are_counted_up_to_a_limit(staff, name, few, monkeypatch):
    rows(9)
    monkeypatch.setattr(changelists, "COUNT_LIMIT", 8)
    monkeypatch.setattr(changelists, "_planner_estimate", lambda rows: None)
    assert "more than 8 in total" in open_list(staff(), name).text


@BOTH
@pytest.mark.postgresql
def test_many_rows_are_estimated_by_the_planner(staff, name):
    rows(12_000, status="failed", last_error="x")
    rows(400, status="running")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_jobchains_job")
    client = staff()
    assert "about 12,000 in total" in open_list(client, name).text
    assert "about 12,000 in total" in open_list(client, name, "?status=failed").text
    assert "400 in total" in open_list(client, name, "?status=running").text


@BOTH
def test_a_slow_count_is_stopped(staff, name, few, monkeypatch):
    rows(9)
    monkeypatch.setattr(changelists, "_planner_estimate", lambda rows: None)

    def give_up(*args: object) -> None:
        raise base.TimeLimitExceeded

    monkeypatch.setattr(changelists, "time_limit", give_up)
    page = open_list(staff(), name)
    assert (len(page.ids), "more than 4 in total" in page.text) == (4, True)


@BOTH
def test_no_statement_counts_or_skips_without_a_limit(staff, name, few):
    rows(9, status="failed")
    client = staff()
    for query in ("", "?status=failed", "?q=shop", open_list(client, name).links["Next page"]):
        for sql in statements(lambda query=query: open_list(client, name, query)):
            if "django_jobchains_" in sql and "EXPLAIN" not in sql and "auth_permission" not in sql:
                assert "LIMIT" in sql, sql
                assert "OFFSET" not in sql


@BOTH
def test_an_empty_list_shows_the_next_step(staff, name, few):
    client = staff()
    page = open_list(client, name)
    assert "manage.py run_jobworker" in page.text
    page = open_list(client, name, "?status=failed&q=nothing")
    assert "No results." in page.text
    assert page.links["Clear search and filters"] == "?"
    ids = rows(5)
    last = open_list(client, name).links["Next page"]
    Job.objects.filter(pk=ids[0]).delete()
    page = open_list(client, name, last)
    assert "There are no more rows." in page.text
    assert page.links["First page"] == "?"


@BOTH
def test_the_title_of_a_list(staff, name):
    page = open_list(staff(), name)
    assert f"<h1>{name.capitalize()}s</h1>" in page.html
