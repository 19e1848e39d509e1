"""What the pages of chains and jobs show first, and what they do not repeat."""

import re

import pytest

from django_jobchains import chains
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.models import Job
from django_jobchains.processors import FailedJob, FailJob, JobType, Processors, RunningJob, get_registry
from django_jobchains.testing import run_due_jobs
from tests.admin import rows
from tests.admin.browsing import text_of, url
from tests.admin.pages.test_pages import FAR

pytestmark = pytest.mark.django_db


def test_a_job_without_other_steps_has_the_page_of_its_chain(superuser, staff, open_page, monkeypatch):
    [job] = rows.chain(1, "failed")
    reply = superuser.get(url("change", job, "job"), {"attempts": "3"})
    assert (reply.status_code, reply["Location"]) == (302, f"{url('change', job)}?attempts=3")
    page = open_page(job)
    assert [page.count(f"<dt>{name}</dt>") for name in ("Chain", "Step", "Queue", "Id")] == [0, 0, 1, 1]
    assert "jobchains-steps" not in page
    for step in rows.chain(2):
        assert superuser.get(url("change", step, "job")).status_code == 200
    assert staff("view_payload", "view_job", view=False).get(url("change", job, "job")).status_code == 200


def test_a_page_that_refreshes_shows_the_next_step_when_there_is_one(open_page):
    [job] = rows.chain(1)
    assert "jobchains-steps" not in open_page(job, fragment=1)
    rows_of_two = rows.chain(2)
    assert "jobchains-steps" in open_page(rows_of_two[0], fragment=1)


@pytest.mark.parametrize(
    ("value", "is_open"), [({"order": 7}, True), (2, True), ("x" * 600, False), (list(range(20)), False)]
)
def test_small_values_are_unfolded(open_page, value, is_open):
    for job, model in ((rows.chain(1, input=value)[0], "chain"), (rows.chain(2, input=value)[1], "job")):
        found = re.search(r'<details[^>]*-input"( open)?>', open_page(job, model))
        assert (found[1] is not None) == is_open


def test_a_scheduled_chain_has_no_duration(open_page):
    for count in (1, 2):
        page = open_page(rows.chain(count, run_at=FAR)[-1])
        assert "so far" not in page.split('id="steps"')[0]
        assert page.split('id="steps"')[0].count('due <time datetime="2999') == 1
    assert "so far" in open_page(rows.chain(2, "running")[-1])


def buttons(page):
    return re.findall(r'jobchains-button-(primary|secondary|dangerous)" href="[^"]*/(\w+)/[^"]*"', page)


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        ("failed", {}, [("primary", "retry"), ("secondary", "delete")]),
        ("completed", {}, [("secondary", "delete")]),
        ("running", {}, [("dangerous", "cancel"), ("secondary", "complete"), ("secondary", "delete")]),
        (
            "pending",
            {"run_at": FAR},
            [
                ("primary", "run_now"),
                ("secondary", "reschedule"),
                ("dangerous", "cancel"),
                ("secondary", "complete"),
                ("secondary", "delete"),
            ],
        ),
    ],
)
def test_buttons_are_in_the_order_of_what_people_need(open_page, status, fields, expected):
    assert buttons(open_page(rows.chain(1, status, **fields)[0])) == expected


def test_the_button_that_a_job_waits_for_is_the_first(open_page, monkeypatch):
    monkeypatch.setitem(get_registry().declared, "shop.approval", JobType("shop.approval"))
    [first, *_] = buttons(open_page(rows.chain(1, type_name="shop.approval")[0]))
    assert first == ("primary", "complete")


def test_titles_have_the_label_and_the_id_is_one_of_the_properties(open_page, staff, monkeypatch):
    order = JobType("shop.order", label="Order {step}", input=dict[str, int])
    monkeypatch.setitem(get_registry().declared, "shop.order", order)
    for count in (1, 3):
        jobs = rows.chain(count)
        page = open_page(jobs[-1])
        assert "<h1>Chain shop.order – Order 0</h1>" in page
        assert f"<dd><code>{jobs[0].id}</code></dd>" in page
        assert "<h2>" not in page.split("jobchains-detail")[0]
    assert "<h1>Job shop.order – Order 2</h1>" in open_page(jobs[-1], "job")
    assert "<h1>Chain shop.order</h1>" in open_page(jobs[-1], by=staff())


