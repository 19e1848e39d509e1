"""The dashboard lists record workers with their counts, to users who may see all records of the model."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_jobchains import monitoring as overview
from tests.admin.dashboard.browsing import open_dashboard
from tests.admin.dashboard.conftest import beat
from tests.admin.records.browsing import put
from tests.records.models import Export, Letter

__all__ = ("beat",)

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.records.site")]

VIEW_JOBS = ("view_job", "view_chain")


def test_record_workers_are_listed_with_their_counts(superuser, store, beat):
    now = store.stats.time_ago(0)
    beat(type_names=("records.upload",))
    for state in ("queued", "processing", "completed", "failed", "failed", "cancelled", "uploading"):
        put(state=state, queued_at=now - timedelta(minutes=3))
    put(state="errored", finished_at=now)
    put(state="queued", queued_at=now, process_after=now + timedelta(hours=1))
    put(Letter, "queued", code="a", queued_at=now - timedelta(hours=2))
    put(Letter, "errored", code="b", finished_at=now - timedelta(hours=9))
    [letters, uploads] = open_dashboard(superuser).rows("records")
    assert uploads == ["records.upload uploads", "3", "3 min", "1", "1", "1", "2"]
    assert letters == ["records.letter letters", "1", "2 h", "0", "0", "1", "0"], "errored letters are not retried"


def test_waiting_records_without_a_worker_are_an_alert(superuser, store, beat):
    now = store.stats.time_ago(0)
    beat(type_names=("records.letter",))
    put(Letter, "queued", code="a", queued_at=now - timedelta(hours=2))
    put(state="queued", queued_at=now, process_after=now + timedelta(hours=1))
    assert open_dashboard(superuser).alerts() == []
    put(state="queued", queued_at=now - timedelta(minutes=3))
    problem = "Problem No worker processes records.upload: 1 record has been due for 3 min."
    assert open_dashboard(superuser).alerts() == [problem]


def test_a_missing_table_is_an_alert_and_the_others_are_listed(superuser, beat):
    beat(type_names=("records.upload",))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE records_letter RENAME TO not_migrated")
    page = open_dashboard(superuser)
    assert [row[0] for row in page.rows("records")] == ["records.upload uploads"]
    problem = "Problem The table of records.letter does not exist or lacks columns. Run manage.py migrate."
    assert page.alerts() == [problem]


def test_the_alert_about_records_is_for_users_who_see_them_all(member, store, beat):
    beat(type_names=("records.letter",))
    put(state="queued", queued_at=store.stats.time_ago(180))
    assert open_dashboard(member(*VIEW_JOBS)).alerts() == []
    [alert] = open_dashboard(member(*VIEW_JOBS, "view_upload")).alerts()
    assert "records.upload" in alert


def test_counts_have_a_limit(superuser, monkeypatch):
    for _ in range(3):
        put(state="failed")
    monkeypatch.setattr(overview.record_overview, "__kwdefaults__", {**_defaults(), "count_to": 2})
    assert open_dashboard(superuser).rows("records")[1][-1] == "2+"


def _defaults() -> dict[str, Any]:
    return dict(overview.record_overview.__kwdefaults__ or {})


@pytest.mark.parametrize(("permissions", "names"), [((), []), (("view_upload",), ["records.upload uploads"])])
def test_a_user_sees_no_counts_of_models_they_may_not_view(member, permissions, names):
    page = open_dashboard(member(*VIEW_JOBS, *permissions))
    sections = page.root.all("section", **{"aria-labelledby": "jobchains-records"})
    assert bool(sections) is bool(names)
    assert [row[0] for row in page.rows("records")] == names if names else True


def test_records_of_a_model_whose_rows_may_be_hidden_are_not_counted(member):
    put(Export, "queued")
    names = [row[0] for row in open_dashboard(member(*VIEW_JOBS, "view_export", "view_letter")).rows("records")]
    assert names == ["records.letter letters"]


def test_a_model_takes_a_constant_number_of_statements(django_assert_max_num_queries):
    for state in ("queued", "errored", "failed"):
        for _ in range(20):
            put(state=state)
    with django_assert_max_num_queries(3 * 5):
        overview.record_overview()
