"""The alerts of the dashboard, which are the problems of ``monitoring``."""

import pytest

from django_jobchains import queues
from tests.admin.dashboard.browsing import open_dashboard
from tests.admin.dashboard.conftest import fail
from tests.support.jobs import MAIL, create

pytestmark = pytest.mark.django_db


def test_an_empty_system_shows_how_to_start(viewer):
    page = open_dashboard(viewer)
    assert page.alerts() == []
    assert "No jobs have been enqueued yet" in page.section("alerts").text
    assert "manage.py run_jobworker" in page.section("alerts").text


def test_without_problems_there_are_no_alerts(viewer, store, beat):
    beat()
    create(store, 3)
    page = open_dashboard(viewer)
    assert page.alerts() == []
    assert "There are no alerts." in page.section("alerts").text


def test_without_a_worker_the_page_shows_how_to_start_one(viewer, store):
    create(store, 1, delay_seconds=3600)
    page = open_dashboard(viewer)
    assert page.alerts() == ["Problem No worker is running."]
    assert "Start a worker with manage.py run_jobworker" in page.section("alerts").text


def test_each_alert_has_its_severity_and_links_to_a_section_of_the_page(viewer, store, beat):
    beat(type_names=(MAIL,), stuck=1)
    for number in range(5):
        queues.pause(f"mail {number}")
        create(store, 1, queue=f"mail {number}")
    fail(store)
    page = open_dashboard(viewer)
    targets = [link.attributes["href"] for link in page.section("alerts").all("a")]
    assert set(targets) == {"#jobchains-types", "#jobchains-workers", "#jobchains-queues", "#jobchains-failing"}
    assert all(page.root.all(id=target.removeprefix("#")) for target in targets)
    assert [line.split()[0] for line in page.alerts()] == ["Problem"] * 2 + ["Warning"] * 5
    assert page.alerts()[5] == "Warning 2 more paused queues have due jobs."
