"""The alerts of the dashboard."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import Client

from django_jobchains import queues
from django_jobchains.admin.dashboard.alerts import find_alerts
from django_jobchains.models import FailedAttempt, Job, WorkerPresence
from django_jobchains.monitoring import overview
from django_jobchains.store import Store
from tests.admin.dashboard.browsing import open_dashboard
from tests.admin.dashboard.conftest import Beating, fail
from tests.support.jobs import MAIL, create, database_now, failed_try, running

pytestmark = pytest.mark.django_db


def due_since(minutes: float, **which: str) -> None:
    Job.objects.filter(**which).update(run_at=database_now() - timedelta(minutes=minutes))


def test_an_empty_system_shows_how_to_start(viewer: Client) -> None:
    page = open_dashboard(viewer)
    assert page.alerts() == []
    assert "No jobs have been enqueued yet" in page.section("alerts").text
    assert "manage.py run_jobworker" in page.section("alerts").text


def test_without_problems_there_are_no_alerts(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    create(store, 3)
    page = open_dashboard(viewer)
    assert page.alerts() == []
    assert "There are no alerts." in page.section("alerts").text


def test_due_jobs_without_any_worker_come_first(viewer: Client, store: Store) -> None:
    create(store, 2)
    due_since(90)
    page = open_dashboard(viewer)
    assert page.alerts() == ["Problem No worker is running. 2 jobs are due, the oldest for 90 min."]
    assert "Start a worker with manage.py run_jobworker" in page.section("alerts").text


def test_no_worker_is_an_alert_even_if_no_job_is_due(viewer: Client, store: Store) -> None:
    create(store, 1, delay_seconds=3600)
    assert open_dashboard(viewer).alerts() == ["Problem No worker is running."]


def test_a_type_without_a_worker_is_an_alert(viewer: Client, store: Store, beat: Beating) -> None:
    beat(type_names=(MAIL,))
    create(store, 1)
    create(store, 1, MAIL)
    due_since(3)
    assert open_dashboard(viewer).alerts() == [
        "Problem No worker processes type shop.ship: 1 job has been due for 3 min."
    ]


def test_a_queue_without_a_worker_is_an_alert(viewer: Client, store: Store, beat: Beating) -> None:
    beat(queues=("mail", "other"))
    beat("two:1:b", queues=("other",))
    create(store, 2, queue="reports")
    create(store, 2, queue="mail")
    due_since(20, queue="reports")
    assert open_dashboard(viewer).alerts() == [
        "Problem No worker processes queue reports: 2 jobs are due, the oldest for 20 min."
    ]


def test_a_worker_without_heartbeats_is_an_alert_and_processes_nothing(
    viewer: Client, store: Store, beat: Beating
) -> None:
    beat(stuck=2)
    WorkerPresence.objects.update(heartbeat_at=database_now() - timedelta(minutes=2, seconds=3))
    create(store, 1)
    no_worker, stale = open_dashboard(viewer).alerts()
    assert no_worker.startswith("Problem No worker is running. 1 job has been due")
    assert stale == "Problem Worker main:1:a on web-1 sent its last heartbeat 2 min ago."


def test_stuck_slots_are_an_alert(viewer: Client, beat: Beating) -> None:
    beat(stuck=1)
    beat("two:1:b", stuck=3)
    assert open_dashboard(viewer).alerts() == [
        "Problem 1 slot of worker main:1:a is stuck: its handler does not stop.",
        "Problem 3 slots of worker two:1:b are stuck: their handlers do not stop.",
    ]


def test_a_paused_queue_with_due_jobs_is_an_alert(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    queues.pause("mail", "empty")
    create(store, 2, queue="mail")
    due_since(240)
    assert open_dashboard(viewer).alerts() == ["Warning Queue mail is paused: 2 jobs are due, the oldest for 4 h."]


def test_a_queue_is_falling_behind_if_its_jobs_wait_although_workers_run(
    viewer: Client, store: Store, beat: Beating
) -> None:
    beat()
    create(store, 2, queue="mail")
    due_since(4)
    assert open_dashboard(viewer).alerts() == []
    due_since(6)
    assert open_dashboard(viewer).alerts() == [
        "Warning Queue mail is falling behind: 2 jobs are due, the oldest for 6 min."
    ]


def test_a_type_that_is_failing_is_an_alert(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    store.attempts.fail([failed_try(job) for job in running(store, 2)])
    FailedAttempt.objects.update(finished_at=database_now() - timedelta(minutes=5))
    assert open_dashboard(viewer).alerts() == [
        "Warning Type shop.ship is failing: 2 failed attempts in the last 24 hours, the last one 5 min ago."
    ]
    FailedAttempt.objects.update(finished_at=database_now() - timedelta(hours=2))
    assert open_dashboard(viewer).alerts() == []


def test_a_slow_database_is_an_alert(store: Store, beat: Beating) -> None:
    beat()
    found = overview()

    def texts(**changes: float) -> list[str]:
        usual = {"oldest_transaction_seconds": 1.0, "connections": 10, "max_connections": 100}
        database = replace(found.database, **{**usual, **changes})  # type: ignore[arg-type]
        return [alert.text for alert in find_alerts(replace(found, database=database))]

    assert texts() == texts(oldest_transaction_seconds=300, connections=90) == []
    [lag] = texts(oldest_transaction_seconds=720)
    assert lag == "A database transaction has been open for 12 min, which slows down the search for due jobs."
    assert texts(connections=97) == ["97 of the database's 100 connections are in use."]


@pytest.mark.parametrize(
    ("count", "rest"), [(3, []), (4, ["1 more paused queue has"]), (6, ["3 more paused queues have"])]
)
def test_many_similar_alerts_are_summarized(
    viewer: Client, store: Store, beat: Beating, count: int, rest: list[str]
) -> None:
    beat()
    for number in range(count):
        queues.pause(f"queue {number}")
        create(store, 1, queue=f"queue {number}")
    alerts = open_dashboard(viewer).alerts()
    assert [line.partition(":")[0] for line in alerts[:3]] == [
        f"Warning Queue queue {number} is paused" for number in (0, 1, 2)
    ]
    assert alerts[3:] == [f"Warning {text} due jobs." for text in rest]


def test_the_worst_alert_comes_first(viewer: Client, store: Store, beat: Beating) -> None:
    beat(type_names=(MAIL,), stuck=1)
    queues.pause("mail")
    create(store, 1, queue="mail")
    words = [line.split()[0] for line in open_dashboard(viewer).alerts()]
    assert words == sorted(words) == ["Problem", "Problem", "Warning"]


def test_each_alert_links_to_a_section_of_the_page(viewer: Client, store: Store, beat: Beating) -> None:
    beat(type_names=(MAIL,), stuck=1)
    queues.pause("mail")
    fail(store)
    create(store, 1, queue="mail")
    page = open_dashboard(viewer)
    targets = [link.attributes["href"] for link in page.section("alerts").all("a")]
    assert set(targets) == {"#jobchains-types", "#jobchains-workers", "#jobchains-queues", "#jobchains-failing"}
    assert all(page.root.all(id=target.removeprefix("#")) for target in targets)


def test_a_capped_count_has_a_plus_sign(store: Store, beat: Beating) -> None:
    create(store, 4)
    [alert] = find_alerts(overview(count_to=3))
    assert "running. 3+ jobs are due" in alert.text
