"""The dashboard of a user who may not see all jobs: it counts visible jobs, and a hook names the visible queues."""

import pytest

from django_jobchains import queues
from django_jobchains.admin import JobAdmin
from django_jobchains.models import Job, QueueState
from tests.admin.browsing import change_queue, fragment, open_dashboard, subject
from tests.admin.visibility.world import OWN, RIVAL
from tests.support.jobs import claim, create, finished

pytestmark = pytest.mark.django_db
#: Sections about all jobs, or about the servers.
OF_ALL = ("throughput", "workers", "slow", "database", "queues")


@pytest.fixture
def _both(store, beat, fail):
    """Create due and failed jobs of both tenants, in a queue of each and in a shared queue."""
    beat("rival:1:a", host="rival-host", type_names=(OWN, RIVAL), queues=("rival-queue", "default"), stuck=1)
    fail(OWN, "failing", "OwnError: mine")
    fail(RIVAL, "failing", "RivalError: rival")
    for type_name, queue, count in ((OWN, "own-queue", 2), (RIVAL, "rival-queue", 5), (OWN, "default", 1)):
        create(store, count, type_name, queue=queue)
    create(store, 7, RIVAL)
    queues.pause("own-queue")
    queues.pause("rival-queue")


def allow_only(monkeypatch, is_allowed):
    """Let a subclass decide about permissions for rows."""
    own = JobAdmin.may

    def may(self, request, permission, obj=None):
        return own(self, request, permission, obj) and (obj is None or is_allowed(permission, obj))

    monkeypatch.setattr(JobAdmin, "may", may)


@pytest.mark.usefixtures("_both")
def test_it_counts_visible_jobs_and_shows_no_queue(way, operator):
    for page in (open_dashboard(operator), open_dashboard(operator, fragment())):
        assert "rival" not in page.text.lower()
        assert page.figures().keys() == {"due jobs", "oldest due job"}
        assert page.figures()["due jobs"] == "3"
        assert [(row[0], row[1], row[-1]) for row in page.table("types")] == [(OWN, "3", "1")]
        assert [(row[0], row[2], row[6]) for row in page.table("failing")] == [(OWN, "1", "OwnError: mine")]
        headings = {heading.attributes.get("id") for heading in page.root.all("h2")}
        assert not headings & {f"jobchains-{name}" for name in OF_ALL}
        assert "queue" not in " ".join(page.alerts())


@pytest.mark.usefixtures("_both")
def test_it_lists_visible_failures_without_use_tz(way, operator, settings):
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Kathmandu", False
    assert [row[0] for row in open_dashboard(operator).table("failing")] == [OWN]


@pytest.mark.usefixtures("_both")
def test_pages_of_types_and_queues_count_visible_jobs(way, operator, store):
    [job] = claim(store, 1, types=[RIVAL])
    store.attempts.finish([finished(job)])
    assert claim(store, 3, types=[RIVAL])
    page = open_dashboard(operator, subject("type", OWN))
    assert (page.figures()["due jobs"], page.figures()["workers"]) == ("3", "1")
    assert page.root.all("figure") == []
    assert page.table("failing")[0][-1] == "OwnError: mine"
    hidden = open_dashboard(operator, subject("type", RIVAL))
    unknown = open_dashboard(operator, subject("type", "rival.none"))
    for page in (hidden, unknown):
        assert page.figures()["due jobs"] == "0"
        assert "No job was completed by a worker in this time." in page.text
        assert "No jobs are running." in page.text
        assert "Error" not in page.text
        assert "workers" not in page.figures()
    for queue in ("own-queue", "rival-queue", "none"):
        assert operator.get(subject("queue", queue)).status_code == 404


@pytest.mark.usefixtures("_both")
def test_no_queue_is_changed(way, operator):
    before = list(QueueState.objects.order_by("pk").values())
    for queue in ("own-queue", "rival-queue", "default", "new"):
        for verb in ("pause", "resume", "limit"):
            assert change_queue(operator, verb, queue, slots="1").status_code == 403
    assert list(QueueState.objects.order_by("pk").values()) == before


@pytest.mark.usefixtures("_both")
def test_a_queue_that_the_project_names_is_shown_and_changed(way, operator, monkeypatch):
    monkeypatch.setattr(JobAdmin, "visible_queues", lambda self, request: {"own-queue"})
    page = open_dashboard(operator)
    assert [row[:3] for row in page.table("queues")] == [["own-queue", "paused", "2"]]
    assert any(text.startswith("Warning Queue own-queue is paused: 2 jobs are due") for text in page.alerts())
    assert "rival" not in page.text.lower()
    assert not page.root.all("input", id="jobchains-other-queue")
    assert change_queue(operator, "resume", "own-queue").status_code == 200
    assert open_dashboard(operator, subject("queue", "own-queue")).figures()["due jobs"] == "2"
    assert operator.get(subject("queue", "rival-queue")).status_code == 404
    assert QueueState.objects.get(pk="own-queue").paused_at is None
    assert change_queue(operator, "pause", "default").status_code == 403


def test_may_is_called_for_each_queue(operator, store, monkeypatch):
    allow_only(monkeypatch, lambda permission, row: not isinstance(row, QueueState) or row.name == "mail")
    for name in ("mail", "other"):
        create(store, 1, queue=name)
    page = open_dashboard(operator)
    assert [row[0] for row in page.table("queues")] == ["mail", "other"]
    fields = page.section("queues").all("input", name="queue", type="hidden")
    assert {field.attributes["value"] for field in fields} == {"mail"}
    assert change_queue(operator, "pause", "other").status_code == 403
    assert change_queue(operator, "pause", "mail").status_code == 200


def test_the_last_error_requires_the_permission_for_its_job(operator, fail, monkeypatch):
    def is_allowed(permission, row):
        return permission != "view_payload" or not isinstance(row, Job) or row.type_name != "shop.secret"

    allow_only(monkeypatch, is_allowed)
    fail("shop.open", error="OpenError: seen")
    fail("shop.secret", error="SecretError: canary")
    errors = {row[0]: row[6] for row in open_dashboard(operator).table("failing")}
    assert errors == {"shop.open": "OpenError: seen", "shop.secret": "SecretError"}
