"""The page of a schedule, and what the pages of its chains show of it."""

from datetime import timedelta

import pytest
from django.utils import timezone, translation

from django_jobchains import schedules
from django_jobchains.admin.schedule_admin import cron_in_words
from django_jobchains.models import Job, Schedule
from django_jobchains.testing import fire_schedules
from tests.admin.browsing import Page, open_list, text_of, url
from tests.admin.schedules.conftest import Report
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db


def open_schedule(client, name):
    reply = client.get(url("change", Schedule(pk=name), "schedule"))
    assert reply.status_code == 200
    return Page(reply)


def cells(page):
    lines = [line for table in page.root.all("table", "jobchains-targets") for line in table.all("tr")[1:]]
    return [[cell.text for cell in line.all("td")] for line in lines]


def test_the_next_ticks_are_in_both_time_zones(viewer, report, time):
    schedules.create("nightly", report, cron="30 2 * * *", timezone="Europe/Berlin", input=Report("day"))
    time.set("2026-03-27 12:00:00")
    with timezone.override("America/New_York"):
        page = open_schedule(viewer, "nightly")
    ticks = cells(page)
    assert [tick[1:] for tick in ticks][:2] == [
        ["March 28, 2026, 2:30:00 a.m. CET", "March 27, 2026, 9:30:00 p.m. EDT"],
        ["March 29, 2026, 3:00:00 a.m. CEST", "March 28, 2026, 9:00:00 p.m. EDT"],
    ]
    assert len(ticks) == 5
    assert "In your time zone (America/New_York)" in page.text
    assert "30 2 * * * (every day at 02:30)" in page.text


def test_the_rule_and_the_options(viewer, report):
    options = {
        "overlap": "skip",
        "on_missed": "run_all",
        "max_catch_up": 7,
        "jitter": 90,
        "queue": "bulk",
        "priority": 3,
    }
    schedules.create("mine", report, cron="0 9 * * MON-FRI", timezone="Europe/Berlin", input=Report("day"), **options)
    page = open_schedule(viewer, "mine")
    facts = {part.all("dt")[0].text: part.all("dd")[0].text for part in page.root.all("dl")[0].all("div")}
    assert "0 9 * * MON-FRI (Monday to Friday at 09:00)" in page.text
    del facts["Created"]
    assert facts == {
        "Type": "shop.report", "Rule": "0 9 * * MON-FRI", "Time zone": "Europe/Berlin", "Source": "admin",
        "Overlap": "skip", "Missed ticks": "run all, at most 7", "Jitter": "up to 1 min 30 s", "Queue": "bulk",
        "Priority": "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", ""),
        ("*/0 * * * *", ""),
        ("5 * * * *", "every hour, at minute 5"),
        ("30 2 * * *", "every day at 02:30"),
        ("0 9 * * mon-fri", "Monday to Friday at 09:00"),
        ("0 9 * * 0", "every Sunday at 09:00"),
        ("0 9 * * 7", "every Sunday at 09:00"),
        ("0 9 * * 1", "every Monday at 09:00"),
        ("0 9 15 * *", "on day 15 of every month at 09:00"),
        ("0 9 15 * 1", ""),
        ("0 9 L * *", ""),
        ("0 9 * * MON#1", ""),
        ("0 9 1 1 *", ""),
        ("0,30 9 * * *", ""),
        ("0 9,17 * * *", ""),
        ("0 * * * 1", ""),
    ],
)
def test_common_cron_expressions_are_described(cron, words):
    assert cron_in_words(cron) == words


def test_descriptions_are_translated():
    with translation.override("de"):
        assert cron_in_words("0 9 * * 1") == "jeden Montag um 09:00"


def test_payloads_are_shown_as_those_of_chains(staff, viewer, report, failing):
    schedules.create("mine", report, every=60, input={"kind": "password=canary4711"})
    for name in ("mine", "broken"):
        assert "Hidden: you do not have permission" in text_of(
            staff("view_schedule").get(url("change", Schedule(pk=name), "schedule"))
        )
    assert "canary4711" not in open_schedule(staff("view_schedule"), "broken").text
    assert "shop.errors.NoStock" in open_schedule(staff("view_schedule"), "broken").text
    page = open_schedule(viewer, "mine").text
    assert "password=********" in page
    assert "canary4711" not in page
    assert "canary4711 is missing" in open_schedule(viewer, "broken").text


