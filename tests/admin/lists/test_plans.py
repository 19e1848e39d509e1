"""Each list finds its rows by an index, reads little more than it shows, and sorts no more than that."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from pytest_django import DjangoDbBlocker

from django_jobchains.admin import estimates, lists
from django_jobchains.admin.classes import ChainAdmin, JobAdmin
from django_jobchains.ids import new_id
from django_jobchains.models import Chain, Job
from django_jobchains.store import get_store
from tests.admin.lists.seen import CHAINS, JOBS, look
from tests.queries.shapes import MORNING, row
from tests.store.plans import nodes, plans, rows_read, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql, pytest.mark.slow, pytest.mark.timeout(300)]
BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])

#: Chains, each of one to three jobs; of twenty types.
CHAIN_COUNT = 20_000
#: Of what has ended badly, waits or runs there are some hundreds; a page is 50 rows, of up to twenty types at once.
MOST_ROWS = 3_000
KEY = "order-700"


@pytest.fixture(scope="module", autouse=True)
def _many(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Any:
    with django_db_blocker.unblock():
        Job.objects.bulk_create(_jobs(), batch_size=5_000)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE django_jobchains_job")
        yield
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE django_jobchains_job CASCADE")


def _jobs() -> Any:
    statuses = {0: "failed", 1: "running", 2: "pending", 3: "cancelled", 4: "blocked"}
    for number in range(CHAIN_COUNT):
        chain_id, steps = new_id(), 1 + number % 3
        last = statuses.get(number % 200, "completed")
        values: dict[str, Any] = {
            "chain_type_name": f"shop.type_{number % 20:02}",
            "created_at": MORNING + timedelta(seconds=number),
            "deduplication_key": f"order-{number}" if number % 7 == 0 else None,
        }
        for step in range(steps):
            is_last = step == steps - 1
            name = f"shop.step_{step}" if step else values["chain_type_name"]
            status = last if is_last else "completed"
            output = {} if is_last and status == "completed" else None
            id_ = new_id() if step else chain_id
            yield row(id_, chain_id, step, type_name=name, status=status, output=output, **values)


def assert_reads_little(call: Callable[[], object], most: int = MOST_ROWS) -> None:
    use_plans("auto")
    with plans() as found:
        call()
    each = [node for plan in found for node in nodes(plan)]
    of_jobs = [node for node in each if node.get("Relation Name") == "django_jobchains_job"]
    assert of_jobs
    wrong = [node for node in of_jobs if node["Node Type"] == "Seq Scan" or rows_read(node) > most]
    wrong += [node for node in each if "Sort" in node["Node Type"] and rows_read(node["Plans"][0]) > most]
    assert not wrong, [(node["Node Type"], node.get("Index Name"), rows_read(node)) for node in wrong]


QUERIES = [
    "", "?o=OLDEST", "?status=open", *[f"?status={status}" for status in ("blocked", "running", "failed", "completed")],
    "?type=TYPE", "?type=shop.absent", "?status=failed&type=TYPE", "?status=failed&type=shop.absent",
    "?status=cancelled&type=TYPE", "?status=completed&type=TYPE", "?status=open&type=TYPE", "?q=shop.type",
    "?status=failed&q=shop.type", "?status=completed&q=shop.type", f"?q={KEY}", "?q=ID", "?q=LAST", "?q=START",
    f"?q={KEY}&status=failed", "?blocked_by=ID",
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("query", QUERIES)
def test_a_list_reads_little(superuser: Client, name: str, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the count, which reads up to ten thousand and is bounded in time."""
    monkeypatch.setattr(lists, "amount_of", lambda rows, shown: shown)
    asked = _filled(superuser, name, query)
    assert_reads_little(lambda: look(superuser, name, asked))
    page = look(superuser, name, asked)
    if "Next page" in page.links:
        assert_reads_little(lambda: look(superuser, name, page.links["Next page"]))


def _filled(client: Client, name: str, query: str) -> str:
    middle = Job.objects.filter(deduplication_key=KEY).order_by("chain_index")
    first, last = middle[0], middle.reverse()[0]
    turned = look(client, name).links["Age"].split("o=")[1]
    values = {"OLDEST": turned, "TYPE": first.chain_type_name, "START": str(last.id)[:11]}
    values |= {"ID": str(first.id), "LAST": str(last.id)}
    for word, value in values.items():
        query = query.replace(word, value)
    return query


def test_the_types_present_are_a_probe_each() -> None:
    names = get_store().type_names(1_000)
    assert len(names) == 22
    assert get_store().chain_type_names(1_000) == [f"shop.type_{number:02}" for number in range(20)]
    assert_reads_little(lambda: get_store().type_names(1_000), 50)
    assert_reads_little(lambda: get_store().chain_type_names(1_000), 50)
    assert get_store().type_names(5) == names[:5]


@pytest.mark.parametrize(("admin", "model"), [(ChainAdmin, Chain), (JobAdmin, Job)])
def test_an_estimate_reads_no_row(admin: Any, model: Any) -> None:
    with plans() as found:
        assert estimates._planned(model.objects.all()) > 10_000
    assert not [node for plan in found for node in nodes(plan) if "Actual Rows" in node]
