"""The filters of the lists."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.db.ids import first_id_at
from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from django_jobchains.statuses import Status
from tests.admin.lists.browsing import CHAINS, JOBS, address, open_list
from tests.support.chain_shapes import DECLARED, SHAPES, mail, pack, rows, statements, steps
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in DECLARED})


def offered(page: Any, name: str) -> list[str]:
    """Return the options of a filter."""
    found: list[str] = []
    is_inside = False
    for tag, given in page.tags:
        if tag == "select":
            is_inside = given.get("name") == name
        elif tag == "option" and is_inside:
            found.append(given["value"])
    return found


def texts(ids: list[UUID]) -> list[str]:
    """Return the ids in the order of a list, newest first."""
    return [str(id_) for id_ in reversed(ids)]


@BOTH
@pytest.mark.parametrize("status", Status.values)
def test_filter_by_status(staff, name, status):
    made = {each: rows(2, status=each) for each in Status.values}
    assert open_list(staff(), name, f"?status={status}").ids == texts(made[status])


@BOTH
def test_filter_by_unfinished(staff, name):
    made = {each: rows(1, status=each) for each in Status.values}
    open_ids = [made[status][0] for status in Status.values if status in ("blocked", "pending", "running")]
    assert open_list(staff(), name, "?status=open").ids == texts(open_ids)


def test_a_chain_has_the_status_of_its_last_step_and_the_type_of_its_first(staff):
    chain_id = steps(3, type_name="shop.ship", status="failed")
    client = staff()
    assert open_list(client, CHAINS, "?status=failed&type=shop.pack").ids == [str(chain_id)]
    assert open_list(client, CHAINS, "?type=shop.ship").ids == []
    assert len(open_list(client, JOBS, "?type=shop.pack").ids) == 2
    assert len(open_list(client, JOBS, "?type=shop.ship&status=failed").ids) == 1


@BOTH
def test_status_and_type_can_be_combined(staff, name):
    rows(2, status="failed"), rows(2, type_name="shop.mail", chain_type_name="shop.mail")
    wanted = rows(2, status="failed", type_name="shop.mail", chain_type_name="shop.mail")
    client = staff()
    assert open_list(client, name, "?type=shop.mail&status=failed").ids == texts(wanted)
    assert open_list(client, name, "?type=shop.mail&status=cancelled").ids == []


@BOTH
def test_filter_by_blocker(staff, name):
    blocker = mail.enqueue()
    waiting = chains.enqueue_many([pack.item(number, blockers=[blocker]) for number in range(3)])
    page = open_list(staff(), name, f"?blocked_by={blocker.id}")
    assert page.ids == texts([chain.id for chain in waiting])
    assert "By blocker" in page.text


@BOTH
def test_the_type_filter_offers_declared_and_existing_types(staff, name):
    rows(2, type_name="other.present", chain_type_name="other.present")
    assert offered(open_list(staff(), name), "type") == ["", "other.present", "shop.mail", "shop.pack", "shop.ship"]


def test_filter_by_the_type_of_the_chain(staff):
    chain_id = steps(2, type_name="shop.ship")
    rows(1, type_name="shop.ship", chain_type_name="shop.ship")
    assert len(open_list(staff(), JOBS, "?chain_type=shop.pack").ids) == 2
    last = Job.objects.get(chain_id=chain_id, chain_index=1)
    assert open_list(staff(), JOBS, "?chain_type=shop.pack&type=shop.ship").ids == [str(last.id)]


@BOTH
def test_filter_by_creation_time(staff, name):
    now = database_now()
    ago = {hours: now - timedelta(hours=hours) for hours in (2, 30, 300)}
    made = {hours: str(rows(1, [first_id_at(time)], time)[0]) for hours, time in ago.items()}
    young = str(rows(1, created_at=now)[0])
    client = staff()
    assert open_list(client, name, "?created=hour").ids == [young]
    assert open_list(client, name, "?created=day").ids == [young, made[2]]
    assert open_list(client, name, "?created=week").ids == [young, made[2], made[30]]
    assert open_list(client, name, "?created=month").ids == [young, *made.values()]


def test_filter_for_chains_that_are_not_blockers(staff):
    blocker = mail.enqueue()
    waiting = pack.enqueue(blockers=[blocker])
    assert open_list(staff(), CHAINS, "?roots=1").ids == [str(waiting.id)]
    assert set(open_list(staff(), CHAINS).ids) == {str(waiting.id), str(blocker.id)}


@pytest.mark.parametrize(("name", "parameter"), [(CHAINS, "type"), (JOBS, "chain_type")])
def test_the_filter_by_the_type_of_chains_offers_entry_types(staff, name, parameter, monkeypatch):
    monkeypatch.setattr(mail, "entry", False)
    steps(2, type_name="shop.later")
    assert offered(open_list(staff(), name), parameter) == ["", "shop.pack", "shop.ship"]


@BOTH
def test_filter_by_queue(staff, name):
    rows(2), rows(1, queue="mail", status="failed")
    wanted = rows(2, queue="mail", status="cancelled")
    client = staff()
    assert open_list(client, name, "?queue=mail&status=cancelled").ids == texts(wanted)
    assert len(open_list(client, name, "?queue=mail").ids) == 3
    assert open_list(client, name, "?queue=absent").ids == []
    assert open_list(client, name, "?queue=mail&status=cancelled&type=shop.pack&q=shop.").ids == texts(wanted)


def test_a_chain_is_in_the_queue_of_its_last_step(staff):
    chain_id = steps(3, queue="mail")
    Job.objects.filter(chain_id=chain_id, chain_index__lt=2).update(queue="bank")
    client = staff()
    assert open_list(client, CHAINS, "?queue=mail").ids == [str(chain_id)]
    assert open_list(client, CHAINS, "?queue=bank").ids == []
    assert len(open_list(client, JOBS, "?queue=bank").ids) == 2


@BOTH
def test_the_queue_filter_offers_the_queues_of_jobs(staff, name):
    rows(2, queue="mail"), rows(2, queue="bank")
    assert offered(open_list(staff(), name), "queue") == ["", "bank", "mail"]
    assert offered(open_list(staff(), name, "?queue=absent"), "queue") == ["", "absent", "bank", "mail"]


@BOTH
def test_the_form_of_types_keeps_the_other_filters(staff, name):
    page = open_list(staff(), name, "?status=failed&q=shop.&after=x&unknown=1")
    kept = [
        (given["name"], given["value"]) for tag, given in page.tags if tag == "input" and given.get("type") == "hidden"
    ]
    assert ("status", "failed") in kept
    assert ("q", "shop.") in kept
    assert not {"after", "unknown", "type"} & {key for key, _ in kept}


@BOTH
def test_a_filter_starts_at_the_first_page_and_drops_unknown_parameters(staff, name):
    rows(60, status="failed")
    client = staff()
    second = open_list(
        client, name, open_list(client, name, "?type=shop.pack&status=failed&evil__x=1").links["Next page"]
    )
    assert len(second.ids) == 10
    assert second.links["running"] == "?status=running&type=shop.pack"


@BOTH
def test_all_filters_are_cleared_at_once(staff, name):
    page = open_list(staff(), name, "?status=failed&type=shop.pack&q=shop")
    clear = next(link for text, link in page.links.items() if "Clear all filters" in text)
    assert clear == "?q=shop"


@BOTH
def test_an_invalid_filter_value_redirects_to_the_whole_list(staff, name):
    ids, client = rows(2), staff()
    for query in (
        "?status=lost",
        "?status=FAILED",
        "?type=%00",
        "?type=" + "x" * 201,
        "?queue=%00",
        "?queue=" + "x" * 101,
        "?blocked_by=7",
        "?blocked_by=%00",
    ):
        reply = client.get(address(name) + query)
        assert (reply.status_code, reply["Location"]) == (302, address(name) + "?e=1"), query
        assert open_list(client, name, query).ids == texts(ids), query


LOOKUPS = [
    "queue__contains=a", "id__gt=0", "last_error__icontains=x", "input__a=1", "current_job__last_error__regex=(a+)+$",
    "type_name__regex=(a+)%2B%24", "status__in=failed", "o=queue", "chain_id=7", "pk=x", "failed_attempts__error=x",
    "priority__year=5", "_facets=True", "all=", "p=99999999999",
]  # fmt: skip


@BOTH
def test_other_parameters_do_not_reach_a_query(staff, name):
    ids = rows(2)
    client = staff()
    plain = [_without_values(sql) for sql in statements(lambda: open_list(client, name))]
    for lookup in LOOKUPS:
        with CaptureQueriesContext(connection) as queries:
            page = open_list(client, name, f"?{lookup}")
        assert page.ids == texts(ids), lookup
        assert [_without_values(query["sql"]) for query in queries] == plain, lookup


@BOTH
def test_each_shape_of_chain_is_listed(staff, name):
    for make in SHAPES.values():
        make()
    seen = open_list(staff("view_payload"), name)
    assert len(seen.ids) == (Job.objects.count() if name == JOBS else len(set(Job.objects.values_list("chain_id"))))


def _without_values(sql: str) -> str:
    """Remove values that differ between runs, such as names of savepoints and keys of sessions."""
    return sql if "django_jobchains_job" in sql else sql.split("WHERE", maxsplit=1)[0].split('"s', maxsplit=1)[0]
