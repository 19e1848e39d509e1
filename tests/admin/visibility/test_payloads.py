"""The permission to view payloads is checked for each row by the class of the row."""

from typing import Any

import pytest
from django.test import Client

from django_jobchains import chains
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.models import Chain, Job, LogLine
from tests.admin.actions.browsing import text_of, url
from tests.admin.pages import rows
from tests.admin.visibility.world import OWN, browser

pytestmark = pytest.mark.django_db
CANARY = "canary4711"


def fill_payloads(job: Job) -> None:
    fields = {"input": {"x": CANARY}, "context": {"x": CANARY}, "last_error": f"Boom: {CANARY}"}
    Job.objects.filter(pk=job.pk).update(**fields)
    LogLine.objects.bulk_create([rows.line(job, text=CANARY)])
    rows.progress(job, text=CANARY)
    rows.attempt(job, error=f"Boom: {CANARY}", traceback=CANARY).save()


@pytest.fixture
def client(monkeypatch):
    """Return a client of a user who may view payloads of all rows except those in the queue ``secret``."""
    own = JobAdmin.may

    def may(self: Any, request: Any, permission: str, obj: Any = None) -> bool:
        is_secret = isinstance(obj, Job) and obj.queue == "secret"
        return own(self, request, permission, obj) and not (permission == "view_payload" and is_secret)

    monkeypatch.setattr(JobAdmin, "may", may)
    return browser("view_chain", "view_job", "view_payload", "complete_job")


def pages(client: Client, job: Job) -> dict[str, str]:
    chain: Chain = chains.get(job.chain_id)
    addresses = {
        "chains": url("changelist"),
        "jobs": url("changelist", model="job"),
        "chain": url("change", chain),
        "job": url("change", job, "job"),
        "complete": url("complete", chain),
        "complete a job": url("complete", job, "job"),
    }
    return {name: text_of(client.get(address)) for name, address in addresses.items()}


@pytest.mark.parametrize("is_secret", [True, False])
def test_each_page_checks_the_permission_for_the_job(client, is_secret):
    [job] = rows.chain(1, "running", OWN, queue="secret" if is_secret else "default")
    fill_payloads(job)
    shown = {name for name, page in pages(client, job).items() if CANARY in page}
    everywhere = {"chains", "jobs", "chain", "job", "complete", "complete a job"}
    assert shown == (set() if is_secret else everywhere)


def test_the_page_of_a_chain_checks_each_step(client):
    jobs = rows.chain(2, "running", OWN)
    fill_payloads(jobs[0])
    Job.objects.filter(pk=jobs[0].pk).update(queue="secret")
    Job.objects.filter(pk=jobs[1].pk).update(input={"x": "visible4711"})
    page = pages(client, jobs[1])["chain"]
    assert "visible4711" in page
    assert CANARY not in page


def test_the_pages_of_a_chain_also_check_the_chain(monkeypatch):
    own = ChainAdmin.may

    def may(self: Any, request: Any, permission: str, obj: Any = None) -> bool:
        return own(self, request, permission, obj) and not (permission == "view_payload" and isinstance(obj, Chain))

    monkeypatch.setattr(ChainAdmin, "may", may)
    [job] = rows.chain(1, "running", OWN)
    fill_payloads(job)
    shown = pages(browser("view_chain", "view_job", "view_payload", "complete_job"), job)
    assert {name for name, page in shown.items() if CANARY in page} == {"jobs", "job", "complete a job"}
