"""What a list is narrowed to."""

from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from django_jobchains.statuses import Status
from tests.admin.lists.seen import CHAINS, JOBS, address, look
from tests.queries.shapes import DECLARED, SHAPES, mail, pack, rows, statements, steps

pytestmark = pytest.mark.django_db
Staff = Callable[..., Client]
BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in DECLARED})


def texts(ids: list[UUID]) -> list[str]:
    """As a list shows them: the newest first."""
    return [str(id_) for id_ in reversed(ids)]


@BOTH
@pytest.mark.parametrize("status", Status.values)
def test_by_status(staff: Staff, name: str, status: str) -> None:
    made = {each: rows(2, status=each) for each in Status.values}
    assert look(staff(), name, f"?status={status}").ids == texts(made[status])


@BOTH
def test_by_whether_it_may_still_run(staff: Staff, name: str) -> None:
    made = {each: rows(1, status=each) for each in Status.values}
    open_ids = [made[status][0] for status in Status.values if status in ("blocked", "pending", "running")]
    assert look(staff(), name, "?status=open").ids == texts(open_ids)


def test_a_chain_has_the_status_of_its_last_step_and_the_type_of_its_first(staff: Staff) -> None:
    chain_id = steps(3, type_name="shop.ship", status="failed")
    client = staff()
    assert look(client, CHAINS, "?status=failed&type=shop.pack").ids == [str(chain_id)]
    assert look(client, CHAINS, "?type=shop.ship").ids == []
    assert len(look(client, JOBS, "?type=shop.pack").ids) == 2
    assert len(look(client, JOBS, "?type=shop.ship&status=failed").ids) == 1


@BOTH
def test_status_and_type_together(staff: Staff, name: str) -> None:
    rows(2, status="failed"), rows(2, type_name="shop.mail", chain_type_name="shop.mail")
    wanted = rows(2, status="failed", type_name="shop.mail", chain_type_name="shop.mail")
    client = staff()
    assert look(client, name, "?type=shop.mail&status=failed").ids == texts(wanted)
    assert look(client, name, "?type=shop.mail&status=cancelled").ids == []


@BOTH
def test_by_a_blocker(staff: Staff, name: str) -> None:
    blocker = mail.enqueue()
    waiting = chains.enqueue_many([pack.item(number, blockers=[blocker]) for number in range(3)])
    page = look(staff(), name, f"?blocked_by={blocker.id}")
    assert page.ids == texts([chain.id for chain in waiting])
    assert "By blocker" in page.text


@BOTH
def test_types_to_choose_from_are_those_declared_and_those_present(staff: Staff, name: str) -> None:
    rows(2, type_name="other.present", chain_type_name="other.present")
    page = look(staff(), name)
    offered = [given["value"] for tag, given in page.tags if tag == "option"]
    assert offered == ["", "other.present", "shop.mail", "shop.pack", "shop.ship"]


def test_chains_are_offered_the_types_that_begin_one(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "entry", False)
    steps(2, type_name="shop.later")
    page = look(staff(), CHAINS)
    assert [given["value"] for tag, given in page.tags if tag == "option"] == ["", "shop.pack", "shop.ship"]


@BOTH
def test_the_form_of_types_keeps_the_other_filters(staff: Staff, name: str) -> None:
    page = look(staff(), name, "?status=failed&q=shop.&after=x&unknown=1")
    kept = [
        (given["name"], given["value"]) for tag, given in page.tags if tag == "input" and given.get("type") == "hidden"
    ]
    assert ("status", "failed") in kept
    assert ("q", "shop.") in kept
    assert not {"after", "unknown", "type"} & {key for key, _ in kept}


@BOTH
def test_a_filter_begins_at_the_first_page_and_drops_what_it_does_not_know(staff: Staff, name: str) -> None:
    rows(60, status="failed")
    client = staff()
    second = look(client, name, look(client, name, "?type=shop.pack&status=failed&evil__x=1").links["Next page"])
    assert len(second.ids) == 10
    assert second.links["running"] == "?status=running&type=shop.pack"


@BOTH
def test_all_filters_are_cleared_at_once(staff: Staff, name: str) -> None:
    page = look(staff(), name, "?status=failed&type=shop.pack&q=shop")
    clear = next(link for text, link in page.links.items() if "Clear all filters" in text)
    assert clear == "?q=shop"


@BOTH
@pytest.mark.parametrize(
    "query", ["?status=lost", "?status=FAILED", "?type=%00", "?type=" + "x" * 201, "?blocked_by=7", "?blocked_by=%00"]
)
def test_a_filter_that_there_is_not_leads_back_to_all(staff: Staff, name: str, query: str) -> None:
    ids = rows(2)
    reply = staff().get(address(name) + query)
    assert (reply.status_code, reply["Location"]) == (302, address(name) + "?e=1")
    assert look(staff(), name, query).ids == texts(ids)


LOOKUPS = [
    "queue=default", "id__gt=0", "last_error__icontains=x", "input__a=1", "current_job__last_error__regex=(a+)+$",
    "type_name__regex=(a+)%2B%24", "status__in=failed", "o=queue", "chain_id=7", "pk=x", "failed_attempts__error=x",
    "priority__year=5", "_facets=True", "all=", "p=99999999999",
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_what_a_request_says_besides_reaches_no_query(staff: Staff, name: str, lookup: str) -> None:
    ids = rows(2)
    client = staff()
    plain = statements(lambda: look(client, name))
    with CaptureQueriesContext(connection) as queries:
        page = look(client, name, f"?{lookup}")
    assert page.ids == texts(ids)
    assert [_without_values(query["sql"]) for query in queries] == [_without_values(sql) for sql in plain]


@BOTH
def test_each_shape_of_chain_is_listed(staff: Staff, name: str) -> None:
    for make in SHAPES.values():
        make()
    seen = look(staff("view_payload"), name)
    assert len(seen.ids) == (Job.objects.count() if name == JOBS else len(set(Job.objects.values_list("chain_id"))))


def _without_values(sql: str) -> str:
    """Savepoints have names of their own, sessions and users their keys."""
    return sql if "django_jobchains_job" in sql else sql.split("WHERE", maxsplit=1)[0].split('"s', maxsplit=1)[0]
