"""The pages of a job type and of a queue."""

from datetime import timedelta

import pytest

from django_jobchains import queues, schedules
from django_jobchains.admin import JobAdmin
from django_jobchains.db.ids import first_id_at
from django_jobchains.models import Chain, Job, QueueState, Schedule
from django_jobchains.monitoring import durations as module
from tests.admin import rows
from tests.admin.browsing import Page, open_dashboard, open_list, subject, url
from tests.support.jobs import MAIL, SHIP, alter, create, database_now, failed_try, finished, running
from tests.support.throughput import tally

pytestmark = pytest.mark.django_db


def complete(store, waited, ran, type_name=SHIP, queue="mail"):
    """Create a job that waited and ran for these seconds."""
    [job] = running(store, 1, type_name=type_name, queue=queue)
    store.attempts.finish([finished(job)])
    end = database_now()
    claimed = end - timedelta(seconds=ran)
    times = {"run_at": claimed - timedelta(seconds=waited), "last_attempt_at": claimed, "finished_at": end}
    Job.objects.filter(pk=job.id).update(**times)
    return job


def age(job, enqueued, ended):
    """Let the job have been enqueued, and have ended, these hours ago."""
    created, finished = (database_now() - timedelta(hours=hours) for hours in (enqueued, ended))
    times = {"run_at": finished, "last_attempt_at": finished, "finished_at": finished}
    Job.objects.filter(pk=job.id).update(chain_id=first_id_at(created), created_at=created, **times)


@pytest.mark.parametrize(("kind", "name"), [("type", SHIP), ("queue", "mail")])
def test_waits_and_durations_are_those_of_the_completed_jobs(viewer, store, kind, name):
    assert "No job was completed by a worker in this time." in open_dashboard(viewer, subject(kind, name)).text
    for seconds in range(1, 21):
        complete(store, seconds, seconds * 2)
    [failed] = running(store, 1, queue="mail")
    store.attempts.fail([failed_try(failed)])
    page = open_dashboard(viewer, subject(kind, name))
    assert page.table("durations") == [[SHIP, "20", "10 s", "19 s", "20 s", "38 s"]]
    assert "A sample" not in page.text


@pytest.mark.parametrize(("kind", "name"), [("type", SHIP), ("queue", "mail")])
def test_durations_are_of_the_chosen_time(viewer, store, kind, name):
    """Also of a job that was enqueued before, and did not end before."""
    for enqueued, ended in ((0, 0), (9, 9), (30, 20), (31, 30), (167, 166), (200, 199)):
        age(complete(store, 1, 1), enqueued, ended)
    for query, count in (("", "3"), ("&range=week", "5")):
        [row] = open_dashboard(viewer, f"{subject(kind, name)}{query}").table("durations")
        assert row[1] == count


def test_durations_of_many_jobs_come_from_the_newest_of_each_part_of_the_time(viewer, store, monkeypatch):
    monkeypatch.setattr(module, "PART_SIZE", 2)
    for hours in (0, 0.1, 0.2, 4, 4.1, 4.2, 25):
        age(complete(store, 1, 1), hours, hours)
    section = open_dashboard(viewer, subject("type", SHIP)).section("durations")
    assert section.all("tbody")[0].all("td")[0].text == "4"
    assert "A sample: the newest" in section.text


def test_a_type_agrees_with_the_page_of_its_job(viewer, store, open_page):
    job = complete(store, 0, 1.4)
    assert open_dashboard(viewer, subject("type", SHIP)).table("durations")[0][4] == "1.4 s"
    assert "ran for 1.4 s" in open_page(Job.objects.get(pk=job.id))


def test_a_queue_shows_each_of_its_types(viewer, store):
    for type_name, count in ((SHIP, 1), (MAIL, 2)):
        for _ in range(count):
            complete(store, 1, 1, type_name)
    complete(store, 1, 1, SHIP, queue="other")
    rows = open_dashboard(viewer, subject("queue", "mail")).table("durations")
    assert [(row[0], row[1]) for row in rows] == [(MAIL, "2"), (SHIP, "1")]


