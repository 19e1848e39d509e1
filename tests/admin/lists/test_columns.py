"""The columns of the lists."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from tests.admin.lists.browsing import CHAINS, JOBS, ListPage, open_list
from tests.support.chain_shapes import row, rows, statements, steps

pytestmark = pytest.mark.django_db


def ago(**parts: float) -> datetime:
    return datetime.now(UTC) - timedelta(**parts)


def only(seen: ListPage) -> dict[str, str]:
    assert len(seen.rows) == 1, seen.text
    return seen.rows[0]


def test_the_columns_of_a_chain(staff):
    chain_id = steps(
        3,
        type_name="shop.ship",
        status="running",
        queue="parcels",
        created_at=ago(minutes=5),
        attempt=3,
        crashes=1,  # crashes do not count against the limit
        max_attempts=5,
        deduplication_key="order-7",
        last_error="ValueError: no stamps\nand more",
    )
    Job.objects.filter(pk=chain_id).update(created_at=ago(hours=3))
    seen = only(open_list(staff("view_payload"), CHAINS))
    assert seen == {
        "id": str(chain_id),
        "status": "running",
        "type_name": "shop.pack",
        "queue": "parcels",
        "created": "3 h",
        "duration": "3 h so far",
        "step": "3 shop.ship",
        "attempts": "2 of 5",
        "key": "order-7",
        "error": "ValueError: no stamps",
    }


def test_the_duration_of_a_finished_chain(staff):
    rows(1, status="completed", created_at=ago(days=3), finished_at=ago(days=3) + timedelta(seconds=90))
    seen = only(open_list(staff(), CHAINS))
    assert (seen["duration"], seen["created"], seen["step"], seen["status"]) == ("1 min 30 s", "3 d", "1", "completed")


def test_the_columns_of_a_job(staff):
    id_, chain_id = new_id(), new_id()
    job = row(
        id_, chain_id, 1, type_name="shop.ship", status="running", queue="parcels", created_at=ago(hours=3),
        last_attempt_at=ago(minutes=4), attempt=2, leased_by="worker-1", last_error="ValueError: no stamps\nand more",
    )  # fmt: skip
    Job.objects.bulk_create([job])
    page = open_list(staff("view_payload"), JOBS)
    assert only(page) == {
        "id": str(id_),
        "status": "running",
        "type_name": "shop.ship",
        "chain": "shop.pack",
        "step": "2",
        "queue": "parcels",
        "created": "3 h",
        "run_at": "4 min ago",
        "attempts": "2",
        "worker": "worker-1",
        "error": "ValueError: no stamps",
    }
    assert page.links["shop.pack"].endswith(f"/chain/{chain_id}/change/")


def test_a_scheduled_job_shows_when_it_is_due(staff):
    rows(1, run_at=ago(minutes=-61))
    seen = only(open_list(staff(), JOBS))
    assert (seen["status"], seen["run_at"]) == ("scheduled", "in 60 min")


def test_a_step_before_the_last_is_continued(staff):
    steps(2, status="completed", output={}, completed_by="worker-2")
    seen = open_list(staff(), JOBS)
    assert [each["status"] for each in seen.rows] == ["completed", "continued"]
    assert seen.rows[0]["worker"] == "worker-2"


def test_a_status_has_a_css_class(staff):
    rows(1, status="failed")
    classes = [given.get("class") for tag, given in open_list(staff(), CHAINS).tags if tag == "span"]
    assert "jobchains-status jobchains-status-failed" in classes


@pytest.mark.parametrize("name", [CHAINS, JOBS])
def test_times_have_an_exact_tooltip(staff, name):
    created = ago(hours=3)
    rows(1, created_at=created)
    [moment, *_] = [given for tag, given in open_list(staff(), name).tags if tag == "time"]
    assert datetime.fromisoformat(moment["datetime"]) == created
    assert str(created.year) in moment["title"]


@pytest.mark.parametrize("name", [CHAINS, JOBS])
def test_without_view_payload_only_the_type_of_an_error_is_shown(staff, name):
    rows(1, status="failed", last_error="shop.errors.NoStamps: canary-7 is not to be seen")
    page = open_list(staff(), name)
    assert only(page)["error"] == "shop.errors.NoStamps"
    assert "canary" not in page.html


@pytest.mark.parametrize("name", [CHAINS, JOBS])
def test_large_columns_are_not_read(staff, name):
    rows(3, status="failed", last_error="E: " + "x" * 60_000, input={"canary": 1}, context={"canary": 2})
    client = staff("view_payload")
    with CaptureQueriesContext(connection) as queries:
        page = open_list(client, name)
    assert "canary" not in page.html
    assert len(page.html) < 60_000
    [sql] = [each["sql"] for each in queries if "error_start" in each["sql"]]
    selected = sql[: sql.index(" FROM ")]
    for column in ("input", "output", "context"):
        assert f'."{column}"' not in selected.replace('"output" IS NOT NULL', "").replace('"output" IS NULL', "")


@pytest.mark.parametrize("name", [CHAINS, JOBS])
@pytest.mark.parametrize("query", ["", "?status=failed", "?status=open&type=shop.pack", "?q=shop"])
def test_the_number_of_statements_does_not_depend_on_the_rows_of_a_page(staff, name, query):
    client = staff("view_payload")
    rows(1, status="failed"), rows(1, status="running")
    few = len(statements(lambda: open_list(client, name, query)))
    rows(24, status="failed"), rows(24, status="running")
    many = len(statements(lambda: open_list(client, name, query)))
    assert few == many
    assert few <= 14
