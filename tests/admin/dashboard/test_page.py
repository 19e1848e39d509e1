"""Access to the dashboard, the structure of its page, and its statements."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.admin import AdminSite, site
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_jobchains import queues
from django_jobchains.admin import JobAdmin
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.dashboard import views
from tests.admin.dashboard.browsing import Page, fragment, index, open_dashboard
from tests.admin.dashboard.conftest import fail
from tests.support.jobs import create

pytestmark = pytest.mark.django_db

Staff = Callable[..., Client]


def test_anonymous_users_are_redirected_to_the_login(client):
    for address in (index(), fragment()):
        reply = client.get(address)
        assert (reply.status_code, "/login/" in reply["Location"]) == (302, True)


def test_the_dashboard_requires_the_permission_to_view_jobs(staff):
    client = staff("view_chain", "change_queuestate", view=False)
    assert open_dashboard(client).root.all(id="jobchains-dashboard") == []
    assert client.get(fragment()).status_code == 403


def test_a_subclass_can_decide_who_sees_the_dashboard(operator, monkeypatch):
    monkeypatch.setattr(JobAdmin, "has_dashboard_permission", lambda self, request: False)
    assert open_dashboard(operator).root.all(id="jobchains-dashboard") == []
    assert operator.get(fragment()).status_code == 403
    assert (
        operator.post("/admin/django_jobchains/job/dashboard/queue/", {"queue": "q", "verb": "pause"}).status_code
        == 403
    )


def test_the_index_of_the_app_shows_lists_and_dashboard(staff):
    page = open_dashboard(staff())
    assert page.root.all(id="jobchains-dashboard")
    links = {link.attributes.get("href") for link in page.root.all("a")}
    assert {"/admin/django_jobchains/chain/", "/admin/django_jobchains/job/"} <= links


def test_users_who_may_only_view_see_no_buttons(staff, store):
    queues.pause("mail")
    create(store)
    inner = open_dashboard(staff(), fragment())
    assert inner.rows("queues")
    assert inner.root.all("form") == inner.root.all("button") == inner.root.all("input") == []


def test_the_refreshed_part_equals_the_page(operator, store, beat, monkeypatch):
    beat()
    create(store, 3)
    fail(store)
    # Both pages show the same data, because a new minute could begin between two readings.
    readings: list[Any] = []
    read = views.DashboardAdmin.dashboard

    def read_once(*args: Any) -> Any:
        readings[:] = readings or [read(*args)]
        return readings[0]

    monkeypatch.setattr(views.DashboardAdmin, "dashboard", read_once)
    [whole] = open_dashboard(operator).root.all(id="jobchains-dashboard")
    assert whole.attributes["data-jobchains-refresh"] == fragment()
    part = Page(operator.get(fragment()).content.decode()).root
    headings = [heading.text for heading in part.all("h2")]
    assert headings == [heading.text for heading in whole.all("h2")]
    assert headings[0] == "Alerts"
    assert [line.text for line in part.all("tr")] == [line.text for line in whole.all("tr")]
    assert part.all("h1") == part.all("html") == []


def test_the_page_has_a_refresh_link_and_a_button_to_pause_auto_refresh(viewer):
    page = open_dashboard(viewer)
    [controls] = page.root.all("p", **{"data-jobchains-refresh-of": "jobchains-dashboard"})
    [link], [button], [note] = controls.all("a"), controls.all("button"), controls.all("span", role="status")
    assert (link.text, link.attributes["href"]) == ("Refresh", index())
    assert (button.text, "hidden" in button.attributes) == ("Pause auto-refresh", True)
    assert note.text == ""


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
    labelled = {label.attributes["for"] for label in inner.all("label")}
    fields = [field for field in inner.all("input") if field.attributes.get("type") != "hidden"]
    assert fields
    assert {field.attributes["id"] for field in fields} == labelled
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("size", [1, 30])
def test_it_takes_a_constant_number_of_statements(operator, store, beat, size):
    for number in range(size):
        beat(f"main:{number}:a")
        create(store, 2, queue=f"queue {number}")
        queues.pause(f"queue {number}")
        fail(store, f"shop.type_{number}")
    with CaptureQueriesContext(store.connection) as statements:
        open_dashboard(operator, fragment())
    assert len(statements) == (17 if store.connection.vendor == "postgresql" else 12)


def test_a_slow_database_shows_an_error(viewer, monkeypatch):
    def late(using: str) -> None:
        raise TimeLimitExceeded

    monkeypatch.setattr(views, "overview", late)
    page = open_dashboard(viewer)
    assert "The database did not respond within 5 seconds." in page.root.text
    assert "Chains" in page.root.text
    assert viewer.get(fragment()).status_code == 503


def test_a_site_without_the_job_admin_has_no_dashboard(viewer):
    from django_jobchains.templatetags.jobchains_admin import _dashboard_admin

    assert _dashboard_admin(AdminSite("other")) is None
    assert _dashboard_admin(None) is None
    assert _dashboard_admin(site) is not None