def test_what_prevents_ticks_is_explained(viewer, report, of_code, failing, beat):
    of_code("orphan", is_declared=False)
    schedules.create("idle", report, every=60, input=Report("day"))
    schedules.pause("idle")
    assert "is kept and tried again every minute" in open_schedule(viewer, "broken").text
    orphan = open_schedule(viewer, "orphan").text
    assert "No running worker declares this schedule any more, so it does not fire." in orphan
    assert "Here it can be paused, resumed and run." not in orphan
    assert "the schedule does not fire until it is resumed" in open_schedule(viewer, "idle").text
    beat(schedules="digest")
    of_code("coded")
    assert "Here it can be paused, resumed and run." in open_schedule(viewer, "coded").text


def test_ticks_that_cannot_be_computed_do_not_prevent_the_page(viewer, report):
    schedules.create("mine", report, cron="0 3 * * *", input=Report("day"))
    Schedule.objects.update(timezone="Atlantis/Capital")
    assert "The ticks cannot be computed here: " in open_schedule(viewer, "mine").text


def test_the_last_chains_are_listed_with_their_ticks(viewer, report, time):
    start = time.set("2026-06-01 10:00:00")
    schedules.create("mine", report, every=60, input=Report("day"))
    report.enqueue(Report("other"))
    time.set("2026-06-01 10:01:00")
    [fired] = fire_schedules()
    run = schedules.run_now("mine")
    page = open_schedule(viewer, "mine")
    assert [(row[0], row[1], row[4]) for row in cells(page)[5:]] == [
        ("pending", "run now", "shop.report kind: day, days: 1"),
        ("pending", "June 1, 2026, 10:01:00 a.m. UTC", "shop.report kind: day, days: 1"),
    ]
    assert [url("change", chain) in page.html for chain in (run, fired)] == [True, True]
    assert fired.scheduled_for - start == timedelta(minutes=1)
    listed = open_list(viewer, "chain", page.links["All chains of this schedule"])
    assert listed.ids == [str(run.id), str(fired.id)]
    assert len(open_list(viewer, "chain").ids) == 3


def test_a_chain_that_waits_for_its_time_has_no_duration(viewer, report, time):
    time.set("2026-06-01 10:00:00")
    schedules.create("mine", report, every=60, input=Report("day"))
    chain = schedules.run_now("mine")
    for run_at, status, is_shown in ((None, "pending", True), ("2999-01-01T00:00Z", "scheduled", False)):
        Job.objects.filter(pk=chain.id).update(run_at=run_at or chain.created_at)
        row = cells(open_schedule(viewer, "mine"))[-1]
        assert (row[0], "so far" in row[3]) == (status, is_shown)


def test_the_pages_of_a_chain_and_its_job_name_the_schedule_and_the_tick(staff, viewer, report, time):
    time.set("2026-06-01 10:00:00")
    schedules.create("mine/a b", report, every=60, input=Report("day"))
    time.set("2026-06-01 10:01:00")
    [chain] = fire_schedules()
    job, address = Job.objects.get(), url("change", Schedule(pk="mine/a b"), "schedule")
    for page in (url("change", chain), url("change", job, "job")):
        shown = Page(viewer.get(page, follow=True))
        assert shown.links["mine/a b"] == address
        assert "June 1, 2026, 10:01:00 a.m. UTC" in shown.text
        blind = Page(staff().get(page, follow=True))
        assert "mine/a b" in blind.text
        assert "mine/a b" not in blind.links
    other = report.enqueue(Report("day"))
    assert "Schedule" not in [term.text for term in Page(viewer.get(url("change", other))).root.all("dt")]


def test_a_schedule_without_chains(viewer, report):
    schedules.create("mine", report, every=60, input=Report("day"))
    assert "There are no chains of this schedule, or none that you may view." in open_schedule(viewer, "mine").text


def test_a_missing_schedule_leads_back(viewer):
    for name in ("none", "a\tb", "a\0b"):
        assert viewer.get(url("change", Schedule(pk=name), "schedule")).status_code == 302


def test_the_page_refreshes_while_the_schedule_fires(viewer, report):
    schedules.create("mine", report, every=60, input=Report("day"))
    address = url("change", Schedule(pk="mine"), "schedule")
    assert "data-jobchains-refresh=" in text_of(viewer.get(address))
    fragment = text_of(viewer.get(address, {"fragment": 1}))
    assert "Next ticks" in fragment
    assert "<html" not in fragment
    schedules.pause("mine")
    assert "data-jobchains-refresh=" not in text_of(viewer.get(address))


def test_a_schedule_whose_rule_never_matches_again(viewer, report):
    schedules.create("mine", report, cron="0 3 * * *", input=Report("day"))
    Schedule.objects.update(next_tick_at=None)
    assert "has no match in the next fifty years" in open_schedule(viewer, "mine").text


def test_the_time_since_which_a_schedule_is_failing_is_shown(viewer, failing):
    Schedule.objects.update(last_error_at=database_now() - timedelta(hours=5, seconds=3))
    assert "5 h ago" in open_schedule(viewer, "broken").text