@pytest.mark.parametrize(("kind", "name"), [("type", SHIP), ("queue", "mail")])
def test_the_hours_of_a_day_or_a_week_are_drawn(viewer, store, kind, name):
    counts = {"completed": 3, "failed": 2, "queue": "mail"}
    store.stats.add_counts([tally(**counts), tally(**counts, age_seconds=2 * 86_400), tally(MAIL, queue="other")])
    for query, total, bars in (("", "3", 24), ("&range=hour", "3", 24), ("&range=week", "6", 28)):
        section = open_dashboard(viewer, f"{subject(kind, name)}{query}").section("throughput")
        completed, failed = section.all("figure")
        assert completed.all("strong")[0].text == total
        assert failed.all("strong")[0].text == str(int(total) // 3 * 2)
        assert len(completed.all("rect", "jobchains-slot")) == bars
        assert [link.text for link in section.all("a")] == ["24 hours", "7 days"]


def test_figures_failures_and_running_jobs_are_of_the_type(viewer, store, beat, fail):
    beat(type_names=(SHIP,))
    fail(SHIP, error="Boom: ours")
    running(store, 1, type_name=MAIL)
    create(store, 2, SHIP)
    create(store, 3, MAIL)
    page = open_dashboard(viewer, subject("type", SHIP))
    assert (page.figures()["due jobs"], page.figures()["workers"]) == ("2", "1")
    assert "No jobs are running." in page.section("running").text
    assert page.table("failing")[0][-1] == "Boom: ours"
    other = open_dashboard(viewer, subject("type", MAIL))
    assert [row[0] for row in other.table("running")] == [MAIL]
    assert "Boom" not in other.text


def test_a_queue_is_paused_and_limited_on_its_page(operator, viewer, store):
    queues.set_limit("mail", 2)
    page = open_dashboard(operator, subject("queue", "mail"))
    assert "at most 2 jobs at once" in page.text
    [form, _limit] = page.root.all(id="jobchains-dashboard")[0].all("form")
    fields = {field.attributes["name"]: field.attributes["value"] for field in form.all("input")}
    reply = operator.post(form.attributes["action"], {**fields, "verb": "pause"}, follow=True)
    assert reply.redirect_chain == [(subject("queue", "mail"), 302)]
    assert "was paused" in Page(reply).messages()[0]
    assert QueueState.objects.get().paused_at is not None
    page = open_dashboard(viewer, subject("queue", "mail"))
    assert page.root.all("span", "jobchains-state-paused")
    assert page.root.all(id="jobchains-dashboard")[0].all("form") == []


@pytest.mark.parametrize("kind", ["type", "queue"])
def test_a_page_needs_a_name(viewer, kind):
    for name in ("", "a\0b"):
        assert viewer.get(subject(kind, name)).status_code == 404
    assert open_dashboard(viewer, subject(kind, "unknown")).figures()["due jobs"] == "0"


@pytest.mark.parametrize("kind", ["type", "queue"])
@pytest.mark.parametrize("size", [1, 20])
def test_it_takes_a_constant_number_of_statements(viewer, store, fail, kind, size, django_assert_max_num_queries):
    for number in range(size):
        complete(store, 1, 1)
        alter(running(store, 1, queue="mail"), status="blocked")
        fail(f"shop.type_{number}", queue="mail")
    with django_assert_max_num_queries(26 if store.connection.vendor == "postgresql" else 23):
        open_dashboard(viewer, subject(kind, SHIP if kind == "type" else "mail"))


def test_lists_and_pages_link_the_pages_of_their_types_and_queues(superuser, store, processors):
    [job] = running(store, 1, queue="mail")
    kind = processors.register("shop.report")(lambda job: None)
    schedules.create("nightly", kind, every=60, queue="mail")
    to_type, to_queue = subject("type", SHIP), subject("queue", "mail")
    chain, schedule = Chain.objects.get(pk=job.id), Schedule.objects.get()
    for row, address in ((chain, to_type), (Job.objects.get(), to_type), (schedule, subject("type", "shop.report"))):
        model = row._meta.model_name
        page = Page(superuser.get(url("change", row, model), follow=True))
        assert {address, to_queue} <= set(addresses(page)), model
    for model in ("chain", "job"):
        page = open_list(superuser, model)
        assert {page.links["running"], page.links[SHIP]} == {url("change", Job.objects.get(), model), to_type}
        assert page.links["mail"] == to_queue
        assert to_type in addresses(open_list(superuser, model, {"type": SHIP}))
        assert open_list(superuser, model, {"queue": "mail"}).links["mail"] == to_queue
    assert open_list(superuser, "schedule").links["shop.report"] == subject("type", "shop.report")


def test_links_open_the_step_and_names_open_their_pages(superuser, store):
    first, last = rows.chain(2, "running", type_name=SHIP, queue="mail")
    Job.objects.filter(pk=last.id).update(type_name=MAIL)
    [waiting] = rows.chain(1, "blocked")
    rows.link(waiting, [first])
    to_chain, to_job = url("change", Chain(pk=first.id)), url("change", last, "job")
    page = Page(superuser.get(to_chain))
    for text, address in (
        ("Step 2", to_job),
        ("step 2", to_job),
        (MAIL, subject("type", MAIL)),
        ("mail", subject("queue", "mail")),
    ):
        assert page.links[text] == address
    assert page.links[SHIP] == subject("type", SHIP)
    assert open_list(superuser, "chain").links[MAIL] == subject("type", MAIL)
    listed = open_list(superuser, "job", {"type": MAIL})
    assert (listed.links["step 2"], listed.links[SHIP]) == (to_chain, subject("type", SHIP))
    page = Page(superuser.get(url("change", Chain(pk=waiting.id))))
    assert (page.links[SHIP], page.links["step: 0"]) == (subject("type", SHIP), to_chain)
    [running_jobs] = open_dashboard(superuser).section("running").all("table")
    assert [item.attributes["href"] for item in running_jobs.all("a")] == [
        subject("type", MAIL), to_job, to_job, subject("type", SHIP), subject("queue", "mail"),
    ]  # fmt: skip


def test_in_a_pop_up_only_the_row_is_a_link(superuser, store):
    running(store, 1, queue="mail")
    page = open_list(superuser, "job", {"_popup": "1"})
    [opener] = [
        item
        for table in page.root.all("table", id="result_list")
        for body in table.all("tbody")
        for item in body.all("a")
    ]
    assert opener.text == "running"


def test_names_are_no_links_without_the_dashboard(viewer, store, monkeypatch):
    [job] = running(store, 1, queue="mail")
    monkeypatch.setattr(JobAdmin, "has_dashboard_permission", lambda self, request: False)
    for page in (open_list(viewer, "job"), open_dashboard(viewer, url("change", Chain(pk=job.id), "chain"))):
        assert "mail" in page.text
        assert not [address for address in addresses(page) if "/dashboard/" in address]


def addresses(page):
    return [link.attributes.get("href", "") for link in page.root.all("a")]
