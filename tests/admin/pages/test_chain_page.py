"""The page of a chain: what it shows, of chains of any length, in a bounded number of statements."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import reverse

from django_jobchains.admin import ChainAdmin
from django_jobchains.models import Chain, Job
from tests.admin.pages import rows
from tests.admin.pages.conftest import Look
from tests.admin.vectors import problems_of


def _numbers(page: str) -> list[int]:
    found = re.findall(r'<span class="jobchains-step-number">([\d,]+)</span>', page)
    return [int(number.replace(",", "")) for number in found]


def _address(id_: object, model: str = "chain") -> str:
    return reverse(f"admin:django_jobchains_{model}_change", args=[id_])


def test_the_steps_stand_in_their_order_and_the_current_one_is_marked(look: Look) -> None:
    jobs = rows.chain(3, "running")
    page = look(jobs[0])
    assert _numbers(page) == [1, 2, 3]
    assert re.findall(r'id="step-([\w-]+)" aria-current="step"', page) == [str(jobs[-1].id)]
    assert page.count("jobchains-status-continued") == 2


def test_the_head_tells_status_queue_and_key(look: Look) -> None:
    page = look(rows.chain(2, "failed", queue="mail", deduplication_key="order-17")[0])
    assert '<span class="jobchains-status jobchains-status-failed">failed</span>' in page
    assert "<dd>mail</dd>" in page
    assert "<code>order-17</code>" in page
    assert "took 19 s" in page


def test_a_step_tells_how_long_it_ran_and_where(look: Look) -> None:
    page = look(rows.chain(1, "completed")[0])
    assert "ran 6.5 s" in page
    assert "took 9.0 s in all" in page
    assert "by worker mail:1:ab" in page


def test_a_step_completed_by_hand_says_so(look: Look) -> None:
    assert "completed without a worker" in look(rows.chain(1, "completed", completed_by=None)[0])


def test_a_scheduled_step_tells_when_it_is_due(look: Look) -> None:
    page = look(rows.chain(1, run_at=datetime.now(UTC) + timedelta(hours=3, seconds=30))[0])
    assert "jobchains-status-scheduled" in page
    assert "due in 3 h" in page


def test_failed_attempts_stand_folded_with_their_tracebacks(look: Look) -> None:
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, 5)
    page = look(job)
    assert [f"Attempt {number}: error" in page for number in range(1, 6)] == [False, False, True, True, True]
    assert "2 earlier attempts" in page
    assert page.count("Traceback (most recent call last)") == 3


def test_a_long_traceback_is_left_to_the_page_of_the_job(look: Look) -> None:
    job = rows.chain(1, "failed")[0]
    rows.attempts(job, 1, traceback="x" * 20_000)
    assert "20,000 characters: they are shown on the page of the job." in look(job)
    assert "x" * 20_000 in look(job, "job")


def test_input_and_output_are_folded_and_written_in_lines(look: Look) -> None:
    page = look(rows.chain(1, "completed", input={"order": [1, 2]})[0])
    assert "{\n  &quot;order&quot;: [\n    1,\n    2\n  ]\n}" in page
    assert "&quot;done&quot;: true" in page


def test_a_large_input_is_left_to_the_page_of_the_job(look: Look) -> None:
    job = rows.chain(1, input="y" * 50_000)[0]
    assert "50,002 characters: too many to show here." in look(job)
    assert "y" * 50_000 in look(job, "job")


def test_progress_and_the_last_log_lines_of_the_current_step_are_shown(look: Look) -> None:
    job = rows.chain(2, "running")[-1]
    rows.progress(job)
    rows.lines(job, 50)
    page = look(job)
    assert '<progress max="100" value="40"' in page
    assert "page 4 of 10" in page
    assert re.findall(r"said (\d+)", page) == [str(number) for number in range(30, 50)]


def test_times_have_their_exact_value_in_the_time_zone_of_the_user(look: Look) -> None:
    job = rows.chain(1, created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))[0]
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        page = look(job)
    assert '<time datetime="2026-01-02T03:04:05+00:00" title="2026-01-02 12:04:05 JST">' in page


# Long chains


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_of_a_long_chain_the_first_and_last_steps_are_shown(look: Look, count: int) -> None:
    page = look(rows.chain(count, "running")[0])
    assert _numbers(page) == [*range(1, 11), *range(count - 9, count + 1)]
    assert f"{count - 20:,} steps are not shown here" in page


def test_the_steps_between_are_reached_by_links(look: Look) -> None:
    job = rows.chain(120, "running")[0]
    seen: list[int] = []
    while len(seen) < 120:
        page = look(job, **({"from": seen[-1] + 1} if seen else {}))
        before = len(seen)
        for number in _numbers(page):
            seen += [number] if number == len(seen) + 1 else []
        assert len(seen) > before
    assert seen == list(range(1, 121))


def test_the_links_lead_on_and_back(look: Look) -> None:
    job = rows.chain(120, "running")[0]
    assert re.findall(r"\?from=(\d+)#steps", look(job)) == ["11"]
    assert re.findall(r"\?from=(\d+)#steps", look(job, **{"from": 61})) == ["31", "91"]
    assert "is not shown here" not in look(job, **{"from": 91}).split("steps are not shown here", 1)[1]


@pytest.mark.parametrize("wrong", ["0", "201", "-1", "x", "9" * 5_000, "1\x00", "\u0663", ""])
def test_a_step_that_there_is_not_is_as_if_it_were_not_asked_for(look: Look, wrong: str) -> None:
    assert _numbers(look(rows.chain(3)[0], **{"from": wrong, "dependents": wrong})) == [1, 2, 3]


# What waits


def test_blockers_and_dependents_stand_in_a_graph_and_as_lists(look: Look) -> None:
    job = rows.chain(1, "blocked")[-1]
    stock, money = rows.chain(2, "completed", "shop.stock"), rows.chain(1, "running", "shop.money")
    rows.waits(job, stock, money)
    later = rows.chain(2, "blocked", "shop.mail")
    rows.waits(later[-1], [job])
    page = look(job)
    assert page.count("<svg viewBox") == 1
    for chain in (stock, money, later):
        assert page.count(f'href="{_address(chain[0].id)}"') == 2
    assert "Waits for 2 of its 2 blockers" in page
    assert f'href="{_address(later[-1].id, "job")}"' in page


def test_what_the_blockers_wait_for_themselves_is_in_the_graph(look: Look) -> None:
    first, second, third = (rows.chain(1, status, f"shop.{status}") for status in ("blocked", "blocked", "running"))
    rows.waits(first[0], second)
    rows.waits(second[0], third)
    assert _address(third[0].id) in look(first[0])


def test_a_chain_alone_has_no_graph(look: Look) -> None:
    assert "jobchains-graph" not in look(rows.chain(1)[0])


def test_of_many_blockers_some_are_named_and_the_rest_is_counted(look: Look) -> None:
    job = rows.chain(1, "blocked")[-1]
    rows.link(job, [rows.chain(1, "running")[0] for _ in range(30)])
    page = look(job)
    assert "and 25 more" in page
    assert "Waits for 30 of its 30 blockers" in page


def test_dependents_are_paged(look: Look) -> None:
    blocker = rows.chain(1, "running")
    waiting = [rows.chain(1, "blocked")[-1] for _ in range(45)]
    for job in waiting:
        rows.waits(job, blocker)
    seen: set[str] = set()
    page = look(blocker[0])
    while True:
        seen |= set(re.findall(r'<a href="[^"]*/chain/([\w-]+)/change/">shop.order <code>', page))
        if not (found := re.search(r"\?dependents=([\w-]+)#dependents", page)):
            break
        page = look(blocker[0], dependents=found[1])
    assert seen == {str(job.id) for job in waiting}


# Who sees what


def test_an_unknown_id_leads_back_with_a_message(superuser: Client) -> None:
    for id_ in (uuid4(), "nonsense", "%00", "1"):
        reply = superuser.get(_address(id_), follow=True)
        assert "Perhaps it was deleted?" in reply.content.decode()


def test_the_id_of_a_job_leads_to_its_chain(superuser: Client) -> None:
    jobs = rows.chain(2)
    reply = superuser.get(_address(jobs[-1].id))
    assert reply.status_code == 302
    assert reply["Location"] == f"{_address(jobs[0].id)}#step-{jobs[-1].id}"


@pytest.mark.parametrize("model", ["chain", "job"])
def test_who_may_not_view_sees_no_page(staff: Callable[..., Client], model: str) -> None:
    job = rows.chain(1)[0]
    for id_ in (job.id, uuid4(), "nonsense"):
        assert staff("view_payload", view=False).get(_address(id_, model)).status_code == 403
    assert staff().get(_address(job.id, model)).status_code == 200


@pytest.mark.parametrize("model", ["chain", "job"])
def test_a_page_is_no_form(superuser: Client, model: str) -> None:
    job = rows.chain(1)[0]
    assert superuser.post(_address(job.id, model), {"status": "completed"}).status_code == 403
    assert Job.objects.get(pk=job.pk).status == "pending"


def test_what_a_subclass_leaves_out_is_nowhere_on_the_page(
    superuser: Client, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other, later = (
        rows.chain(1, "blocked")[0],
        rows.chain(2, "running", "other.x"),
        rows.chain(1, "blocked", "other.y"),
    )
    rows.waits(job, other)
    rows.waits(later[-1], [job])
    own = ChainAdmin.get_queryset

    def of_the_shop(self: ChainAdmin, request: HttpRequest) -> Any:
        return own(self, request).filter(type_name="shop.order")

    monkeypatch.setattr(ChainAdmin, "get_queryset", of_the_shop)
    assert "other." not in look(job)
    assert "other." not in look(job, "job")
    for id_ in (other[0].id, other[-1].id):
        assert superuser.get(_address(id_))["Location"] == reverse("admin:index")


# How it is made


def test_an_open_chain_can_be_refreshed_and_one_that_ended_need_not(look: Look) -> None:
    page = look(rows.chain(1)[0])
    assert 'data-jobchains-refresh="' in page
    assert "fragment=1" in page
    assert "data-jobchains-refresh" not in look(rows.chain(1, "completed")[0])


def test_a_fragment_is_what_the_page_holds(look: Look) -> None:
    job = rows.chain(2, "failed")[0]
    rows.attempts(job, 1)
    fragment = look(job, fragment=1)
    assert "<html" not in fragment
    assert fragment.strip() in look(job)


@pytest.mark.parametrize("status", ["pending", "blocked", "running", "completed", "failed", "cancelled"])
def test_the_pages_keep_a_strict_policy(look: Look, status: str) -> None:
    jobs = rows.chain(2, status)
    rows.attempts(jobs[-1], 2)
    rows.lines(jobs[-1], 3)
    rows.waits(jobs[-1], rows.chain(1))
    for model in ("chain", "job"):
        assert problems_of(look(jobs[-1], model)) == []


def test_headings_follow_one_another(look: Look) -> None:
    job = rows.chain(2, "running")[-1]
    rows.lines(job, 1)
    rows.waits(job, rows.chain(1))
    rows.waits(rows.chain(1, "blocked")[-1], [Job.objects.get(pk=job.chain_id)])
    for model in ("chain", "job"):
        levels = [int(level) for level in re.findall(r"<h(\d)[ >]", look(job, model))]
        assert all(after <= before + 1 for before, after in pairwise(levels)), levels


def test_there_is_a_page_of_what_was_done(superuser: Client) -> None:
    chain = rows.chain(1)[0]
    for model in ("chain", "job"):
        assert superuser.get(reverse(f"admin:django_jobchains_{model}_history", args=[chain.id])).status_code == 200


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
def test_a_page_takes_the_same_statements_whatever_it_shows(
    look: Look, django_assert_max_num_queries: Any, model: str, most: int
) -> None:
    small, large = rows.chain(1)[0], _large()
    for job in (small, large):
        with django_assert_max_num_queries(most):
            look(job, model)


def test_the_admin_finds_a_chain_by_its_last_job(superuser: Client) -> None:
    chain_admin = admin.site._registry[Chain]
    jobs = rows.chain(3)
    request = HttpRequest()
    found = chain_admin.get_object(request, str(jobs[0].id))
    assert found is not None
    assert found.current_job_id == jobs[-1].id
    assert chain_admin.get_object(request, "nonsense") is None
