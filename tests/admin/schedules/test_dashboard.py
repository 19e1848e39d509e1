"""What the dashboard shows of schedules."""

import re
from datetime import timedelta

import pytest

from django_jobchains import schedules
from django_jobchains.admin import JobAdmin
from django_jobchains.admin.dashboard import views
from django_jobchains.models import Schedule
from tests.admin.browsing import open_dashboard
from tests.admin.schedules.conftest import Report
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db


def at(name, **duration):
    Schedule.objects.filter(pk=name).update(next_tick_at=database_now() + timedelta(seconds=5, **duration))


def test_the_next_ticks(viewer, report, of_code, beat, monkeypatch):
    beat(type_names=("shop.report",), schedules="digest")
    of_code()
    of_code("orphan", is_declared=False)
    for name in ("paused", "soon", "later", "last"):
        schedules.create(name, report, every=60, input=Report("day"))
    schedules.pause("paused")
    at("soon", minutes=3), at("coded", minutes=9), at("later", minutes=20), at("last", days=2)
    monkeypatch.setattr(views, "MAX_TICKS", 3)
    page = open_dashboard(viewer)
    assert page.table("schedules") == [
        ["soon", "shop.report", "active", "in 3 min"],
        ["coded", "shop.report", "active", "in 9 min"],
        ["later", "shop.report", "active", "in 20 min"],
    ]
    assert page.alerts() == ["Warning Schedule orphan is orphaned: no running worker declares it, so it does not fire."]


def test_a_schedule_that_is_failing(viewer, staff, failing, beat, monkeypatch):
    beat(type_names=("shop.report",))
    page = open_dashboard(viewer)
    [alert] = page.alerts()
    assert re.fullmatch(r"Problem Schedule broken is failing: its tick could not be fired \d+ s ago\.", alert)
    assert page.table("schedules")[0][2] == "failing"
    with monkeypatch.context() as patch:  # of a user from whom jobs are hidden
        patch.setattr(JobAdmin, "sees_all_rows", lambda self, request: False)
        assert len(open_dashboard(viewer).alerts()) == 1
    page = open_dashboard(staff())
    assert page.alerts() == []
    assert "broken" not in page.text


def test_without_schedules_there_is_no_section(viewer, report, of_code, beat):
    assert "Next ticks of schedules" not in open_dashboard(viewer).text
    beat(schedules="digest")
    of_code("orphan", is_declared=False)
    assert "No schedule fires." in open_dashboard(viewer).section("schedules").text
