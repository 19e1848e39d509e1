"""The tables show the facts of ``monitoring``: one test for each section."""

from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import pytest

from django_jobchains import queues
from django_jobchains.admin.dashboard import views
from django_jobchains.models import AttemptCount, Job, WorkerPresence
from django_jobchains.monitoring import overview, throughput
from tests.admin.browsing import open_dashboard, subject
from tests.support.jobs import MAIL, SHIP, alter, create, database_now, failed_try, running
from tests.support.pool_states import POOL

pytestmark = pytest.mark.django_db


def test_queues_show_their_backlog_and_state(viewer, store):
    assert "No jobs are waiting or running" in open_dashboard(viewer).section("queues").text
    alter(running(store, 1, queue="mail"), status="blocked")
    running(store, 2, queue="mail")
    create(store, 3, queue="mail")
    Job.objects.filter(status="pending").update(run_at=database_now() - timedelta(minutes=3))
    create(store, 4, queue="mail", delay_seconds=3600)
    queues.pause("imports")
    queues.set_limit("imports", 2)
    page = open_dashboard(viewer)
    assert page.table("queues") == [
        ["imports", "paused at most 2 jobs at once", "0", "", "0", "0", "0", "0"],
        ["mail", "open", "3", "3 min", "2", "4", "1", "0"],
    ]
    assert (page.figures()["due jobs"], page.figures()["oldest due job"]) == ("3", "3 min")


def test_workers_show_their_state_and_live_ones_are_counted(viewer, beat):
    beat(busy=4, slots=10, up_seconds=7200.0)
    beat("two:1:b", busy=0, queues=("mail", "reports"), type_names=("a.b",), version="2.1", stuck=0)
    beat("three:1:c", is_stopping=True)
    beat("four:1:d", stuck=2)
    beat("six:1:f", busy=0, slots=0, queues=(), type_names=())
    beat("five:1:e", busy=9, slots=9)
    WorkerPresence.objects.filter(pk="five:1:e").update(heartbeat_at=database_now() - timedelta(seconds=70))
    page = open_dashboard(viewer)
    rows = {row[0].split()[0]: row[1:] for row in page.table("workers")}
    assert rows["main:1:a"][:3] + rows["main:1:a"][4:6] == ["busy", "4 of 10", "0", "2 h", "all queues"]
    assert [rows["two:1:b"][0], *rows["two:1:b"][5:]] == ["idle", "mail , reports", "1 two:1:b a.b", "2.1"]
    assert rows["three:1:c"][0] == "stopping"
    assert (rows["four:1:d"][0], rows["four:1:d"][2]) == ("stuck", "2")
    assert (rows["six:1:f"][0], rows["six:1:f"][1]) == ("maintenance only", "0 of 0")
    assert (rows["five:1:e"][0], rows["five:1:e"][3]) == ("no heartbeat", "1 min ago")
    assert (page.figures()["workers"], page.figures()["busy slots"]) == ("5", "10 of 40")


def test_failing_types_show_their_latest_error_and_link_to_the_jobs(viewer, operator, store):
    assert "No attempts failed in the last 24 hours." in open_dashboard(viewer).section("failing").text
    first, second = running(store, 2, type_name="shop.ship")
    store.attempts.fail([failed_try(first, error="ValueError: old")])
    store.attempts.fail([failed_try(second, error="shop.Declined: card 4711, password=hunter2\nmore")])
    page = open_dashboard(viewer)
    [[name, last, *numbers, error]] = page.table("failing")
    assert (name, numbers, error) == ("shop.ship", ["2", "2", "2", "0"], "shop.Declined: card 4711, password=********")
    assert last.endswith("s ago")
    [to_type, link] = page.section("failing").all("a")
    assert to_type.attributes["href"] == subject("type", "shop.ship")
    assert link.attributes["href"] == "/admin/django_jobchains/job/?type=shop.ship&status=failed"
    assert str(first.id) in viewer.get(link.attributes["href"]).content.decode()
    assert open_dashboard(operator).table("failing")[0][-1] == "shop.Declined", "this user may not view payloads"


def test_links_have_the_full_names_of_types_and_queues(viewer, store, fail):
    name = "a&status=completed#b/c+d %2F?"
    fail(name)
    create(store, 1, queue=name)
    page = open_dashboard(viewer)
    for section, parameters in (("failing", ["name", "type"]), ("types", ["name"]), ("queues", ["name"])):
        links = [link for link in page.section(section).all("a") if link.text != SHIP]
        for link, parameter in zip(links, parameters, strict=True):
            assert parse_qs(urlsplit(link.attributes["href"]).query)[parameter] == [name]
    for kind in ("type", "queue"):
        for link in open_dashboard(viewer, subject(kind, name)).root.all("p", "jobchains-links")[0].all("a"):
            assert parse_qs(urlsplit(link.attributes["href"]).query)[kind] == [name]


