"""The problems that follow from the facts: their texts, their order, and what is summarized."""

from dataclasses import replace
from datetime import timedelta

import pytest

from django_jobchains import chains, queues
from django_jobchains.models import FailedAttempt, Job, Schedule, WorkerPresence
from django_jobchains.monitoring import RecordFacts, overview
from django_jobchains.monitoring.facts import troubled_schedules
from django_jobchains.monitoring.problems import about_jobs, find_problems, summarized
from tests.support.jobs import MAIL, SHIP, create, database_now, failed_try, running
from tests.support.pool_states import POOL
from tests.support.throughput import put_clock, tally
from tests.support.worker_rows import worker

pytestmark = pytest.mark.django_db


def beat(store, name="main:1:a", **changes):
    worker(store, name, **{"host": "web-1", "type_names": (SHIP, MAIL), **changes})


def due_since(minutes, **which):
    Job.objects.filter(**which).update(run_at=database_now() - timedelta(minutes=minutes, seconds=1))


def texts(**options):
    return [problem.text for problem in find_problems(overview(**options))]


def test_due_jobs_without_a_worker(store):
    assert texts() == []
    create(store, 1, delay_seconds=3600)
    assert texts() == ["No worker is running."]
    create(store, 2)
    due_since(90)
    assert texts() == ["No worker is running. 3 jobs are due, the oldest for 90 min."]
    assert texts(count_to=2) == ["No worker is running. 2+ jobs are due, the oldest for 90 min."]
    beat(store)
    due_since(0)
    assert texts() == []


def test_a_type_without_a_worker(store):
    beat(store, type_names=(MAIL,))
    create(store, 1)
    create(store, 1, MAIL)
    due_since(3)
    assert texts() == ["No worker processes type shop.ship: 1 job has been due for 3 min."]


def test_a_queue_without_a_worker(store):
    beat(store, queues=("mail", "other"))
    beat(store, "two:1:b", queues=("other",))
    create(store, 2, queue="reports")
    create(store, 2, queue="mail")
    due_since(20, queue="reports")
    assert texts() == ["No worker processes queue reports: 2 jobs are due, the oldest for 20 min."]


def test_a_worker_without_heartbeats_processes_nothing(store):
    beat(store, stuck=2, pools=(replace(POOL, cannot_start=True),))
    WorkerPresence.objects.update(heartbeat_at=database_now() - timedelta(minutes=2, seconds=3))
    create(store, 1)
    no_worker, stale = texts()
    assert no_worker.startswith("No worker is running. 1 job has been due")
    assert stale == "Worker main:1:a on web-1 sent its last heartbeat 2 min ago."


def test_a_worker_that_only_does_maintenance_processes_nothing(store):
    beat(store, slots=0, type_names=())
    create(store, 1, delay_seconds=3600)
    assert texts() == [], "workers that run jobs may be stopped while nothing is due"
    create(store, 1)
    assert texts()[0].startswith("No worker is running. 1 job has been due")
    beat(store, "two:1:b", queues=("other",))
    assert texts()[0].startswith("No worker processes queue default: 1 job has been due")


def test_stuck_slots_and_pools_without_child_processes(store):
    beat(store, stuck=1)
    pools = (POOL, replace(POOL, key="a", is_weakened=True), replace(POOL, key="b", cannot_start=True))
    beat(store, "two:1:b", stuck=3, pools=pools)
    assert texts() == [
        "1 slot of worker main:1:a is stuck: its handler does not stop.",
        "3 slots of worker two:1:b are stuck: their handlers do not stop.",
        "Worker two:1:b cannot start child processes for process 'b': see its log.",
        "Worker two:1:b cannot start child processes for process 'a' and runs its jobs in threads: see its log.",
    ]


def test_a_paused_queue_with_due_jobs(store):
    beat(store)
    queues.pause("mail", "empty")
    create(store, 2, queue="mail")
    due_since(240)
    assert texts() == ["Queue mail is paused: 2 jobs are due, the oldest for 4 h."]


def test_a_queue_is_falling_behind_if_its_jobs_wait_although_workers_run(store, settings):
    beat(store)
    create(store, 2, queue="mail")
    due_since(4)
    assert texts() == []
    due_since(6)
    assert texts() == ["Queue mail is falling behind: 2 jobs are due, the oldest for 6 min."]
    settings.JOBCHAINS = {"ALERT_DUE_SECONDS": 600}
    assert texts() == []


def test_jobs_that_failed_in_the_last_hour(store, settings):
    beat(store)
    first, second = running(store, 2)
    store.attempts.fail([failed_try(first)])
    assert texts() == ["1 job of type shop.ship failed in the last hour."]
    store.attempts.fail([failed_try(second)])
    assert texts() == ["2 jobs of type shop.ship failed in the last hour."]
    for most, count in ((3, 0), (2, 1), (None, 0)):
        settings.JOBCHAINS = {"ALERT_FAILED_JOBS": most}
        assert len(texts()) == count
    del settings.JOBCHAINS
    FailedAttempt.objects.update(finished_at=database_now() - timedelta(hours=1, seconds=1))
    assert texts() == []


def test_a_job_that_is_retried_or_was_cancelled_is_no_problem(store):
    beat(store)
    retried, cancelled = running(store, 2)
    store.attempts.reschedule([failed_try(job, delay_seconds=60) for job in (retried, cancelled)])
    chains.cancel(cancelled.chain_id)
    found = overview()
    assert [problem.text for problem in find_problems(found)] == []
    assert [(kind.attempts, kind.jobs, kind.failed_jobs) for kind in found.failing] == [(1, 1, 0)]