def test_null_is_not_shown(superuser, monkeypatch):
    """It is the input of a type without one, and the output of a handler that returns nothing."""
    plain = JobType("shop.plain")
    monkeypatch.setitem(get_registry().declared, "shop.plain", plain)
    chain = plain.enqueue()
    chains.complete(chain.id, None)
    page = text_of(superuser.get(url("change", chain)))
    assert ("-input" in page, "-output" in page) == (False, False)


def test_what_stopped_a_cancelled_job_is_not_shown_as_a_failure(open_page):
    """The bar below it shows how long it ran."""
    cancelled, failed = (rows.chain(1, status, last_error="JobAborted: stop")[0] for status in ("cancelled", "failed"))
    assert '<p class="jobchains-remark">JobAborted: stop</p>' in open_page(cancelled)
    assert '<rect class="jobchains-bar-cancelled"' in open_page(cancelled)
    assert '<p class="jobchains-error">JobAborted: stop</p>' in open_page(failed)


def test_links_to_other_chains_have_their_labels(open_page, staff, monkeypatch):
    part = JobType("shop.part", label="Lines {start}", input=dict[str, int])
    monkeypatch.setitem(get_registry().declared, "shop.part", part)
    [waiting], first, plain = rows.chain(1, "blocked"), rows.chain(2, "failed", "shop.part"), rows.chain(1, input=None)
    Job.objects.filter(pk=first[0].pk).update(input={"start": 25})
    rows.waits(waiting, first, plain)
    page = open_page(waiting)
    assert f'<a href="{url("change", first[0])}" title="{first[0].id}">Lines 25</a>' in page
    assert f'title="{plain[0].id}"><code>{plain[0].id}</code></a>' in page
    assert 'failed <tspan class="jobchains-box-step">Lines 25</tspan>' in page
    assert "Lines 25" not in open_page(waiting, by=staff())
    monkeypatch.setattr(JobAdmin, "sees_all_rows", lambda self, request: False)
    assert "Lines 25" not in open_page(waiting)


@pytest.fixture
def failed_with_reaction(registry):
    part = Processors()

    @part.register("shop.react")
    def react(job: RunningJob[FailedJob]) -> None: ...

    @part.register("shop.fragile", on_failure="shop.react")
    def fragile(job: RunningJob[None]) -> None:
        raise FailJob("broken")

    registry.add(part)
    chain = fragile.enqueue()
    run_due_jobs()
    [reaction] = Job.objects.of_type("shop.react")
    return chain.refresh(), reaction


def test_a_failed_chain_and_the_one_that_on_failure_started_link_each_other(failed_with_reaction, superuser, staff):
    failed, reaction = failed_with_reaction
    assert reaction.failed_job_id == failed.current_job_id
    assert url("change", reaction) in text_of(superuser.get(url("change", failed)))
    back = text_of(superuser.get(url("change", reaction)))
    assert f"{url('change', failed)}#step-{failed.current_job_id}" in back
    chains.retry(failed)
    run_due_jobs()
    page = text_of(superuser.get(url("change", failed)))
    assert all(url("change", job) in page for job in Job.objects.of_type("shop.react")), "one for each failure"


def test_hidden_chains_are_not_linked(failed_with_reaction, superuser, monkeypatch):
    failed, reaction = failed_with_reaction
    own, hidden_ids = ChainAdmin.has_view_permission, []

    def has_view_permission(self, request, obj=None):
        return own(self, request, obj) and not (obj and obj.pk in hidden_ids)

    monkeypatch.setattr(ChainAdmin, "has_view_permission", has_view_permission)
    for hidden, shown in ((failed, reaction), (reaction, failed)):
        hidden_ids[:] = [hidden.pk]
        assert url("change", hidden) not in text_of(superuser.get(url("change", shown)))
