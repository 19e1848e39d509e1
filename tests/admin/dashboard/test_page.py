"""Access to the dashboard, the structure of its page, its alerts, and its statements."""

import re
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin import AdminSite, site
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobchains import queues, schedules
from django_jobchains.admin import DashboardAdmin, JobAdmin
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.dashboard import views
from django_jobchains.models import Dashboard
from django_jobchains.processors import JobType, get_registry
from tests.admin.browsing import change_queue, fragment, index, open_dashboard, open_list, subject
from tests.support.jobs import MAIL, create, database_now

pytestmark = pytest.mark.django_db


def test_the_dashboard_requires_a_login_and_the_permission_to_view_jobs(client, staff, operator, monkeypatch):
    for address in (index(), fragment()):
        assert "/login/" in client.get(address)["Location"]
    assert open_dashboard(operator).root.all(id="jobchains-dashboard")
    pages = [index(), fragment(), subject("type", "shop.ship"), subject("queue", "mail")]
    for client in (staff("view_chain", "change_queuestate", view=False), operator):
        if client is operator:  # a subclass can decide too
            monkeypatch.setattr(JobAdmin, "has_dashboard_permission", lambda self, request: False)
        assert [client.get(address).status_code for address in pages] == [403] * 4
        assert "Dashboard" not in open_dashboard(client, reverse("admin:index")).text
        assert change_queue(client, "pause", "mail").status_code == 403


def test_users_who_may_only_view_see_no_buttons(staff, store):
    queues.pause("mail")
    create(store)
    page = open_dashboard(staff())
    [inner] = page.root.all(id="jobchains-dashboard")
    assert page.table("queues")
    assert inner.all("form") == inner.all("button") == inner.all("input") == []


def test_the_refreshed_part_equals_the_page(operator, store, beat, fail, monkeypatch):
    beat()
    create(store, 3)
    fail()
    # Both pages show the same data, because a new minute could begin between two readings.
    readings, read = [], views.DashboardPages.read

    def read_once(*args):
        readings[:] = readings or [read(*args)]
        return readings[0]

    monkeypatch.setattr(views.DashboardPages, "read", read_once)
    page = open_dashboard(operator)
    [whole], part = page.root.all(id="jobchains-dashboard"), open_dashboard(operator, fragment()).root
    assert whole.attributes["data-jobchains-refresh"] == fragment()
    headings = [heading.text for heading in part.all("h2")]
    assert headings == [heading.text for heading in whole.all("h2")]
    assert headings[:2] == ["Alerts", "Throughput and failures: Last hour"]
    assert [line.text for line in part.all("tr")] == [line.text for line in whole.all("tr")]
    assert part.all("h1") == part.all("html") == []
    [controls] = page.root.all("p", **{"data-jobchains-refresh-of": "jobchains-dashboard"})
    [link], [button], [note] = controls.all("a"), controls.all("button"), controls.all("span", role="status")
    assert (link.text, link.attributes["href"]) == ("Refresh", index())
    assert (button.text, "hidden" in button.attributes, note.text) == ("Pause auto-refresh", True, "")