def test_a_type_of_which_too_many_attempts_fail(store, settings):
    """A failed job of the same type is not another problem."""
    put_clock(store, minute=20, second=1)
    beat(store)
    store.attempts.fail([failed_try(job) for job in running(store, 1)])
    store.stats.add_counts([tally(failed=12, completed=7), tally(failed=99, age_seconds=7_200)])
    failed_job = "1 job of type shop.ship failed in the last hour."
    assert texts() == [failed_job], "too few attempts"
    store.stats.add_counts([tally(completed=5, age_seconds=3_600)])
    failing = "Type shop.ship is failing: 12 of 24 attempts failed in the last 80 min."
    assert texts() == [failing]
    for changes, expected in (
        ({"ALERT_FAILURE_RATE": 0.51}, failed_job),
        ({"ALERT_FAILURE_RATE": None}, failed_job),
        ({"ALERT_MIN_ATTEMPTS": 25}, failed_job),
        ({"ALERT_MIN_ATTEMPTS": 24}, failing),
    ):
        settings.JOBCHAINS = changes
        assert texts() == [expected]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"oldest_transaction_seconds": 300.0, "connections": 90}, ""),
        (
            {"oldest_transaction_seconds": 720.0},
            "A database transaction has been open for 12 min, which slows down the search for due jobs.",
        ),
        ({"connections": 97}, "97 of the database's 100 connections are in use."),
    ],
)
def test_a_slow_database(store, changes, text):
    beat(store)
    found = overview()
    usual = {"oldest_transaction_seconds": 1.0, "connections": 10, "max_connections": 100}
    database = replace(found.database, **{**usual, **changes})
    assert [problem.text for problem in find_problems(replace(found, database=database))] == [text] * bool(text)


def test_records(store):
    def records(name, **changes):
        return replace(RecordFacts(name, "shop.Model", "default", 0, 0, 0, 0, 0, 0.0, 5), **changes)

    beat(store)
    kinds = (
        records(SHIP, due=2),
        records("a", due=5, oldest_seconds=180.0),
        records("b", problem="locked"),
        records("c", problem="missing"),
    )
    assert [problem.text for problem in find_problems(overview(), kinds)] == [
        "No worker processes a: 5+ records are due, the oldest for 3 min.",
        "The table of c does not exist or lacks columns. Run manage.py migrate.",
        "The table of b is locked by another transaction, so its records are not counted.",
    ]


def schedule(name, **changes):
    usual = {"type_name": SHIP, "every_seconds": 60, "timezone": "UTC", "overlap": "allow", "on_missed": "skip"}
    times = dict.fromkeys(("created_at", "anchor_at", "next_tick_at"), database_now())
    return Schedule.objects.create(name=name, max_catch_up=1, **{"source": "code", **usual, **times, **changes})


def of_schedules():
    return [problem.text for problem in find_problems(overview(), schedules=troubled_schedules(Schedule.objects.all()))]


def test_schedules_that_are_failing_or_orphaned(store):
    failed = {"last_error": "E: x", "last_error_at": database_now() - timedelta(minutes=5, seconds=1)}
    beat(store, schedules="new")
    schedule("active", declarations="new")
    schedule("failing", declarations="new", **failed)
    schedule("also", source="admin", **failed)
    schedule("orphan", declarations="old", **failed)
    schedule("paused", declarations="old", paused_at=database_now(), **failed)
    assert of_schedules() == [
        "Schedule also is failing: its tick could not be fired 5 min ago.",
        "Schedule failing is failing: its tick could not be fired 5 min ago.",
        "Schedule orphan is orphaned: no running worker declares it, so it does not fire.",
    ]


def test_without_a_worker_schedules_are_no_problem_of_their_own(store):
    schedule("orphan", declarations="old")
    assert of_schedules() == ["No worker is running."]


def test_the_worst_problem_comes_first(store):
    beat(store, type_names=(MAIL,), stuck=1)
    queues.pause("mail")
    create(store, 1, queue="mail")
    assert [problem.kind.is_error for problem in find_problems(overview())] == [True, True, False]


def test_problems_of_jobs_are_not_about_workers_and_the_database(store):
    beat(store, stuck=1, type_names=(MAIL,))
    create(store, 1)
    found = overview()
    assert [problem.kind.section for problem in about_jobs(find_problems(found))] == ["types"]
    [no_worker] = about_jobs(find_problems(replace(found, workers=())))
    assert (no_worker.kind.section, no_worker.text[:21]) == ("types", "No worker is running.")


def test_only_problems_of_the_given_queues_are_found(store):
    beat(store)
    queues.pause("mail", "other")
    for name in ("mail", "other"):
        create(store, 1, queue=name)
    found = overview()
    [problem] = find_problems(found, queues=[queue for queue in found.queues if queue.name == "mail"])
    assert problem.subject == "mail"


@pytest.mark.parametrize(
    ("count", "rest"),
    [(3, []), (4, ["1 more paused queue has due jobs."]), (6, ["3 more paused queues have due jobs."])],
)
def test_many_similar_problems_are_summarized(store, count, rest):
    beat(store)
    for number in range(count):
        queues.pause(f"queue {number}")
        create(store, 1, queue=f"queue {number}")
    shown = list(summarized(find_problems(overview()), 3))
    assert [problem.subject for problem in shown[:3]] == ["queue 0", "queue 1", "queue 2"]
    assert [problem.text for problem in shown[3:]] == rest
