"""The list of schedules: its columns, filters and search, and what it reads."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import schedules
from django_jobchains.admin import ChainAdmin, ScheduleAdmin
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.lists import changelists
from django_jobchains.models import Schedule
from tests.admin.browsing import index, open_list, text_of, url
from tests.admin.schedules.conftest import Report
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db


def names(client, query=""):
    return [row["name"] for row in open_list(client, "schedule", query).rows]


@pytest.fixture
def one_of_each(report, of_code, failing, beat):
    """Schedules in each state: "coded" is active, and "broken" is failing."""
    of_code()
    of_code("orphan", is_declared=False)
    schedules.create("idle", report, every=60, input=Report("day"))
    schedules.pause("idle")
    Schedule.objects.filter(pk__in=("idle", "orphan")).update(last_error="E: x", last_error_at=database_now())
    beat(schedules="digest")


def test_the_columns(viewer, report):
    schedules.create("nightly", report, cron="0 3 * * *", timezone="Europe/Berlin", input=Report("day"))
    schedules.create("often", report, every=timedelta(minutes=5), input=Report("day"))
    chain = schedules.run_now("nightly")
    Schedule.objects.filter(pk="nightly").update(last_tick_at=database_now() - timedelta(hours=3, seconds=5))
    page = open_list(viewer, "schedule")
    nightly, often = page.rows
    assert (nightly["name"], nightly["state"], nightly["notes"][0]) == ("nightly", "active", "shop.report")
    assert (nightly["rule"], often["rule"]) == ("0 3 * * *", "every 5 min")
    assert nightly["notes"][1] == "Europe/Berlin"
    assert (nightly["next_tick"][:3], often["next_tick"]) == ("in ", "in 4 min")
    assert (nightly["last_tick"], often["last_tick"]) == ("3 h ago pending", "")
    assert page.links["pending"] == url("change", chain)
    assert page.links["often"] == url("change", schedules.get("often"), "schedule")


def test_paused_and_orphaned_schedules_have_no_next_tick(viewer, one_of_each):
    shown = {row["name"]: (row["state"], row["next_tick"] != "") for row in open_list(viewer, "schedule").rows}
    assert shown == {
        "broken": ("failing", True), "coded": ("active", True),
        "idle": ("paused", False), "orphan": ("orphaned", False),
    }  # fmt: skip


def test_filters_show_counts(viewer, one_of_each):
    page = open_list(viewer, "schedule")
    assert {"failing (1)", "active (1)", "paused (1)", "orphaned (1)"} <= {*page.choices("state")}
    assert {choice[-4:] for choice in page.choices("source")} >= {" (2)"}
    assert "failing" in open_list(viewer, "schedule", "?source=code").choices("state")


def test_filters_and_search(viewer, one_of_each):
    assert names(viewer) == ["broken", "coded", "idle", "orphan"]
    states = {"failing": "broken", "active": "coded", "paused": "idle", "orphaned": "orphan"}
    for state, name in states.items():
        assert names(viewer, f"?state={state}") == [name]
        assert schedules.get(name).state == state
    Schedule.objects.update(paused_at=database_now())
    assert len(names(viewer, "?state=paused")) == 4
    assert names(viewer, "?source=code") == ["coded", "orphan"]
    assert names(viewer, "?source=admin&q=R") == ["broken"]
    assert names(viewer, "?q=none") == []
    assert names(viewer, "?state=lost") == []
    assert names(viewer, "?q=%00") == names(viewer, "?name=idle&input__x=1") == names(viewer)


def test_errors_require_the_permission_to_view_payloads(staff, viewer, failing):
    [allowed], [other] = (open_list(client, "schedule").rows for client in (viewer, staff("view_schedule")))
    assert allowed["error"] == "shop.errors.NoStock: canary4711 is missing"
    assert other["error"] == "shop.errors.NoStock"


def test_pages_continue_where_the_page_before_ends(viewer, report, monkeypatch):
    monkeypatch.setattr(ScheduleAdmin, "list_per_page", 2)
    for number in range(5):
        schedules.create(f"s{number}", report, every=60, input=Report("day"))
    found, query = [], ""
    for _ in range(3):
        page = open_list(viewer, "schedule", query)
        found.append([row["name"] for row in page.rows])
        query = page.links.get("Next page", "")
    assert found == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    assert names(viewer, "?o=-1") == ["s4", "s3"]
    no_name = Schedule.objects.order_by("name").cursor_after(Schedule(name="s\0"))
    for cursor in ("nonsense", no_name):
        assert "This page does not exist" in open_list(viewer, "schedule", {"after": cursor}).text


def test_the_number_of_statements_does_not_depend_on_the_number_of_schedules(viewer, report):
    def statements():
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert viewer.get(url("changelist", model="schedule")).status_code == 200
        return len(captured)

    counts = []
    for number in range(8):
        schedules.create(f"s{number}", report, every=60, input=Report("day"))
        schedules.run_now(f"s{number}")
        counts.append(statements())
    assert counts[0] == counts[-1]


def test_a_list_that_takes_too_long_is_not_shown(viewer, monkeypatch):
    def give_up(*args):
        raise TimeLimitExceeded

    monkeypatch.setattr(changelists.KeysetChangeList, "get_results", give_up)
    assert viewer.get(url("changelist", model="schedule")).status_code == 503


def test_an_empty_list_has_a_text(viewer):
    page = open_list(viewer, "schedule")
    assert "There are no schedules yet. Schedules that your code declares are stored when a worker starts." in page.text


def test_users_without_the_permission_see_no_schedules(staff, report):
    schedules.create("mine", report, every=60, input=Report("day"))
    client, schedule = staff("view_payload", "run_schedule", "pause_schedule"), schedules.get("mine")
    for address in (url("changelist", model="schedule"), url("change", schedule, "schedule")):
        assert client.get(address).status_code == 403
    assert "mine" not in text_of(client.get(index()))


def test_hidden_schedules_are_nowhere(staff, report, monkeypatch, beat):
    """Also if ``has_view_permission`` hides single rows."""
    own = ScheduleAdmin.has_view_permission

    def has_view_permission(self, request, obj=None):
        return own(self, request, obj) and not (obj and obj.name == "concealed")

    for name in ("concealed", "shown"):
        schedules.create(name, report, every=60, input=Report("day"))
        schedules.run_now(name)
    Schedule.objects.update(last_error="E: x", last_error_at=database_now())
    beat(type_names=("shop.report",))
    monkeypatch.setattr(ScheduleAdmin, "has_view_permission", has_view_permission)
    client = staff("view_schedule", "run_schedule", "pause_schedule", "change_schedule", "delete_schedule")
    hidden = Schedule(pk="concealed")
    assert names(client) == ["shown"]
    assert "concealed" not in text_of(client.get(index()))
    assert client.get(url("change", hidden, "schedule")).status_code == 302
    assert client.get(url("pause", hidden, "schedule")).status_code == 404
    assert client.get(url("edit", hidden, "schedule")).status_code == 404
    page = open_list(client, "chain")
    assert page.choices("schedule") == ["All", "shown"]


def test_chains_that_the_user_may_not_view_are_not_shown(viewer, report, monkeypatch):
    schedules.create("mine", report, every=60, input=Report("day"))
    seen, hidden = schedules.run_now("mine"), schedules.run_now("mine")
    own = ChainAdmin.has_view_permission

    def has_view_permission(self, request, obj=None):
        return own(self, request, obj) and not (obj and obj.pk == hidden.pk)

    monkeypatch.setattr(ChainAdmin, "has_view_permission", has_view_permission)
    [row] = open_list(viewer, "schedule").rows
    assert "last_tick" not in row
    page = text_of(viewer.get(url("change", schedules.get("mine"), "schedule")))
    assert str(seen.id) in page
    assert str(hidden.id) not in page
