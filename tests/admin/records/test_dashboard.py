"""The dashboard lists record workers with their counts, to users who may see all records of the model."""

from datetime import timedelta

import pytest
from django.db import connection

from django_jobchains.admin.dashboard import views
from django_jobchains.monitoring import record_overview
from tests.admin.browsing import index, open_dashboard, open_list
from tests.admin.records.site import put
from tests.records.models import Export, Letter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("record_site")]


def test_record_workers_are_listed_with_their_counts(superuser, store, beat, monkeypatch):
    now = store.stats.time_ago(0)
    beat(type_names=("records.upload",))
    for state in ("queued", "processing", "completed", "failed", "failed", "cancelled", "uploading"):
        put(state=state, queued_at=now - timedelta(minutes=3))
    put(state="errored", finished_at=now)
    put(state="queued", queued_at=now, process_after=now + timedelta(hours=1))
    put(Letter, "queued", code="a", queued_at=now - timedelta(hours=2))
    put(Letter, "errored", code="b", finished_at=now - timedelta(hours=9))
    page = open_dashboard(superuser)
    assert page.table("records") == [
        ["records.letter letters", "1", "2 h", "0", "0", "1", "0"],  # errored letters are not retried
        ["records.upload uploads", "3", "3 min", "1", "1", "1", "2"],
    ]
    assert page.alerts() == ["Problem No worker processes records.letter: 1 record has been due for 2 h."]
    monkeypatch.setattr(views, "record_overview", lambda *args, **options: record_overview(count_to=1, **options))
    assert open_dashboard(superuser).table("records")[1][-1] == "1+"


def test_lists_of_records_link_the_dashboard(superuser):
    [tools] = open_list(superuser, Export).root.all("ul", "object-tools")
    assert index() in [link.attributes["href"] for link in tools.all("a") if link.text == "Dashboard"]


def test_a_missing_table_is_an_alert_and_the_others_are_listed(superuser, beat):
    beat(type_names=("records.upload",))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE records_letter RENAME TO not_migrated")
    page = open_dashboard(superuser)
    assert [row[0] for row in page.table("records")] == ["records.upload uploads"]
    problem = "Problem The table of records.letter does not exist or lacks columns. Run manage.py migrate."
    assert page.alerts() == [problem]


@pytest.mark.parametrize(
    ("permissions", "names"),
    [
        ((), []),
        (("view_upload",), ["records.upload uploads"]),
        (("view_export", "view_letter"), ["records.letter letters"]),  # rows of exports may be hidden
    ],
)
def test_a_user_sees_counts_and_alerts_of_models_whose_records_they_all_see(staff, store, beat, permissions, names):
    beat(type_names=())
    for model, values in ((Export, {}), (Letter, {"code": "a"})):
        put(model, "queued", queued_at=store.stats.time_ago(180), **values)
    put(state="queued", queued_at=store.stats.time_ago(180))
    page = open_dashboard(staff("view_job", "view_chain", *permissions, view=False))
    sections = page.root.all("section", **{"aria-labelledby": "jobchains-records"})
    assert [row[0] for row in page.table("records")] == names if names else sections == []
    assert [alert.split()[4].rstrip(":") for alert in page.alerts()] == [name.split()[0] for name in names]


def test_a_model_takes_a_constant_number_of_statements(db, django_assert_max_num_queries):
    for state in ("queued", "errored", "failed"):
        for _ in range(20):
            put(state=state)
    with django_assert_max_num_queries(3 * 5):
        record_overview()
