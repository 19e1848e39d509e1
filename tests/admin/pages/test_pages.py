"""The pages of chains of any length and of their jobs, in a limited number of statements."""

import re
from datetime import UTC, datetime
from itertools import pairwise
from uuid import uuid4

import pytest
from django.contrib import admin
from django.db import connection
from django.http import HttpRequest
from django.test import override_settings

from django_jobchains.models import Chain, Job
from tests.admin import rows
from tests.admin.browsing import url

both_pages = pytest.mark.parametrize("model", ["chain", "job"])
PAST, FAR = datetime(2001, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)


def walk(open_page, job, model, parameter):
    """Yield the pages that the links with a parameter lead to."""
    page = open_page(job, model)
    yield page
    while found := re.search(rf"\?{parameter}=([\w.-]+)#", page):
        page = open_page(job, model, **{parameter: found[1]})
        yield page


def numbers_in(page):
    found = re.findall(r'<a class="jobchains-step-number"[^>]*>Step ([\d,]+)</a>', page)
    return [int(number.replace(",", "")) for number in found]


# Steps


def test_steps_are_in_order_and_the_current_one_is_marked(open_page):
    jobs = rows.chain(3, "running")
    page = open_page(jobs[0])
    assert numbers_in(page) == [1, 2, 3]
    assert re.findall(r'id="step-([\w-]+)" aria-current="step"', page) == [str(jobs[-1].id)]
    assert page.count("jobchains-status-continued") == 2
    page = open_page(jobs[1], "job")
    assert "2 of 3" in page
    assert "jobchains-status-continued" in page


@pytest.mark.parametrize(
    ("status", "fields", "shown", "not_shown"),
    [
        (
            "failed",
            {"queue": "mail"},
            ['status-failed">failed</span>', ">mail</a></dd>", "9.0 s in total"],
            [],
        ),
        ("pending", {"deduplication_key": "order-17"}, ["<code>order-17</code>"], []),
        ("completed", {}, ["ran for 6.5 s", "9.0 s in total", "by worker mail:1:ab"], []),
        ("completed", {"completed_by": None}, ["completed without a worker"], ["ran for", "jobchains-bar-completed"]),
        ("pending", {"run_at": FAR}, ["jobchains-status-scheduled", ">in "], ["so far"]),
        ("pending", {"expires_at": FAR}, ['<span>expires <time datetime="2999-01-01T00:00:00+00:00"'], []),
        ("running", {"expires_at": FAR}, ["jobchains-status-running"], ["<span>expires"]),
        ("cancelled", {"expires_at": PAST, "cancel_requested_at": PAST}, ['status-expired">expired</span>'], []),
        ("completed", {"input": {"order": [1, 2]}}, ["{\n  &quot;order&quot;: [\n    1,\n    2\n  ]\n}"], []),
        ("completed", {}, ["&quot;done&quot;: true"], []),
        ("failed", {"last_error": "BlockerFailed: chain 4711 failed"}, ["BlockerFailed: chain 4711 failed"], []),
    ],
)
def test_a_page_shows_the_columns_of_its_job(open_page, status, fields, shown, not_shown):
    page = open_page(rows.chain(1, status, **fields)[0])
    assert [text for text in shown if text not in page] == []
    assert [text for text in not_shown if text in page] == []


def test_the_page_of_an_expired_job_shows_when_it_expired_and_no_request_to_stop(open_page):
    [job] = rows.chain(1, "cancelled", expires_at=PAST, cancel_requested_at=PAST)
    page = open_page(job, "job")
    assert '<dt>Expired</dt><dd><time datetime="2001-01-01T00:00:00+00:00"' in page
    assert "Stop requested" not in page


