"""The dashboard of a user who may not see all jobs: it counts visible jobs, and a hook names the visible queues."""

from typing import Any

import pytest

from django_jobchains import queues
from django_jobchains.admin import JobAdmin
from django_jobchains.models import Job, QueueState
from tests.admin.dashboard.browsing import change, fragment, open_dashboard
from tests.admin.dashboard.conftest import fail
from tests.admin.visibility.world import OWN, PEOPLE, RIVAL, browser
from tests.support.jobs import create

pytestmark = pytest.mark.django_db
#: Sections about all jobs, or about the servers.
OF_ALL = ("throughput", "workers", "slow", "database")


@pytest.fixture
def operator():
    return browser(*PEOPLE["may do all"])


@pytest.fixture
def _both(store, beat):
    """Create due and failed jobs of both tenants, in a queue of each and in a shared queue."""
    beat("rival:1:a", host="rival-host", type_names=(OWN, RIVAL), queues=("rival-queue", "default"), stuck=1)
    fail(store, OWN, "failing", "OwnError: mine")
    fail(store, RIVAL, "failing", "RivalError: rival")
    for type_name, queue, count in ((OWN, "own-queue", 2), (RIVAL, "rival-queue", 5), (OWN, "default", 1)):
        create(store, count, type_name, queue=queue)
    create(store, 7, RIVAL)
    queues.pause("own-queue")
    queues.pause("rival-queue")


@pytest.mark.usefixtures("_both")
def test_it_counts_visible_jobs_and_shows_no_queue(way, operator):
    for page in (open_dashboard(operator), open_dashboard(operator, fragment())):
        assert "rival" not in page.root.text.lower()
        assert set(page.figures()) == {"due jobs", "oldest due job"}
        assert page.figures()["due jobs"] == "3"
        assert [(row[0], row[1], row[-1]) for row in page.rows("types")] == [(OWN, "3", "1")]
        assert [(row[0], row[2], row[5]) for row in page.rows("failing")] == [(OWN, "1", "OwnError: mine")]
        headings = {heading.attributes.get("id") for heading in page.root.all("h2")}
        assert not headings & {f"jobchains-{name}" for name in (*OF_ALL, "queues")}
        assert "queue" not in " ".join(page.alerts())


@pytest.mark.usefixtures("_both")
@pytest.mark.parametrize("queue", ["own-queue", "rival-queue", "default", "new"])
def test_no_queue_is_changed(way, operator, queue):
    before = list(QueueState.objects.order_by("pk").values())
    for verb in ("pause", "resume", "limit"):
        assert change(operator, verb, queue, slots="1").status_code == 403
    assert list(QueueState.objects.order_by("pk").values()) == before


@pytest.mark.usefixtures("_both")
def test_a_queue_that_the_project_names_is_shown_and_changed(way, operator, monkeypatch):
    monkeypatch.setattr(JobAdmin, "visible_queues", lambda self, request: {"own-queue"})
    page = open_dashboard(operator)
    assert [(row[0], row[1], row[2]) for row in page.rows("queues")] == [("own-queue", "paused", "2")]
    assert any(text.startswith("Warning Queue own-queue is paused: 2 jobs are due") for text in page.alerts())
    assert "rival" not in page.root.text.lower()
    assert not page.root.all("input", id="jobchains-other-queue")
    assert change(operator, "resume", "own-queue").status_code == 200
    assert QueueState.objects.get(pk="own-queue").paused_at is None
    assert change(operator, "pause", "default").status_code == 403


def test_may_is_called_for_each_queue(operator, store, monkeypatch):
    own = JobAdmin.may

    def may(self: JobAdmin, request: Any, permission: str, obj: Any = None) -> bool:
        return own(self, request, permission, obj) and (not isinstance(obj, QueueState) or obj.name == "mail")

    monkeypatch.setattr(JobAdmin, "may", may)
    create(store, 1, queue="mail")
    create(store, 1, queue="other")
    page = open_dashboard(operator)
    assert [row[0] for row in page.rows("queues")] == ["mail", "other"]
    named = {field.attributes["value"] for field in page.section("queues").all("input", name="queue", type="hidden")}
    assert named == {"mail"}
    assert change(operator, "pause", "other").status_code == 403
    assert change(operator, "pause", "mail").status_code == 200


def test_the_last_error_requires_the_permission_for_its_job(operator, store, monkeypatch):
    own = JobAdmin.may

    def may(self: JobAdmin, request: Any, permission: str, obj: Any = None) -> bool:
        is_secret = isinstance(obj, Job) and obj.type_name == "shop.secret"
        return own(self, request, permission, obj) and not (permission == "view_payload" and is_secret)

    monkeypatch.setattr(JobAdmin, "may", may)
    fail(store, "shop.open", error="OpenError: seen")
    fail(store, "shop.secret", error="SecretError: canary")
    errors = {row[0]: row[5] for row in open_dashboard(operator).rows("failing")}
    assert errors == {"shop.open": "OpenError: seen", "shop.secret": "SecretError"}