def test_headings_are_nested_and_tables_and_fields_are_labelled(operator, store, beat):
    beat()
    queues.pause("mail")
    create(store, 3)
    page = open_dashboard(operator).root
    levels = [int(element.tag[1]) for element in page.all() if element.tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    [inner] = page.all(id="jobchains-dashboard")
    assert all(cell.attributes.get("scope") in ("row", "col") for cell in inner.all("th"))
    fields = {field.attributes["id"] for field in inner.all("input") if field.attributes.get("type") != "hidden"}
    assert fields == {label.attributes["for"] for label in inner.all("label")} != set()
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("size", [1, 30])
def test_it_takes_a_constant_number_of_statements(operator, store, beat, fail, size):
    for number in range(size):
        beat(f"main:{number}:a")
        create(store, 2, queue=f"queue {number}")
        queues.pause(f"queue {number}")
        fail(f"shop.type_{number}")
    with CaptureQueriesContext(store.connection) as statements:
        open_dashboard(operator, fragment())
    assert len(statements) == (18 if store.connection.vendor == "postgresql" else 13)


def test_a_slow_database_shows_an_error(viewer, monkeypatch):
    def late(using):
        raise TimeLimitExceeded

    monkeypatch.setattr(views, "overview", late)
    page = open_dashboard(viewer)
    assert "The database did not respond within 5 seconds." in page.text
    assert "Chains" in page.text
    assert viewer.get(fragment()).status_code == 503


def test_the_dashboard_is_linked_from_the_index_the_sidebar_and_every_list(superuser):
    assert open_dashboard(superuser, reverse("admin:index")).links["Dashboard"] == index()
    for model in ("chain", "job", "schedule", "limitoverride"):
        page = open_list(superuser, model)
        [tools] = page.root.all("ul", "object-tools")
        [link] = [link for link in tools.all("a") if link.text == "Dashboard"]
        assert link.attributes["href"] == index()
        [sidebar] = page.root.all("nav", id="nav-sidebar")
        assert index() in {link.attributes["href"] for link in sidebar.all("a")}


def test_it_has_a_title_and_times_on_one_clock(viewer, settings, beat, fail):
    beat()
    fail()
    for language, clock in (("en", r"\d+:\d\d:\d\d [ap]\.m\."), ("de", r"\d\d:\d\d:\d\d")):
        settings.LANGUAGE_CODE = language
        page = open_dashboard(viewer)
        title = {"en": "Dashboard", "de": "Übersicht"}[language]
        assert page.root.all("title")[0].text.startswith(f"{title} |")
        assert [heading.text for heading in page.root.all("h1")][-1] == title
        assert re.search({"en": "As of ", "de": "Stand: "}[language] + clock, page.text)
        tooltips = [time.attributes["title"] for time in page.root.all("time") if "title" in time.attributes]
        assert len(tooltips) == 2
        assert [each for each in tooltips if not re.search(f"{clock} UTC$", each)] == []


@pytest.mark.parametrize("use_tz", [True, False])
def test_its_times_are_in_the_time_zone_of_the_project(superuser, settings, beat, fail, monkeypatch, use_tz):
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Kathmandu", use_tz
    beat()
    fail()
    timed = JobType("shop.timed")
    monkeypatch.setitem(get_registry().declared, "shop.timed", timed)
    schedules.create("nightly", timed, every=3600)
    began = database_now()
    page = open_dashboard(superuser)
    [as_of] = re.findall(r"As of (\d+:\d\d):", page.text)
    assert as_of in {in_kathmandu(began)[:-3], in_kathmandu(database_now())[:-3]}
    times = [time.attributes for time in page.root.all("time") if "title" in time.attributes]
    assert len(times) == 3
    for time in times:
        assert f" {in_kathmandu(datetime.fromisoformat(time['datetime']))} " in time["title"]
        assert time["title"].endswith("+0545")


def in_kathmandu(time):
    local = time.astimezone(ZoneInfo("Asia/Kathmandu"))
    return f"{local.hour % 12 or 12}:{local:%M:%S}"


def test_a_site_without_the_job_admin_has_no_dashboard(rf, django_user_model):
    request = rf.get("/")
    request.user = django_user_model.objects.create_superuser("root")
    other = AdminSite("other")
    other.register(Dashboard, DashboardAdmin)
    assert views.page_url(other, request) == ""
    assert not other.get_model_admin(Dashboard).has_view_permission(request)
    assert views.page_url(site, request) == index()


# Alerts, which are the problems of ``monitoring``


def test_without_problems_the_page_shows_what_to_do(viewer, store, beat):
    text = open_dashboard(viewer).section("alerts").text
    assert "No jobs have been enqueued yet" in text
    assert "manage.py run_jobworker" in text
    create(store, 1, delay_seconds=3600)
    page = open_dashboard(viewer)
    assert page.alerts() == ["Problem No worker is running."]
    assert "Start a worker with manage.py run_jobworker" in page.section("alerts").text
    beat()
    page = open_dashboard(viewer)
    assert (page.alerts(), "There are no alerts." in page.section("alerts").text) == ([], True)


def test_each_alert_has_its_severity_and_links_to_a_section_of_the_page(viewer, store, beat, fail):
    beat(type_names=(MAIL,), stuck=1)
    for number in range(5):
        queues.pause(f"mail {number}")
        create(store, 1, queue=f"mail {number}")
    fail()
    page = open_dashboard(viewer)
    targets = {link.attributes["href"] for link in page.section("alerts").all("a")}
    assert targets == {"#jobchains-types", "#jobchains-workers", "#jobchains-queues", "#jobchains-failing"}
    assert all(page.root.all(id=target.removeprefix("#")) for target in targets)
    assert [line.split()[0] for line in page.alerts()] == ["Problem"] * 2 + ["Warning"] * 5
    assert page.alerts()[5] == "Warning 2 more paused queues have due jobs."
    [first, others] = page.section("alerts").all("ul")
    assert (len(first.all("li")), len(others.all("li"))) == (views.MAX_ALERTS, 3)
    [folded] = page.section("alerts").all("details")
    assert folded.all("summary")[0].text == "3 more alerts"


def test_incomplete_counts_are_reported(viewer, store, monkeypatch):
    for module in ("store.stats", "monitoring.facts"):
        monkeypatch.setattr(f"django_jobchains.{module}.MAX_GROUPS", 2)
    for number, is_incomplete in ((2, False), (1, True)):
        for place in range(number):
            create(store, 1, queue=f"queue {number} {place}")
        text = open_dashboard(viewer).section("queues").text
        assert ("There are too many queues and types" in text) is is_incomplete
