"""The columns of the lists."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from tests.admin.browsing import open_list
from tests.support.chain_shapes import SHAPES, row, rows, statements, steps

pytestmark = pytest.mark.django_db


def ago(**parts):
    return datetime.now(UTC) - timedelta(**parts)


def only(page):
    assert len(page.rows) == 1, page.text
    return page.rows[0]


def test_the_columns_of_a_chain(viewer):
    chain_id = steps(
        3, type_name="shop.ship", status="running", queue="parcels", created_at=ago(minutes=5), attempt=3,
        crashes=1,  # crashes do not count against the limit
        max_attempts=5, deduplication_key="order-7", last_error="ValueError: no stamps\nand more",
    )  # fmt: skip
    Job.objects.filter(pk=chain_id).update(created_at=ago(hours=3))
    assert only(open_list(viewer, "chain")) == {
        "id": str(chain_id),
        "status": "running",
        "type_name": "shop.pack",
        "queue": "parcels",
        "created": "3 h",
        "duration": "3 h so far",
        "notes": ["step 3: shop.ship"],
        "attempts": "2 of 5",
        "key": "order-7",
        "error": "ValueError: no stamps",
    }


def test_the_columns_of_a_job(viewer):
    id_, chain_id = new_id(), new_id()
    job = row(
        id_, chain_id, 1, type_name="shop.ship", status="running", queue="parcels", created_at=ago(hours=3),
        last_attempt_at=ago(minutes=4), attempt=2, leased_by="worker-1", last_error="ValueError: no stamps\nand more",
    )  # fmt: skip
    Job.objects.bulk_create([job])
    page = open_list(viewer, "job")
    assert only(page) == {
        "id": str(id_),
        "status": "running",
        "type_name": "shop.ship",
        "chain": "step 2",
        "notes": ["shop.pack"],
        "queue": "parcels",
        "created": "3 h",
        "run_at": "4 min ago",
        "attempts": "2",
        "worker": "worker-1",
        "error": "ValueError: no stamps",
    }
    assert page.links["step 2"].endswith(f"/chain/{chain_id}/change/")


def test_columns_of_rows_in_other_states(staff):
    finished = ago(days=3) + timedelta(seconds=90)
    rows(1, status="completed", created_at=ago(days=3), finished_at=finished, completed_by="worker-2")
    client = staff()
    seen = only(open_list(client, "chain"))
    assert (seen["duration"], seen["created"], seen["notes"], seen["status"]) == ("1 min 30 s", "3 d", [], "completed")
    assert only(open_list(client, "job"))["worker"] == "worker-2"
    assert "queue" in seen
    steps(2, run_at=ago(minutes=-61))
    assert [row["duration"] for row in open_list(client, "chain").rows] == ["", "1 min 30 s"], "it only waits"
    later, earlier, _ = open_list(client, "job").rows
    assert (later["status"], later["run_at"], earlier["status"]) == ("scheduled", "in 60 min", "continued")


def test_expired_jobs_differ_from_other_cancelled_ones(staff):
    limit = ago(minutes=5)
    rows(1, status="cancelled", finished_at=limit, expires_at=limit, cancel_requested_at=limit)
    rows(1, status="cancelled", finished_at=limit, expires_at=limit, cancel_requested_at=ago(minutes=6))
    client = staff()
    for model in ("chain", "job"):
        assert [row["status"] for row in open_list(client, model).rows] == ["cancelled", "expired"]


def test_statuses_have_a_css_class_and_times_a_tooltip(staff, model):
    created = ago(hours=3)
    rows(1, status="failed", created_at=created)
    page = open_list(staff(), model).root
    assert page.all("span", "jobchains-status-failed")
    moment = page.all("time")[0].attributes
    assert datetime.fromisoformat(moment["datetime"]) == created
    assert str(created.year) in moment["title"]


def test_columns_without_values_are_left_out(staff):
    rows(2)
    client = staff()
    assert not {"key", "worker"} & {*open_list(client, "chain").rows[0], *open_list(client, "job").rows[0]}
    rows(1, deduplication_key="order-7", status="running", leased_by="worker-1")
    assert [row["key"] for row in open_list(client, "chain").rows] == ["order-7", "", ""]
    assert [row["worker"] for row in open_list(client, "job").rows] == ["worker-1", "", ""]


def test_large_columns_are_not_read(viewer, model):
    large = {"canary": "x" * 20_000}
    rows(3, status="failed", last_error="E: " + "x" * 60_000, input=large, context={"canary": 2})
    with CaptureQueriesContext(connection) as queries:
        page = open_list(viewer, model)
    assert "canary" not in page.html
    assert len(page.html) < 60_000
    [sql] = [each["sql"] for each in queries if "error_start" in each["sql"]]
    selected = sql[: sql.index(" FROM ")].replace('"output" IS NOT NULL', "").replace('"output" IS NULL', "")
    assert not [name for name in ("output", "context") if f'."{name}"' in selected]


@pytest.mark.parametrize("query", ["", "?status=failed", "?status=incomplete&type=shop.pack", "?q=shop"])
def test_the_number_of_statements_does_not_depend_on_the_rows_of_a_page(viewer, model, query):
    counts = []
    for number in (1, 24):
        rows(number, status="failed"), rows(number, status="running")
        counts.append(len(statements(lambda: open_list(viewer, model, query))))
    assert counts[0] == counts[1] <= 24


def test_each_shape_of_chain_is_listed(viewer, model):
    for make in SHAPES.values():
        make()
    column = "chain_id" if model == "chain" else "pk"
    assert len(open_list(viewer, model).ids) == Job.objects.values(column).distinct().count()