def test_the_slowest_types_are_shown_slowest_first(viewer):
    hour = throughput().hours[-1].starts_at
    AttemptCount.objects.bulk_create(
        AttemptCount(
            span=3600,
            starts_at=hour,
            type_name=name,
            completed=completed,
            failed=failed,
            jobs_failed=failed // 2,
            seconds=seconds,
            longest_seconds=longest,
        )
        for name, completed, failed, seconds, longest in (
            ("quick", 1000, 0, 5.0, 0.4),
            ("slow", 8, 2, 1200.0, 300.0),
            *((f"type {number}", 1, 0, 0.001, 0.001) for number in range(10)),
        )
    )
    page = open_dashboard(viewer)
    rows = page.table("slow")
    assert rows[:2] == [["slow", "2 min", "5 min", "8", "2", "1"], ["quick", "5 ms", "400 ms", "1,000", "0", "0"]]
    assert (len(rows), "2 more rows are not shown." in page.section("slow").text) == (views.MAX_SLOW, True)


def test_types_show_their_workers_and_link_to_their_jobs(viewer, store, beat):
    beat(type_names=(MAIL,))
    create(store, 2, MAIL)
    create(store, 1, SHIP)
    page = open_dashboard(viewer)
    assert [(row[0], row[1], row[3]) for row in page.table("types")] == [(MAIL, "2", "1"), (SHIP, "1", "0")]
    [unserved] = page.section("types").all("td", "jobchains-problem")
    assert unserved.text == "0"
    assert page.section("types").all("a")[0].attributes["href"] == subject("type", MAIL)


def test_running_jobs_are_shown_longest_first(viewer, store, monkeypatch):
    assert "No jobs are running." in open_dashboard(viewer).section("running").text
    monkeypatch.setattr(views, "MAX_RUNNING_ROWS", 2)
    jobs = running(store, 3, queue="mail")
    for minutes, job in enumerate(jobs, 1):
        alter([job], last_attempt_at=database_now() - timedelta(minutes=minutes, seconds=1))
    alter(jobs[2:], chain_index=2, chain_type_name="shop.order")
    section = open_dashboard(viewer).section("running")
    rows = [[cell.text for cell in row.all("th") + row.all("td")] for row in section.all("tbody")[0].all("tr")]
    assert rows == [
        [SHIP, "3 min 1 s", "step 3 shop.order", "1", "mail", "worker-1"],
        [SHIP, "2 min 1 s", "step 1", "1", "mail", "worker-1"],
    ]
    assert "1 more row is not shown." in section.text
    assert section.all("a")[1].attributes["href"] == f"/admin/django_jobchains/job/{jobs[2].id}/change/"


def test_pools_show_their_state_and_memory(viewer, beat):
    beat()
    assert "Child processes" not in open_dashboard(viewer).text
    states = {
        "full": {"is_saturated": True},
        "broken": {"cannot_start": True},
        "weak": {"is_weakened": True, "is_saturated": True},
        "idle": {"busy": 0},
    }
    beat(pools=(POOL, *(replace(POOL, key=key, **changes) for key, changes in states.items())))
    rows = {row[0].split()[0]: row for row in open_dashboard(viewer).table("pools")}
    assert rows["images"][1:] == ["busy", "2 of 4", "1", "120 MB", "70 MB", "1", "5", "3"]
    assert "(process)" in rows["images"][0]
    texts = {"full": "saturated", "broken": "cannot start", "weak": "in threads", "idle": "idle"}
    assert {key: rows[key][1] for key in states} == texts


@pytest.mark.postgresql
def test_postgresql_shows_transactions_and_connections(viewer):
    figures = open_dashboard(viewer).figures()
    assert figures["database"] == "default (postgresql)"
    used, most = map(int, figures["connections"].split(" of "))
    assert 1 <= used <= most


def test_only_the_most_important_rows_are_kept_in_their_order(monkeypatch):
    monkeypatch.setattr(views, "MAX_ROWS", 3)
    kept = views.important_rows("abcdef", lambda letter: (letter != "c", -ord(letter)))
    assert (kept, views.first_rows("abcd")) == (views.Table(tuple("cef"), 3), views.Table(tuple("abc"), 1))


def test_a_count_that_stopped_at_the_limit_has_a_plus_sign(viewer, store, beat):
    beat()
    create(store, 4, queue="many")
    create(store, 2, queue="few")
    with patch.object(views, "overview", lambda using: overview(using, count_to=3)):
        page = open_dashboard(viewer)
    assert [(row[0], row[2]) for row in page.table("queues")] == [("few", "2"), ("many", "3+")]
    assert (page.table("types")[0][1], page.figures()["due jobs"]) == ("5+", "5+")
    assert "A plus sign means" in page.section("queues").text


def test_the_page_shows_how_many_rows_are_omitted(viewer, store, beat, fail, monkeypatch):
    monkeypatch.setattr(views, "MAX_ROWS", 1)
    for number in range(3):
        beat(f"main:{number}:a")
        create(store, 1, queue=f"queue {number}")
        fail(f"shop.type_{number}")
    page = open_dashboard(viewer)
    for name, more in (("queues", 2), ("workers", 2), ("types", 3), ("failing", 2)):
        assert f"{more} more rows are not shown." in page.section(name).text
        assert len(page.table(name)) == 1
