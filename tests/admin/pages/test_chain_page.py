"""The page of a chain of any length, in a limited number of statements."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest
from django.contrib import admin
from django.http import HttpRequest
from django.test import override_settings
from django.urls import reverse

from django_jobchains.models import Chain, Job
from tests.admin.pages import rows


def _numbers(page: str) -> list[int]:
    found = re.findall(r'<span class="jobchains-step-number">([\d,]+)</span>', page)
    return [int(number.replace(",", "")) for number in found]


def _address(id_: object, model: str = "chain") -> str:
    return reverse(f"admin:django_jobchains_{model}_change", args=[id_])


def test_steps_are_in_order_and_the_current_one_is_marked(open_page):
    jobs = rows.chain(3, "running")
    page = open_page(jobs[0])
    assert _numbers(page) == [1, 2, 3]
    assert re.findall(r'id="step-([\w-]+)" aria-current="step"', page) == [str(jobs[-1].id)]
    assert page.count("jobchains-status-continued") == 2


def test_the_summary_shows_status_queue_and_key(open_page):
    page = open_page(rows.chain(2, "failed", queue="mail", deduplication_key="order-17")[0])
    assert '<span class="jobchains-status jobchains-status-failed">failed</span>' in page
    assert "<dd>mail</dd>" in page
    assert "<code>order-17</code>" in page
    assert "took 19 s" in page


def test_a_step_shows_its_duration_and_worker(open_page):
    page = open_page(rows.chain(1, "completed")[0])
    assert "ran for 6.5 s" in page
    assert "9.0 s in total" in page
    assert "by worker mail:1:ab" in page


def test_a_step_completed_without_a_worker(open_page):
    page = open_page(rows.chain(1, "completed", completed_by=None)[0])
    assert "completed without a worker" in page
    assert "ran for" not in page
    assert "jobchains-bar-completed" not in page


@pytest.mark.parametrize("model", ["chain", "job"])
def test_a_failed_attempt_shows_its_duration_unless_its_lease_ran_out(open_page, model):
    failed, lost = rows.chain(1, "failed")[0], rows.chain(1, "failed")[0]
    rows.attempts(failed, 1)
    rows.attempts(lost, 1, kind="crash", error="The lease ran out: worker mail:1:ab died, hung or lost the database.")
    page = open_page(failed, model)
    assert "after 2.0 s" in page.partition("<details data-jobchains-key")[2].partition("</summary>")[0]
    assert "ran for 2.0 s" in page
    page = open_page(lost, model)
    assert "Attempt 1: crash" in page
    assert not [text for text in ("after 2.0 s", "ran for") if text in page]


def test_a_scheduled_step_shows_when_it_is_due(open_page):
    page = open_page(rows.chain(1, run_at=datetime.now(UTC) + timedelta(hours=3, seconds=30))[0])
    assert "jobchains-status-scheduled" in page
    assert "due in 3 h" in page


def test_failed_attempts_are_collapsed_with_their_tracebacks(open_page):
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, 5)
    page = open_page(job)
    assert [f"Attempt {number}: error" in page for number in range(1, 6)] == [False, False, True, True, True]
    assert "2 earlier attempts" in page
    assert page.count("Traceback (most recent call last)") == 3


def test_a_crash_shows_the_standard_error_of_its_process_masked(open_page):
    job = rows.chain(1, "failed")[0]
    error = "ChildCrashed: The worker process was killed by SIGSEGV."
    rows.attempts(job, 1, kind="crash", error=error, traceback="password=secret-7\nassertion failed")
    page = open_page(job, "job")
    assert "Attempt 1: crash" in page
    assert error in page
    assert "Standard error of the child process:" in page
    assert "assertion failed" in page
    assert "secret-7" not in page


def test_a_long_traceback_is_only_shown_on_the_page_of_the_job(open_page):
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, 1, traceback="x" * 20_000)
    assert "20,000 characters, shown on the page of the job." in open_page(job)
    assert "x" * 20_000 in open_page(job, "job")


def test_input_and_output_are_collapsed_and_indented(open_page):
    page = open_page(rows.chain(1, "completed", input={"order": [1, 2]})[0])
    assert "{\n  &quot;order&quot;: [\n    1,\n    2\n  ]\n}" in page
    assert "&quot;done&quot;: true" in page


def test_a_large_input_is_only_shown_on_the_page_of_the_job(open_page):
    job = rows.chain(1, input="y" * 50_000)[0]
    assert "50,002 characters, too long to display." in open_page(job)
    assert "y" * 50_000 in open_page(job, "job")


def test_progress_and_the_last_log_lines_of_the_current_step_are_shown(open_page):
    job = rows.chain(2, "running")[-1]
    rows.progress(job)
    rows.lines(job, 50)
    page = open_page(job)
    assert '<progress max="100" value="40"' in page
    assert "page 4 of 10" in page
    assert re.findall(r"line (\d+)</", page) == [str(number) for number in range(30, 50)]


def test_times_have_their_exact_value_in_the_time_zone_of_the_user(open_page):
    job = rows.chain(1, created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))[0]
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        page = open_page(job)
    assert '<time datetime="2026-01-02T03:04:05+00:00" title="2026-01-02 12:04:05 JST">' in page


# Long chains


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_only_the_first_and_last_steps_of_a_long_chain_are_shown(open_page, count):
    page = open_page(rows.chain(count, "running")[0])
    assert _numbers(page) == [*range(1, 11), *range(count - 9, count + 1)]
    assert f"{count - 20:,} steps are not shown here" in page


def test_links_lead_to_all_other_steps(open_page):
    job = rows.chain(120, "running")[0]
    seen: list[int] = []
    while len(seen) < 120:
        page = open_page(job, **({"from": seen[-1] + 1} if seen else {}))
        before = len(seen)
        for number in _numbers(page):
            seen += [number] if number == len(seen) + 1 else []
        assert len(seen) > before
    assert seen == list(range(1, 121))


def test_links_lead_forwards_and_backwards(open_page):
    job = rows.chain(120, "running")[0]
    assert re.findall(r"\?from=(\d+)#steps", open_page(job)) == ["11"]
    assert re.findall(r"\?from=(\d+)#steps", open_page(job, **{"from": 61})) == ["31", "91"]
    assert "is not shown here" not in open_page(job, **{"from": 91}).split("steps are not shown here", 1)[1]


def test_an_invalid_step_number_is_ignored(open_page):
    [job] = rows.chain(3)[:1]
    for wrong in ("0", "201", "-1", "x", "9" * 5_000, "1\x00", "\u0663", ""):
        assert _numbers(open_page(job, **{"from": wrong, "dependents": wrong})) == [1, 2, 3], wrong


# Blockers and dependents


def test_blockers_and_dependents_are_shown_in_a_graph_and_in_lists(open_page):
    job = rows.chain(1, "blocked")[-1]
    stock, money = rows.chain(2, "completed", "shop.stock"), rows.chain(1, "running", "shop.money")
    rows.waits(job, stock, money)
    later = rows.chain(2, "blocked", "shop.mail")
    rows.waits(later[-1], [job])
    page = open_page(job)
    assert page.count("<svg viewBox") == 1
    for chain in (stock, money, later):
        assert page.count(f'href="{_address(chain[0].id)}"') == 2
    assert "Waiting for 2 of 2 blockers" in page
    assert f'href="{_address(later[-1].id, "job")}"' in page


def test_the_graph_includes_blockers_of_blockers(open_page):
    first, second, third = (rows.chain(1, status, f"shop.{status}") for status in ("blocked", "blocked", "running"))
    rows.waits(first[0], second)
    rows.waits(second[0], third)
    assert _address(third[0].id) in open_page(first[0])


def test_a_chain_without_blockers_and_dependents_has_no_graph(open_page):
    assert "jobchains-graph" not in open_page(rows.chain(1)[0])


def test_many_blockers_are_partly_listed_and_counted(open_page):
    job = rows.chain(1, "blocked")[-1]
    rows.link(job, [rows.chain(1, "running")[0] for _ in range(30)])
    page = open_page(job)
    assert "and 25 more" in page
    assert "Waiting for 30 of 30 blockers" in page


def test_dependents_are_paged(open_page):
    blocker = rows.chain(1, "running")
    waiting = [rows.chain(1, "blocked")[-1] for _ in range(45)]
    for job in waiting:
        rows.waits(job, blocker)
    seen: set[str] = set()
    page = open_page(blocker[0])
    while True:
        seen |= set(re.findall(r'<a href="[^"]*/chain/([\w-]+)/change/">shop.order <code>', page))
        if not (found := re.search(r"\?dependents=([\w-]+)#dependents", page)):
            break
        page = open_page(blocker[0], dependents=found[1])
    assert seen == {str(job.id) for job in waiting}


# Access


def test_an_unknown_id_redirects_with_a_message(superuser):
    for id_ in (uuid4(), "nonsense", "%00", "1"):
        reply = superuser.get(_address(id_), follow=True)
        assert "Perhaps it was deleted?" in reply.content.decode()


def test_the_id_of_a_job_leads_to_its_chain(superuser):
    jobs = rows.chain(2)
    reply = superuser.get(_address(jobs[-1].id))
    assert reply.status_code == 302
    assert reply["Location"] == f"{_address(jobs[0].id)}#step-{jobs[-1].id}"


@pytest.mark.parametrize("model", ["chain", "job"])
def test_the_pages_require_the_view_permission(staff, model):
    job = rows.chain(1)[0]
    for id_ in (job.id, uuid4(), "nonsense"):
        assert staff("view_payload", view=False).get(_address(id_, model)).status_code == 403
    assert staff().get(_address(job.id, model)).status_code == 200


@pytest.mark.parametrize("model", ["chain", "job"])
def test_the_pages_reject_post(superuser, model):
    job = rows.chain(1)[0]
    assert superuser.post(_address(job.id, model), {"status": "completed"}).status_code == 403
    assert Job.objects.get(pk=job.pk).status == "pending"


# The HTML and its statements


def test_only_pages_of_unfinished_chains_refresh(open_page):
    page = open_page(rows.chain(1)[0])
    assert 'data-jobchains-refresh="' in page
    assert "fragment=1" in page
    assert "data-jobchains-refresh" not in open_page(rows.chain(1, "completed")[0])


def test_a_fragment_equals_the_part_of_the_page(open_page):
    job = rows.chain(2, "failed")[0]
    rows.attempts(job, 1)
    fragment, page = (_without_ages(open_page(job, **parameters)) for parameters in ({"fragment": 1}, {}))
    assert "<html" not in fragment
    assert fragment.strip() in page


def _without_ages(html: str) -> str:
    """Remove ages, which may differ between two responses."""
    return re.sub(r"\d+ (?:s|min) ago", "some time ago", html)


def test_headings_are_nested(open_page):
    job = rows.chain(2, "running")[-1]
    rows.lines(job, 1)
    rows.waits(job, rows.chain(1))
    rows.waits(rows.chain(1, "blocked")[-1], [Job.objects.get(pk=job.chain_id)])
    for model in ("chain", "job"):
        levels = [int(level) for level in re.findall(r"<h(\d)[ >]", open_page(job, model))]
        assert all(after <= before + 1 for before, after in pairwise(levels)), levels


def _large() -> Job:
    jobs = rows.chain(200, "blocked")
    for job in jobs[-10:]:
        rows.attempts(job, 4)
    rows.link(jobs[-1], [rows.chain(2, "running")[0] for _ in range(60)])
    for _ in range(25):
        rows.waits(rows.chain(1, "blocked")[-1], jobs)
    rows.lines(jobs[-1], 120)
    rows.progress(jobs[-1])
    return jobs[-1]


@pytest.mark.parametrize(("model", "most"), [("chain", 24), ("job", 20)])
def test_a_page_takes_a_constant_number_of_statements(open_page, django_assert_max_num_queries, model, most):
    small, large = rows.chain(1)[0], _large()
    for job in (small, large):
        with django_assert_max_num_queries(most):
            open_page(job, model)


def test_the_admin_finds_a_chain_by_its_last_job(superuser):
    chain_admin = admin.site._registry[Chain]
    jobs = rows.chain(3)
    request = HttpRequest()
    found = chain_admin.get_object(request, str(jobs[0].id))
    assert found is not None
    assert found.current_job_id == jobs[-1].id
    assert chain_admin.get_object(request, "nonsense") is None
