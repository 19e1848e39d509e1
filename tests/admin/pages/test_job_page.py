"""The page of a job: all its attempts and log lines, part by part."""

import re

import pytest
from django.db import connection

from django_jobchains.models import Job
from tests.admin.pages import rows
from tests.admin.pages.conftest import Look


def test_it_tells_its_place_in_the_chain(look: Look) -> None:
    page = look(rows.chain(3)[1], "job")
    assert "2 of 3" in page
    assert "jobchains-status-continued" in page


def test_all_attempts_are_reached_the_newest_first(look: Look) -> None:
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, 35)
    seen: list[int] = []
    page = look(job, "job")
    while True:
        seen += map(int, re.findall(r"Attempt (\d+): error", page))
        if not (found := re.search(r"\?attempts=(\d+)#attempts", page)):
            break
        page = look(job, "job", attempts=found[1])
    assert seen == list(range(35, 0, -1))


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_job_with_any_number_of_attempts_has_a_page(look: Look, count: int) -> None:
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, count)
    assert len(re.findall(r"Attempt \d+: error", look(job, "job"))) == 10


def test_all_log_lines_are_reached_the_last_ones_first(look: Look) -> None:
    job = rows.chain(1, "running")[0]
    rows.lines(job, 250)
    later = [rows.line(job, place, lease_number=2, attempt=2, text=f"said {250 + place}") for place in range(20)]
    type(later[0]).objects.bulk_create(later)
    seen: list[int] = []
    page = look(job, "job")
    while True:
        seen = [*map(int, re.findall(r"said (\d+)", page)), *seen]
        if not (found := re.search(r"\?log=([\d.]+)#log", page)):
            break
        page = look(job, "job", log=found[1])
    assert seen == list(range(270))


def test_lines_that_were_left_out_are_counted(look: Look) -> None:
    job = rows.chain(1, "running")[0]
    said = [rows.line(job, 0), rows.line(job, 1), rows.line(job, 500), rows.line(job, 0, lease_number=2)]
    type(said[0]).objects.bulk_create(said)
    assert re.findall(r"(\d+) lines? left out", look(job, "job")) == ["498"]


def test_progress_of_an_earlier_attempt_is_over(look: Look) -> None:
    job = rows.chain(1, "running")[0]
    rows.progress(job)
    assert "page 4 of 10" in look(job, "job")
    Job.objects.filter(pk=job.pk).update(lease_number=2)
    assert "page 4 of 10" not in look(job, "job")
    assert "page 4 of 10" not in look(job)


@pytest.mark.parametrize("wrong", ["x", "1", ".", "-1.2", "9" * 30 + ".1", "1.\x00", "1.2.3"])
def test_a_place_that_there_is_not_is_as_if_it_were_not_asked_for(look: Look, wrong: str) -> None:
    job = rows.chain(1, "running")[0]
    rows.lines(job, 2)
    assert "said 1" in look(job, "job", log=wrong, attempts=wrong, blockers=wrong)


def test_all_blockers_are_reached_in_their_order(look: Look) -> None:
    job = rows.chain(1, "blocked")[0]
    blockers = [rows.chain(1, "running")[0] for _ in range(120)]
    rows.link(job, blockers)
    seen: list[str] = []
    page = look(job, "job")
    while True:
        seen += re.findall(r'/chain/([\w-]+)/change/">shop.order <code>[\w-]+</code></a></li>', page)
        if not (found := re.search(r"\?blockers=(\d+)#blockers", page)):
            break
        page = look(job, "job", blockers=found[1])
    assert seen == [str(blocker.id) for blocker in blockers]


def test_the_error_of_a_job_without_a_failed_attempt_is_told(look: Look) -> None:
    page = look(rows.chain(1, "failed", last_error="BlockerFailed: chain 4711 failed")[0], "job")
    assert "BlockerFailed: chain 4711 failed" in page


def test_an_input_that_cannot_be_decoded_is_told_as_such(look: Look) -> None:
    job = rows.chain(1)[0]
    deep = "[" * 2_000 + "]" * 2_000
    cast = "%s::jsonb" if connection.vendor == "postgresql" else "%s"
    id_ = job.id if connection.vendor == "postgresql" else job.id.hex
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {Job._meta.db_table} SET input = {cast} WHERE id = %s", [deep, id_])
    for model in ("chain", "job"):
        assert "cannot be decoded" in look(job, model) or "nested deeper" in look(job, model)
