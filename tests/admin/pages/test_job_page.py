"""The page of a job, with pagination of its attempts and log lines."""

import re

import pytest
from django.db import connection

from django_jobchains.models import Job
from tests.admin.pages import rows


def test_it_shows_its_step_number(open_page):
    page = open_page(rows.chain(3)[1], "job")
    assert "2 of 3" in page
    assert "jobchains-status-continued" in page


def test_all_attempts_are_paginated_newest_first(open_page):
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, 35)
    seen: list[int] = []
    page = open_page(job, "job")
    while True:
        seen += map(int, re.findall(r"Attempt (\d+): error", page))
        if not (found := re.search(r"\?attempts=(\d+)#attempts", page)):
            break
        page = open_page(job, "job", attempts=found[1])
    assert seen == list(range(35, 0, -1))


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_job_with_any_number_of_attempts_has_a_page(open_page, count):
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, count)
    assert len(re.findall(r"Attempt \d+: error", open_page(job, "job"))) == 10


def test_all_log_lines_are_paginated_from_the_end(open_page):
    job = rows.chain(1, "running")[0]
    rows.lines(job, 250)
    later = [rows.line(job, place, lease_number=2, attempt=2, text=f"line {250 + place}") for place in range(20)]
    type(later[0]).objects.bulk_create(later)
    seen: list[int] = []
    page = open_page(job, "job")
    while True:
        seen = [*map(int, re.findall(r"line (\d+)</", page)), *seen]
        if not (found := re.search(r"\?log=([\d.]+)#log", page)):
            break
        page = open_page(job, "job", log=found[1])
    assert seen == list(range(270))


def test_omitted_lines_are_counted(open_page):
    job = rows.chain(1, "running")[0]
    lines = [rows.line(job, 0), rows.line(job, 1), rows.line(job, 500), rows.line(job, 0, lease_number=2)]
    type(lines[0]).objects.bulk_create(lines)
    assert re.findall(r"(\d+) lines? omitted", open_page(job, "job")) == ["498"]


def test_progress_of_an_earlier_attempt_is_not_shown(open_page):
    job = rows.chain(1, "running")[0]
    rows.progress(job)
    assert "page 4 of 10" in open_page(job, "job")
    Job.objects.filter(pk=job.pk).update(lease_number=2)
    assert "page 4 of 10" not in open_page(job, "job")
    assert "page 4 of 10" not in open_page(job)


def test_invalid_positions_are_ignored(open_page):
    job = rows.chain(1, "running")[0]
    rows.lines(job, 2)
    for wrong in ("x", "1", ".", "-1.2", "9" * 30 + ".1", "1.\x00", "1.2.3"):
        assert "line 1<" in open_page(job, "job", log=wrong, attempts=wrong, blockers=wrong), wrong


def test_all_blockers_are_paginated_in_order(open_page):
    job = rows.chain(1, "blocked")[0]
    blockers = [rows.chain(1, "running")[0] for _ in range(120)]
    rows.link(job, blockers)
    seen: list[str] = []
    page = open_page(job, "job")
    while True:
        seen += re.findall(r'/chain/([\w-]+)/change/">shop.order <code>[\w-]+</code></a></li>', page)
        if not (found := re.search(r"\?blockers=(\d+)#blockers", page)):
            break
        page = open_page(job, "job", blockers=found[1])
    assert seen == [str(blocker.id) for blocker in blockers]


def test_the_error_of_a_job_without_a_failed_attempt_is_shown(open_page):
    page = open_page(rows.chain(1, "failed", last_error="BlockerFailed: chain 4711 failed")[0], "job")
    assert "BlockerFailed: chain 4711 failed" in page


def test_an_input_that_cannot_be_decoded_shows_a_note(open_page):
    job = rows.chain(1)[0]
    deep = "[" * 2_000 + "]" * 2_000
    cast = "%s::jsonb" if connection.vendor == "postgresql" else "%s"
    id_ = job.id if connection.vendor == "postgresql" else job.id.hex
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {Job._meta.db_table} SET input = {cast} WHERE id = %s", [deep, id_])
    for model in ("chain", "job"):
        assert "cannot be decoded" in open_page(job, model) or "nested deeper" in open_page(job, model)


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_the_trace_of_a_job_is_linked(open_page, settings):
    job = rows.chain(1)[0]
    assert "Trace" not in open_page(job, "job")
    Job.objects.filter(pk=job.pk).update(context={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    assert f"<code>{TRACE}</code>" in open_page(job, "job")
    settings.JOBCHAINS = {"TRACE_URL": "https://traces.example.com/{trace_id}"}
    assert f'<a href="https://traces.example.com/{TRACE}"><code>{TRACE}</code></a>' in open_page(job, "job")


@pytest.mark.parametrize("value", ["javascript:alert(1)", f"00-{TRACE}", 7, None])
def test_a_trace_context_that_is_not_valid_is_not_linked(open_page, settings, value):
    settings.JOBCHAINS = {"TRACE_URL": "{trace_id}"}
    job = rows.chain(1)[0]
    Job.objects.filter(pk=job.pk).update(context={"traceparent": value})
    assert "<dt>Trace</dt>" not in open_page(job, "job")
