"""The filters of the lists: each is connected to its filter of the QuerySet, and nothing else reaches a query."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.lists import filters
from django_jobchains.db.ids import first_id_at
from django_jobchains.models import Job
from django_jobchains.statuses import Status
from tests.admin.browsing import open_list
from tests.support.chain_shapes import mail, pack, rows, statements, steps
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db


def texts(ids):
    """Return the ids in the order of a list, newest first."""
    return [str(id_) for id_ in reversed(ids)]


def test_filter_by_status(staff, model):
    made, client = {status: rows(2, status=status) for status in Status.values}, staff()
    for status in Status.values:
        assert open_list(client, model, {"status": status}).ids == texts(made[status])
    incomplete = [
        id_ for status in Status.values if status in ("blocked", "pending", "running") for id_ in made[status]
    ]
    assert open_list(client, model, {"status": "incomplete"}).ids == sorted(texts(incomplete), reverse=True)


def test_scheduled_and_continued_ones_can_be_filtered_as_they_are_shown(staff, model):
    rows(2)
    later, chain_id = rows(2, run_at=database_now() + timedelta(hours=1)), steps(2, status="completed", output=1)
    client = staff()
    scheduled = open_list(client, model, "?status=scheduled")
    assert (scheduled.ids, {row["status"] for row in scheduled.rows}) == (texts(later), {"scheduled"})
    continued = open_list(client, model, "?status=continued")
    assert continued.ids == ([] if model == "chain" else [str(chain_id)])
    assert ("continued" in continued.choices("status")) == (model == "job")


def test_filters_by_names_can_be_combined(staff, model):
    rows(2), rows(1, queue="mail", status="failed")
    wanted = rows(2, queue="mail", status="cancelled")
    rows(2, type_name="shop.mail", chain_type_name="shop.mail")
    client = staff()
    assert open_list(client, model, "?queue=mail&status=cancelled").ids == texts(wanted)
    assert open_list(client, model, "?queue=mail&status=cancelled&type=shop.pack&q=shop.").ids == texts(wanted)
    assert len(open_list(client, model, "?queue=mail").ids) == 3
    assert len(open_list(client, model, "?type=shop.mail").ids) == 2
    assert open_list(client, model, "?type=shop.mail&queue=mail").ids == []


def test_a_chain_has_the_status_and_queue_of_its_last_step_and_the_type_of_its_first(staff):
    chain_id = steps(3, type_name="shop.ship", status="failed", queue="mail")
    rows(1, type_name="shop.ship", chain_type_name="shop.ship")
    Job.objects.filter(chain_id=chain_id, chain_index__lt=2).update(queue="bank")
    client = staff()
    assert open_list(client, "chain", "?status=failed&type=shop.pack&queue=mail").ids == [str(chain_id)]
    assert open_list(client, "chain", "?queue=bank").ids == []
    assert len(open_list(client, "job", "?queue=bank&type=shop.pack").ids) == 2
    assert len(open_list(client, "job", "?chain_type=shop.pack").ids) == 3
    [last] = open_list(client, "job", "?chain_type=shop.pack&type=shop.ship&status=failed").ids
    assert str(Job.objects.get(chain_id=chain_id, chain_index=2).pk) == last


def test_filters_by_blockers(staff, model):
    blocker = mail.enqueue()
    waiting = chains.enqueue_many([pack.item(number, blockers=[blocker]) for number in range(3)])
    page = open_list(staff(), model, {"blocked_by": str(blocker.id)})
    assert page.ids == texts([chain.id for chain in waiting])
    assert "By blocker" in page.text
    if model == "chain":
        assert open_list(staff(), model, "?roots=1").ids == page.ids


def test_filter_by_creation_time(staff, model):
    now, client = database_now(), staff()
    ages = {hours: now - timedelta(hours=hours) for hours in (300, 30, 2, 0)}
    made = [rows(1, [first_id_at(time)], time)[0] for time in ages.values()]
    for number, period in enumerate(("hour", "day", "week", "month"), start=1):
        assert open_list(client, model, {"created": period}).ids == texts(made[-number:])


def test_filters_offer_declared_and_existing_names(staff, model, monkeypatch):
    rows(2, type_name="other.present", chain_type_name="other.present", queue="mail"), rows(1, queue="bank")
    page = open_list(staff(), model)
    assert page.choices("type") == ["All", "other.present", "shop.mail", "shop.pack", "shop.ship"]
    assert page.choices("queue") == ["All", "bank", "mail"]
    assert open_list(staff(), model, "?queue=absent").choices("queue") == ["All", "absent", "bank", "mail"]
    monkeypatch.setattr(mail, "entry", False)
    entry_types = ["All", "other.present", "shop.pack", "shop.ship"]
    assert open_list(staff(), model).choices("type" if model == "chain" else "chain type") == entry_types


def test_the_links_of_filters_and_the_search_keep_the_others(staff, model):
    rows(60, status="failed")
    client = staff()
    fields = open_list(client, model, "?status=failed&q=shop.&after=x&unknown=1").root.all("input", type="hidden")
    kept = {(field.attributes["name"], field.attributes["value"]) for field in fields}
    assert ("status", "failed") in kept
    assert not {"after", "unknown", "type"} & {name for name, _ in kept}
    first = open_list(client, model, "?type=shop.pack&status=failed&q=shop&evil__x=1")
    [clear] = [link for text, link in first.links.items() if "Clear all filters" in text]
    assert clear == "?q=shop"
    second = open_list(client, model, first.links["Next page"])
    assert len(second.ids) == 10
    assert second.links["running"] == "?q=shop&status=running&type=shop.pack"


def test_no_row_has_an_invalid_filter_value(staff, model):
    """Never all rows, among which people would look for those with the value."""
    rows(2)
    client = staff()
    wrong = {"status": ("lost", "FAILED"), "type": ("\0", "x" * 201), "queue": ("\0", "x" * 101), "created": ("year",)}
    for name, values in {**wrong, "blocked_by": ("7", "\0")}.items():
        for value in values:
            page = open_list(client, model, {name: value})
            assert page.ids == [], (name, value)
            [message] = page.messages()
            assert "no row can have the value" in message
            assert "Clear search and filters" in page.links
    assert open_list(client, model, "?status=<b>&q=x").messages() == ["Status: no row can have the value “<b>”."]


def test_statuses_are_counted_in_lists_that_nothing_else_narrows(staff, model, monkeypatch):
    monkeypatch.setattr(filters, "MAX_COUNTED", 3)
    rows(3, status="failed"), rows(4, status="running"), rows(2, status="completed")
    rows(1, run_at=database_now() + timedelta(hours=1))
    client = staff()
    for query in ("", "?status=failed", "?o=2"):
        shown = open_list(client, model, query).choices("status")
        assert {"failed (3)", "running (3+)", "blocked (0)", "scheduled (1)", "completed", "incomplete"} <= {*shown}
    for query in ("?status=failed&created=day", "?q=shop", "?type=shop.pack"):
        assert "failed" in open_list(client, model, query).choices("status")


def test_statuses_are_not_counted_beyond_the_time_limit(staff, model, monkeypatch):
    rows(3, status="failed")
    monkeypatch.setattr(filters, "time_limit", raise_time_limit)
    page = open_list(staff(), model)
    assert (len(page.ids), "failed" in page.choices("status")) == (3, True)


@contextmanager
def raise_time_limit(*args):
    raise TimeLimitExceeded
    yield


LOOKUPS = [
    "queue__contains=a", "id__gt=0", "last_error__icontains=x", "input__a=1", "current_job__last_error__regex=(a+)+$",
    "type_name__regex=(a+)%2B%24", "status__in=failed", "o=queue", "chain_id=7", "pk=x", "failed_attempts__error=x",
    "priority__year=5", "_facets=True", "all=", "p=99999999999",
]  # fmt: skip


def test_other_parameters_do_not_reach_a_query(staff, model):
    ids, client = rows(2), staff()
    plain = [_without_values(sql) for sql in statements(lambda: open_list(client, model))]
    for lookup in LOOKUPS:
        with CaptureQueriesContext(connection) as queries:
            assert open_list(client, model, f"?{lookup}").ids == texts(ids), lookup
        assert [_without_values(query["sql"]) for query in queries] == plain, lookup


def _without_values(sql):
    """Remove values that differ between runs, such as names of savepoints and keys of sessions."""
    return sql if "django_jobchains_job" in sql else sql.split("WHERE", maxsplit=1)[0].split('"s', maxsplit=1)[0]
