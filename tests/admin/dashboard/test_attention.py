"""What needs a person stands first, in sentences."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import Client

from django_jobchains import queues
from django_jobchains.admin.attention import concerns
from django_jobchains.models import FailedAttempt, Job, WorkerPresence
from django_jobchains.overview import overview
from django_jobchains.store import Store
from tests.admin.dashboard.conftest import Beating, fail
from tests.admin.dashboard.looking import look
from tests.store.jobs import MAIL, create, database_now, failed_try, running

pytestmark = pytest.mark.django_db


def due_since(minutes: float, **which: str) -> None:
    Job.objects.filter(**which).update(run_at=database_now() - timedelta(minutes=minutes))


def test_of_an_empty_system_it_says_how_to_begin(viewer: Client) -> None:
    page = look(viewer)
    assert page.concerns() == []
    assert "No job was enqueued yet" in page.section("attention").text
    assert "manage.py run_jobworker" in page.section("attention").text


def test_when_all_is_well_it_says_so(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    create(store, 3)
    page = look(viewer)
    assert page.concerns() == []
    assert "Nothing needs attention." in page.section("attention").text


def test_due_jobs_without_any_worker_come_first(viewer: Client, store: Store) -> None:
    create(store, 2)
    due_since(90)
    page = look(viewer)
    assert page.concerns() == ["Problem No worker is running, and 2 jobs are due, the oldest for 90 min."]
    assert "Start a worker with manage.py run_jobworker" in page.section("attention").text


def test_no_worker_is_told_of_too_when_no_job_is_due(viewer: Client, store: Store) -> None:
    create(store, 1, delay_seconds=3600)
    assert look(viewer).concerns() == ["Problem No worker is running."]


def test_a_type_that_no_worker_serves_is_told_of(viewer: Client, store: Store, beat: Beating) -> None:
    beat(type_names=(MAIL,))
    create(store, 1)
    create(store, 1, MAIL)
    due_since(3)
    assert look(viewer).concerns() == ["Problem No worker serves type shop.ship: 1 job is due, for 3 min."]


def test_a_queue_that_no_worker_serves_is_told_of(viewer: Client, store: Store, beat: Beating) -> None:
    beat(queues=("mail", "other"))
    beat("two:1:b", queues=("other",))
    create(store, 2, queue="reports")
    create(store, 2, queue="mail")
    due_since(20, queue="reports")
    assert look(viewer).concerns() == ["Problem No worker serves queue reports: 2 jobs are due, the oldest for 20 min."]


def test_a_worker_that_is_not_heard_of_is_told_of_and_serves_nothing(
    viewer: Client, store: Store, beat: Beating
) -> None:
    beat(stuck=2)
    WorkerPresence.objects.update(heartbeat_at=database_now() - timedelta(minutes=2, seconds=3))
    create(store, 1)
    no_worker, stale = look(viewer).concerns()
    assert no_worker.startswith("Problem No worker is running, and 1 job is due")
    assert stale == "Problem Worker main:1:a on web-1 was last heard of 2 min ago."


def test_stuck_slots_are_told_of(viewer: Client, beat: Beating) -> None:
    beat(stuck=1)
    beat("two:1:b", stuck=3)
    assert look(viewer).concerns() == [
        "Problem 1 slot of worker main:1:a is stuck: its handler does not stop.",
        "Problem 3 slots of worker two:1:b are stuck: their handlers do not stop.",
    ]


def test_a_paused_queue_is_told_of_when_jobs_wait_in_it(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    queues.pause("mail", "empty")
    create(store, 2, queue="mail")
    due_since(240)
    assert look(viewer).concerns() == ["Warning Queue mail is paused: 2 jobs are due, the oldest for 4 h."]


def test_a_queue_is_late_when_its_jobs_wait_although_workers_run(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    create(store, 2, queue="mail")
    due_since(4)
    assert look(viewer).concerns() == []
    due_since(6)
    assert look(viewer).concerns() == ["Warning Queue mail is late: 2 jobs are due, the oldest for 6 min."]


def test_a_type_that_fails_now_is_told_of(viewer: Client, store: Store, beat: Beating) -> None:
    beat()
    store.fail([failed_try(job) for job in running(store, 2)])
    FailedAttempt.objects.update(finished_at=database_now() - timedelta(minutes=5))
    assert look(viewer).concerns() == ["Warning Type shop.ship fails: 2 attempts in the last day, the last 5 min ago."]
    FailedAttempt.objects.update(finished_at=database_now() - timedelta(hours=2))
    assert look(viewer).concerns() == []


def test_the_database_is_told_of_when_it_lags(store: Store, beat: Beating) -> None:
    beat()
    found = overview()

    def told(**facts: float) -> list[str]:
        quiet = {"oldest_transaction_seconds": 1.0, "connections": 10, "most_connections": 100}
        database = replace(found.database, **{**quiet, **facts})  # type: ignore[arg-type]
        return [concern.text for concern in concerns(replace(found, database=database))]

    assert told() == told(oldest_transaction_seconds=300, connections=90) == []
    [lag] = told(oldest_transaction_seconds=720)
    assert lag == "A transaction of the database is open for 12 min: looking for due jobs becomes slow."
    assert told(connections=97) == ["97 of the database's 100 connections are in use."]


@pytest.mark.parametrize(
    ("count", "rest"), [(3, []), (4, ["1 more paused queue has"]), (6, ["3 more paused queues have"])]
)
def test_of_many_alike_it_tells_a_few_and_how_many_more(
    viewer: Client, store: Store, beat: Beating, count: int, rest: list[str]
) -> None:
    beat()
    for number in range(count):
        queues.pause(f"queue {number}")
        create(store, 1, queue=f"queue {number}")
    told = look(viewer).concerns()
    assert [line.partition(":")[0] for line in told[:3]] == [
        f"Warning Queue queue {number} is paused" for number in (0, 1, 2)
    ]
    assert told[3:] == [f"Warning {text} due jobs." for text in rest]


def test_the_worst_comes_first(viewer: Client, store: Store, beat: Beating) -> None:
    beat(type_names=(MAIL,), stuck=1)
    queues.pause("mail")
    create(store, 1, queue="mail")
    words = [line.split()[0] for line in look(viewer).concerns()]
    assert words == sorted(words) == ["Problem", "Problem", "Warning"]


def test_each_sentence_leads_to_a_section_of_the_page(viewer: Client, store: Store, beat: Beating) -> None:
    beat(type_names=(MAIL,), stuck=1)
    queues.pause("mail")
    fail(store)
    create(store, 1, queue="mail")
    page = look(viewer)
    targets = [link.attributes["href"] for link in page.section("attention").all("a")]
    assert set(targets) == {"#jobchains-types", "#jobchains-workers", "#jobchains-queues", "#jobchains-failing"}
    assert all(page.root.all(id=target.removeprefix("#")) for target in targets)


def test_more_than_is_counted_has_a_plus(store: Store, beat: Beating) -> None:
    create(store, 4)
    [concern] = concerns(overview(count_to=3))
    assert "and 3+ jobs are due" in concern.text
