"""The filters of the lists: each is connected to its filter of the QuerySet, and nothing else reaches a query."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.db.ids import first_id_at
from django_jobchains.models import Job
from django_jobchains.statuses import Status
from tests.admin.browsing import open_list, url
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
    unfinished = [
        id_ for status in Status.values if status in ("blocked", "pending", "running") for id_ in made[status]
    ]
    assert open_list(client, model, {"status": "open"}).ids == sorted(texts(unfinished), reverse=True)


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
    assert page.choices("type") == ["", "other.present", "shop.mail", "shop.pack", "shop.ship"]
    assert page.choices("queue") == ["", "bank", "mail"]
    assert open_list(staff(), model, "?queue=absent").choices("queue") == ["", "absent", "bank", "mail"]
    monkeypatch.setattr(mail, "entry", False)
    entry_types = ["", "other.present", "shop.pack", "shop.ship"]
    assert open_list(staff(), model).choices("type" if model == "chain" else "chain_type") == entry_types


def test_the_links_and_forms_of_filters_keep_the_others(staff, model):
    rows(60, status="failed")
    client = staff()
    fields = open_list(client, model, "?status=failed&q=shop.&after=x&unknown=1").root.all("input", type="hidden")
    kept = {(field.attributes["name"], field.attributes["value"]) for field in fields}
    assert {("status", "failed"), ("q", "shop.")} <= kept
    assert not {"after", "unknown", "type"} & {name for name, _ in kept}
    first = open_list(client, model, "?type=shop.pack&status=failed&q=shop&evil__x=1")
    [clear] = [link for text, link in first.links.items() if "Clear all filters" in text]
    assert clear == "?q=shop"
    second = open_list(client, model, first.links["Next page"])
    assert len(second.ids) == 10
    assert second.links["running"] == "?q=shop&status=running&type=shop.pack"


def test_an_invalid_filter_value_redirects_to_the_whole_list(staff, model):
    ids, client, whole = rows(2), staff(), url("changelist", model=model)
    wrong = {"status": ("lost", "FAILED"), "type": ("\0", "x" * 201), "queue": ("\0", "x" * 101)}
    for name, values in {**wrong, "blocked_by": ("7", "\0")}.items():
        for value in values:
            reply = client.get(whole, {name: value})
            assert (reply.status_code, reply["Location"]) == (302, f"{whole}?e=1"), (name, value)
            assert open_list(client, model, {name: value}).ids == texts(ids), (name, value)


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