def test_times_have_their_exact_value_in_the_time_zone_of_the_user(open_page):
    [job] = rows.chain(1, created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        page = open_page(job)
    assert '<time datetime="2026-01-02T03:04:05+00:00" title="Jan. 2, 2026, 12:04:05 p.m. JST">' in page


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_only_the_first_and_last_steps_of_a_long_chain_are_shown(open_page, count):
    page = open_page(rows.chain(count, "running")[0])
    assert numbers_in(page) == [*range(1, 11), *range(count - 9, count + 1)]
    assert f"{count - 20:,} steps are not shown here" in page


#: The links of pages to others, by the numbers of the steps with which they start.
LINKS = {"": ["11"], "11": ["1", "41"], "41": ["11", "71"], "71": ["41", "101"], "101": ["71"]}


def test_links_lead_to_all_other_steps(open_page):
    job, seen = rows.chain(120, "running")[0], set()
    for start, links in LINKS.items():
        page = open_page(job, **({"from": start} if start else {}))
        seen |= set(numbers_in(page))
        assert re.findall(r"\?from=(\d+)#steps", page) == links
    assert seen == set(range(1, 121))


@both_pages
def test_links_above_a_page_are_shown_once(open_page, model):
    """In some versions of Django, a block of its base template has the place of these links too."""
    assert open_page(rows.chain(2, "running")[-1], model).count('class="historylink"') == 1


def test_invalid_parameters_are_ignored(open_page):
    [*_, job] = rows.chain(3, "running")
    rows.lines(job, 2)
    for wrong in ("0", "201", "-1", "x", "9" * 5_000, "1\x00", "\u0663", "", ".", "9" * 30 + ".1", "1.\x00", "1.2.3"):
        assert numbers_in(open_page(job, **{"from": wrong, "dependents": wrong})) == [1, 2, 3], wrong
        assert "line 1<" in open_page(job, "job", log=wrong, attempts=wrong, blockers=wrong), wrong


# Attempts, logs and progress


@both_pages
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


def test_the_page_of_a_chain_shows_the_last_failed_attempts_of_a_step(open_page):
    job = rows.chain(2, "failed")[-1]
    rows.attempts(job, 5)
    page = open_page(job)
    assert re.findall(r"Attempt (\d): error", page) == ["3", "4", "5"]
    assert "2 earlier attempts" in page
    assert page.count("Traceback (most recent call last)") == 3


def test_a_crash_shows_the_standard_error_of_its_process_masked(open_page):
    [job] = rows.chain(1, "failed")
    error = "ChildCrashed: The worker process was killed by SIGSEGV."
    rows.attempts(job, 1, kind="crash", error=error, traceback="password=secret-7\nassertion failed")
    page = open_page(job, "job")
    for shown in ("Attempt 1: crash", error, "Standard error of the child process:", "assertion failed"):
        assert shown in page
    assert "secret-7" not in page


def test_large_values_are_only_shown_on_the_page_of_the_job(open_page):
    job = rows.chain(2, "failed", input="y" * 50_000)[-1]
    rows.attempts(job, 1, traceback="x" * 20_000)
    assert "20,000 characters, shown on the page of the job." in open_page(job)
    assert "50,002 characters, too long to display." in open_page(job)
    assert "x" * 20_000 in open_page(job, "job")
    assert "y" * 50_000 in open_page(job, "job")


def test_an_input_that_cannot_be_decoded_shows_a_note(open_page):
    [job], is_postgresql = rows.chain(1), connection.vendor == "postgresql"
    cast, id_ = ("%s::jsonb", job.id) if is_postgresql else ("%s", job.id.hex)
    with connection.cursor() as cursor:
        deep = "[" * 2_000 + "]" * 2_000
        cursor.execute(f"UPDATE {Job._meta.db_table} SET input = {cast} WHERE id = %s", [deep, id_])
    for model in ("chain", "job"):
        assert re.search("cannot be decoded|nested deeper", open_page(job, model))


@pytest.mark.parametrize("count", [35, pytest.param(10_000, marks=pytest.mark.slow)])
def test_all_attempts_are_paginated_newest_first(open_page, count):
    [job] = rows.chain(1, "failed")
    rows.attempts(job, count)
    assert len(re.findall(r"Attempt \d+: error", open_page(job, "job"))) == 10
    if count < 100:
        pages = walk(open_page, job, "job", "attempts")
        seen = [int(number) for page in pages for number in re.findall(r"Attempt (\d+): error", page)]
        assert seen == list(range(count, 0, -1))


def test_all_log_lines_are_paginated_from_the_end(open_page):
    [job] = rows.chain(1, "running")
    rows.lines(job, 250)
    later = [rows.line(job, place, lease_number=2, attempt=2, text=f"line {250 + place}") for place in range(20)]
    type(later[0]).objects.bulk_create(later)
    seen = []
    for page in walk(open_page, job, "job", "log"):
        seen = [*map(int, re.findall(r"line (\d+)</", page)), *seen]
    assert seen == list(range(270))


def test_omitted_lines_are_counted(open_page):
    [job] = rows.chain(1, "running")
    lines = [rows.line(job, 0), rows.line(job, 1), rows.line(job, 500), rows.line(job, 0, lease_number=2)]
    type(lines[0]).objects.bulk_create(lines)
    assert re.findall(r"(\d+) lines? omitted", open_page(job, "job")) == ["498"]


def test_progress_of_the_last_attempt_and_the_last_log_lines_are_shown(open_page):
    job = rows.chain(2, "running")[-1]
    rows.progress(job)
    rows.lines(job, 50)
    page = open_page(job)
    assert '<progress max="100" value="40"' in page
    assert re.findall(r"line (\d+)</", page) == [str(number) for number in range(30, 50)]
    for lease_number, is_shown in ((1, True), (2, False)):
        Job.objects.filter(pk=job.pk).update(lease_number=lease_number)
        assert [("page 4 of 10" in open_page(job, model)) for model in ("chain", "job")] == [is_shown] * 2


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_the_trace_of_a_job_is_linked(open_page, settings):
    [job] = rows.chain(1)
    assert "Trace" not in open_page(job, "job")
    Job.objects.filter(pk=job.pk).update(context={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    assert f"<code>{TRACE}</code>" in open_page(job, "job")
    settings.JOBCHAINS = {"TRACE_URL": "https://traces.example.com/{trace_id}"}
    assert f'<a href="https://traces.example.com/{TRACE}"><code>{TRACE}</code></a>' in open_page(job, "job")
    for invalid in ("javascript:alert(1)", f"00-{TRACE}", 7, None):
        Job.objects.filter(pk=job.pk).update(context={"traceparent": invalid})
        assert "<dt>Trace</dt>" not in open_page(job, "job")


# Blockers and dependents


def test_blockers_and_dependents_are_shown_in_a_graph_and_in_lists(open_page):
    [job] = rows.chain(1, "blocked")
    assert "jobchains-graph" not in open_page(job)
    stock, money, coins = (rows.chain(2, "blocked", f"shop.{name}") for name in ("stock", "money", "coins"))
    rows.waits(job, stock, money)
    rows.waits(money[-1], coins)
    later = rows.chain(2, "blocked", "shop.mail")
    rows.waits(later[-1], [job])
    page = open_page(job)
    assert page.count("<svg viewBox") == 1
    for jobs, links in ((stock, 2), (money, 2), (later, 2), (coins, 1)):
        assert page.count(f'href="{url("change", jobs[0])}"') == links
    assert '<progress max="2" value="0"' in page.split("<dl")[0]
    assert page.count("Waiting for blockers: 0 of 2 have ended") == 1
    assert f'href="{url("change", later[-1], "job")}"' in page


def test_all_blockers_are_paginated_in_order(open_page):
    job, blockers = rows.chain(2, "blocked")[-1], [rows.chain(1, "running")[0] for _ in range(70)]
    rows.link(job, blockers)
    page = open_page(job)
    assert "and 65 more" in page
    assert "Waiting for blockers: 0 of 70 have ended" in page
    found = [
        id_
        for page in walk(open_page, job, "job", "blockers")
        for id_ in re.findall(r'/chain/[\w-]+/change/" title="([\w-]+)">step: 0</a></li>', page)
    ]
    assert found == [str(blocker.id) for blocker in blockers]


def test_dependents_are_paged(open_page):
    blocker, waiting = rows.chain(1, "running"), [rows.chain(1, "blocked")[-1] for _ in range(45)]
    for job in waiting:
        rows.waits(job, blocker)
    pages = walk(open_page, blocker[0], "chain", "dependents")
    links = r'<a href="[^"]*/chain/([\w-]+)/change/" title='
    assert {id_ for page in pages for id_ in re.findall(links, page)} == {str(job.id) for job in waiting}


# Access, and the pages as a whole


@both_pages
def test_the_pages_require_the_view_permission_and_reject_post(staff, superuser, model):
    [job] = rows.chain(1)
    for id_ in (job.id, uuid4(), "nonsense"):
        address = url("change", Job(pk=id_), model)
        assert staff("view_payload", view=False).get(address).status_code == 403
    assert superuser.post(url("change", job, model), {"status": "completed"}).status_code == 403
    assert Job.objects.get(pk=job.pk).status == "pending"


def test_an_unknown_id_redirects_with_a_message_and_that_of_a_job_to_its_chain(superuser):
    for id_ in (uuid4(), "nonsense", "\0", "1"):
        reply = superuser.get(url("change", Job(pk=id_)), follow=True)
        assert "Perhaps it was deleted?" in reply.content.decode()
    first, last = rows.chain(2)
    reply = superuser.get(url("change", last))
    assert (reply.status_code, reply["Location"]) == (302, f"{url('change', first)}#step-{last.id}")
    chain_admin = admin.site.get_model_admin(Chain)
    assert chain_admin.get_object(HttpRequest(), str(first.id)).current_job_id == last.id
    assert chain_admin.get_object(HttpRequest(), "nonsense") is None


def test_a_fragment_equals_the_part_of_the_page_and_pages_of_unfinished_chains_refresh(open_page):
    job = rows.chain(2, "failed")[0]
    rows.attempts(job, 1)
    fragment, page = (re.sub(r"\d+ (?:s|min) ago", "", open_page(job, **query)) for query in ({"fragment": 1}, {}))
    assert "<html" not in fragment
    assert fragment.strip() in page
    assert "data-jobchains-refresh" not in page
    page = open_page(rows.chain(1)[0])
    assert 'data-jobchains-refresh="' in page
    assert "fragment=1" in page


@both_pages
def test_headings_are_nested(open_page, model):
    job = rows.chain(2, "running")[-1]
    rows.lines(job, 1)
    rows.waits(job, rows.chain(1))
    rows.waits(rows.chain(1, "blocked")[-1], [Job.objects.get(pk=job.chain_id)])
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", open_page(job, model))]
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels


def large():
    jobs = rows.chain(200, "blocked")
    for job in jobs[-10:]:
        rows.attempts(job, 4)
    rows.link(jobs[-1], [rows.chain(2, "running")[0] for _ in range(60)])
    for _ in range(25):
        rows.waits(rows.chain(1, "blocked")[-1], jobs)
    rows.lines(jobs[-1], 120)
    rows.progress(jobs[-1])
    return jobs[-1]


@pytest.mark.parametrize(("model", "most"), [("chain", 28), ("job", 24)])
def test_a_page_takes_a_constant_number_of_statements(open_page, django_assert_max_num_queries, model, most):
    for job in (rows.chain(2)[0], large()):
        with django_assert_max_num_queries(most):
            open_page(job, model)
