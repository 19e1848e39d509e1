"""Payloads require the permission, and are escaped on all pages."""

import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

import django_jobchains
from django_jobchains.models import Job, LogLine
from tests.admin.pages import rows
from tests.support.hostile_texts import VECTORS, problems_of

CANARY = "canary4711"


def _fill_texts(job: Job, texts: Iterator[str]) -> None:
    """Write a text into every column that jobs, handlers and their exceptions write."""
    fields = {"input": {next(texts): [next(texts)]}, "output": next(texts), "context": {"x": next(texts)}}
    Job.objects.filter(pk=job.pk).update(**fields, last_error=f"ValueError: {next(texts)}")
    rows.progress(job, text=next(texts)[:200])
    LogLine.objects.bulk_create([rows.line(job, text=next(texts), fields={next(texts): next(texts)})])
    trace = f"Traceback\n  {next(texts)}\nValueError: x"
    rows.attempt(job, error=f"ValueError: {next(texts)}", traceback=trace).save()


def _canaries() -> Iterator[str]:
    return cycle([CANARY])


def _addresses(job: Job) -> list[str]:
    change = "admin:django_jobchains_{}_change"
    return [
        reverse(change.format("chain"), args=[job.chain_id]),
        reverse(change.format("chain"), args=[job.chain_id]) + "?from=1",
        reverse(change.format("chain"), args=[job.chain_id]) + "?fragment=1",
        reverse(change.format("job"), args=[job.id]),
        reverse("admin:django_jobchains_chain_changelist"),
        reverse("admin:django_jobchains_job_changelist"),
        reverse("admin:app_list", args=["django_jobchains"]),
    ]


@pytest.mark.parametrize("status", ["completed", "failed", "running"])
def test_without_the_permission_no_page_shows_payloads(staff, status):
    job = rows.chain(2, status)[-1]
    _fill_texts(job, _canaries())
    rest = ("complete_job", "retry_job", "cancel_job", "run_job", "enqueue_job", "delete_chain")
    browser = staff(*rest)
    for address in _addresses(job):
        reply = browser.get(address)
        assert reply.status_code == 200, address
        assert CANARY not in reply.content.decode(), address


def test_with_the_permission_the_pages_show_all_payloads(staff, open_page):
    job = rows.chain(2, "failed")[-1]
    _fill_texts(job, _canaries())
    for model in ("chain", "job"):
        page = open_page(job, model, staff("view_payload"))
        assert page.count(CANARY) >= 10, model
        assert "Hidden" not in page


def test_without_the_permission_the_type_of_an_error_is_shown(staff, open_page):
    job = rows.chain(1, "failed")[-1]
    rows.attempt(job, error=f"shop.errors.Declined: {CANARY}").save()
    page = open_page(job, by=staff())
    assert "shop.errors.Declined" in page
    assert "Hidden: you do not have permission to view payloads." in page


@pytest.mark.parametrize("reason", [f"{CANARY}: account blocked", CANARY])
def test_without_the_permission_the_first_word_of_a_reason_is_hidden(staff, open_page, reason):
    """The reason of a ``RescheduleJob`` is stored as the error, without a type."""
    job = rows.chain(1)[-1]
    Job.objects.filter(pk=job.pk).update(last_error=reason)
    for model in ("chain", "job"):
        assert CANARY not in open_page(job, model, staff())


def test_secrets_are_masked_for_everybody(open_page):
    job = rows.chain(1, "failed")[-1]
    _fill_texts(job, cycle([f"password={CANARY}"]))
    Job.objects.filter(pk=job.pk).update(input={"api_key": CANARY, "sku": "visible4711"})
    for model in ("chain", "job"):
        page = open_page(job, model)
        assert CANARY not in page
        assert "visible4711" in page


@pytest.mark.slow
@pytest.mark.parametrize("vector", VECTORS)
def test_values_of_rows_never_become_markup(open_page, vector):
    names: dict[str, Any] = {
        "type_name": vector[:200],
        "queue": vector[:100],
        "deduplication_key": vector,
        "leased_by": vector,
        "completed_by": vector,
    }
    job = rows.chain(2, "running", **names)[-1]
    Job.objects.filter(chain_id=job.chain_id).update(chain_type_name=vector[:200])
    _fill_texts(job, cycle([vector]))
    rows.attempt(job, 2, worker=vector).save()
    rows.waits(job, rows.chain(1, type_name=vector))
    rows.waits(rows.chain(1, "blocked", type_name=vector)[-1], [Job.objects.get(pk=job.chain_id)])
    for model in ("chain", "job"):
        page = open_page(job, model)
        assert problems_of(page) == []
        if "<" in vector:
            assert vector not in page


def test_right_to_left_marks_are_made_visible(open_page):
    job = rows.chain(1)[-1]
    Job.objects.filter(pk=job.pk).update(input="a\u202eb")
    assert "\u202e" not in open_page(job)


def test_the_admin_does_not_use_mark_safe():
    folder = Path(django_jobchains.__file__).parent
    for path in [*folder.glob("admin/*.py"), *folder.glob("templatetags/*.py"), *folder.glob("templates/**/*.html")]:
        assert not re.search(r"mark_safe|\|\s*safe\b|autoescape off|safeseq", path.read_text()), path
