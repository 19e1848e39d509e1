"""Payloads require the permission, for each row, and secrets are masked for everybody."""

from itertools import cycle

import pytest

from django_jobchains import chains
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.models import Chain, Job, LogLine
from tests.admin import rows
from tests.admin.browsing import index, text_of, url

CANARY = "canary4711"
ACTIONS = ("complete_job", "retry_job", "cancel_job", "run_job", "enqueue_job", "delete_chain")


def fill(job, *texts):
    """Write texts in turn into every column that jobs, handlers and their exceptions write."""
    turn = cycle(texts or [CANARY])
    fields = {"input": {next(turn): [next(turn)]}, "output": next(turn), "context": {"x": next(turn)}}
    Job.objects.filter(pk=job.pk).update(**fields, last_error=f"ValueError: {next(turn)}")
    rows.progress(job, text=next(turn)[:200])
    LogLine.objects.bulk_create([rows.line(job, text=next(turn), fields={next(turn): next(turn)})])
    trace = f"Traceback\n  {next(turn)}\nValueError: x"
    rows.attempt(job, error=f"ValueError: {next(turn)}", traceback=trace).save()


def pages_with(text, client, job):
    """Return the names of the pages of a chain and its job that contain a text."""
    chain = chains.get(job.chain_id)
    addresses = {
        "chains": url("changelist"),
        "jobs": url("changelist", model="job"),
        "chain": url("change", chain),
        "a later step": url("change", chain) + "?from=1",
        "refreshed": url("change", chain) + "?fragment=1",
        "job": url("change", job, "job"),
        "complete": url("complete", chain),
        "complete a job": url("complete", job, "job"),
        "dashboard": index(),
    }
    replies = {name: client.get(address, follow=True) for name, address in addresses.items()}
    assert {reply.status_code for reply in replies.values()} <= {200}
    return {name for name, reply in replies.items() if text in text_of(reply)}


ALL_BUT_DASHBOARD = {"chains", "jobs", "chain", "a later step", "refreshed", "job", "complete", "complete a job"}


@pytest.mark.parametrize("status", ["failed", "running"])
def test_only_with_the_permission_pages_show_payloads(staff, open_page, status):
    job = rows.chain(2, status)[-1]
    fill(job)
    assert pages_with(CANARY, staff(*ACTIONS), job) == set()
    shown = pages_with(CANARY, staff("view_payload", *ACTIONS), job)
    assert shown >= (ALL_BUT_DASHBOARD if status == "running" else ALL_BUT_DASHBOARD - {"complete", "complete a job"})
    for model in ("chain", "job"):
        page = open_page(job, model, staff("view_payload"))
        assert page.count(CANARY) >= 10, model
        assert "Hidden" not in page


def test_without_the_permission_the_type_of_an_error_is_shown(staff, open_page):
    [job] = rows.chain(1, "failed")
    rows.attempt(job, error=f"shop.errors.Declined: {CANARY}").save()
    page = open_page(job, by=staff())
    assert "shop.errors.Declined" in page
    assert "Hidden: you do not have permission to view payloads." in page


@pytest.mark.parametrize("reason", [f"{CANARY}: account blocked", CANARY])
def test_without_the_permission_the_first_word_of_a_reason_is_hidden(staff, reason):
    """The reason of a ``RescheduleJob`` is stored as the error, without a type."""
    [job] = rows.chain(1, last_error=reason)
    assert pages_with(CANARY, staff(*ACTIONS), job) == set()


def test_secrets_are_masked_for_everybody_and_right_to_left_marks_replaced(open_page):
    job = rows.chain(1, "failed")[-1]
    fill(job, f"password={CANARY}")
    Job.objects.filter(pk=job.pk).update(input={"api_key": CANARY, "sku": "visible4711\u202eb"})
    for model in ("chain", "job"):
        page = open_page(job, model)
        assert CANARY not in page
        assert "visible4711" in page
        assert "\u202e" not in page


# The permission is checked for each row by the class of the row


def refuse_payloads(monkeypatch, admin_class, is_secret):
    """Let a subclass of an admin class hide the payloads of some rows."""
    own = admin_class.may

    def may(self, request, permission, obj=None):
        return own(self, request, permission, obj) and not (permission == "view_payload" and obj and is_secret(obj))

    monkeypatch.setattr(admin_class, "may", may)


def is_in_secret_queue(row):
    return isinstance(row, Job) and row.queue == "secret"


@pytest.mark.parametrize("queue", ["secret", "default"])
def test_each_page_checks_the_permission_for_the_job(staff, monkeypatch, queue):
    refuse_payloads(monkeypatch, JobAdmin, is_in_secret_queue)
    [job] = rows.chain(1, "running", queue=queue)
    fill(job)
    shown = pages_with(CANARY, staff("view_payload", "complete_job"), job)
    assert shown - {"dashboard"} == (set() if queue == "secret" else ALL_BUT_DASHBOARD)


def test_the_page_of_a_chain_checks_each_step(staff, open_page, monkeypatch):
    refuse_payloads(monkeypatch, JobAdmin, is_in_secret_queue)
    first, last = rows.chain(2, "running", input={"x": "visible4711"})
    fill(first)
    Job.objects.filter(pk=first.pk).update(queue="secret")
    page = open_page(last, by=staff("view_payload"))
    assert "visible4711" in page
    assert CANARY not in page


def test_the_pages_of_a_chain_also_check_the_chain(staff, monkeypatch):
    refuse_payloads(monkeypatch, ChainAdmin, lambda row: isinstance(row, Chain))
    _first, job = rows.chain(2, "running")
    fill(job)
    shown = pages_with(CANARY, staff("view_payload", "complete_job"), job)
    assert shown - {"dashboard"} == {"jobs", "job", "complete a job"}
