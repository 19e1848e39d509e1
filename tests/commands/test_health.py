"""``health``: an exit code for alerts, and messages with the reasons."""

import signal
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from django_jobchains import queues, schedules
from django_jobchains.chains import enqueue
from django_jobchains.cli import health
from django_jobchains.models import Schedule
from django_jobchains.processors import Processors
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.support.chains import mail
from tests.support.jobs import SHIP, create, database_now, failed_try, running
from tests.support.worker_rows import worker

pytestmark = pytest.mark.django_db


def test_with_a_worker_and_an_empty_backlog_it_is_healthy(run, store):
    worker(store)
    done = run("health", "--max-age", "5m", "--max-backlog", "0")
    assert (done.code, done.out) == (0, "Healthy: 1 worker, 0 jobs due.\n")
    assert run("health", "--format", "json").json == {
        "healthy": True,
        "problems": [],
        "workers": 1,
        "backlog": 0,
        "oldest_due_age_seconds": 0,
        "paused": [],
    }


def test_too_few_workers_are_a_problem(run, store, clock):
    done = run("health")
    assert (done.code, done.error) == (1, "Not healthy: 1 problem.")
    assert done.out == "0 of 1 worker alive. Start manage.py run_jobworker.\n"
    assert run("health", "--min-workers", "0").code == 0
    worker(store)
    assert run("health", "--min-workers", "2").code == 1
    worker(store, "other:8:abc")
    assert run("health", "--min-workers", "2").code == 0
    clock.advance(60)
    assert "0 of 1 worker alive" in run("health").out


def test_a_backlog_and_a_job_that_is_due_for_too_long_are_problems(run, store, clock):
    for _ in range(3):
        enqueue("shop.plain")
    clock.advance(400)
    worker(store)
    for words in ("", "--max-age 500", "--max-backlog 3"):
        assert run("health", *words.split()).code == 0
    done = run("health", "--max-age", "5m", "--max-backlog", "2")
    texts = ["The oldest due job has been waiting for 6 min, more than 5 min.", "3 jobs due, more than 2."]
    assert (done.code, done.lines) == (1, texts)
    found = run("health", "--max-age", "300", "--max-backlog", "2", "--format", "json").json
    assert [tuple(problem.values()) for problem in found["problems"]] == [("age", texts[0]), ("backlog", texts[1])]
    assert found["backlog"] == 3


def test_only_due_jobs_that_a_worker_would_run_are_counted(run, store, clock):
    worker(store)
    enqueue("shop.plain", delay=10_000)
    enqueue("shop.plain", queue="held")
    queues.pause("held")
    words = ("health", "--max-age", "0.001", "--max-backlog", "0", "--min-workers", "0")
    clock.advance(100)
    assert run(*words).code == 0
    assert run(*words, "--format", "json").json["paused"] == ["held"]
    mail.enqueue()  # completed by hand
    assert run(*words).code == 0
    enqueue("shop.plain", queue="other")
    assert (run(*words, "--queue", "bank").code, run(*words, "--queue", "other").code) == (0, 1)


def test_due_records_count_as_due_jobs_do(run, store, clock, registry):
    registry.add(part := Processors(queue="files"))
    part.records(Upload, retry_after=60)(lambda record, run: None)
    part.records(Letter, columns=LETTER_COLUMNS)(lambda record, run: None)
    Upload.objects.create()
    Upload.objects.create(process_after=store.stats.time_ago(-3600))
    # Letters are not tried again, and uploads after a minute.
    Upload.objects.create(state="errored", finished_at=store.stats.time_ago(0))
    Letter._base_manager.create(status="errored", ended=store.stats.time_ago(100))
    clock.advance(200)
    enqueue("shop.plain")
    worker(store)
    healthy = run("health", "--max-age", "5m", "--max-backlog", "3")
    assert healthy.out == "Healthy: 1 worker, 1 job and 2 records due.\n"
    done = run("health", "--max-age", "2m", "--max-backlog", "2", "--format", "json")
    assert [problem["text"] for problem in done.json["problems"]] == [
        "The oldest due record of 'records.upload' has been waiting for 3 min, more than 2 min.",
        "1 job and 2 records due, more than 2.",
    ]
    assert (done.code, done.json["backlog"], 200 <= done.json["oldest_due_age_seconds"] < 240) == (1, 3, True)
    words = ("health", "--max-backlog", "1")
    assert (run(*words, "--queue", "bank").code, run(*words, "--queue", "files").code) == (0, 1)
    queues.pause("files")
    assert run(*words).code == 0


def test_a_database_error_is_a_problem_without_a_traceback(run, monkeypatch):
    error = OperationalError("refused\nIs it running?")

    def away(using, **options):
        raise error

    monkeypatch.setattr(health, "overview", away)
    done = run("health")
    assert (done.code, done.error) == (1, "Not healthy: 1 problem.")
    assert done.out == "Database error: refused.\n"
    found = run("health", "--format", "json").json
    assert (found["problems"][0]["code"], found["workers"], found["backlog"]) == ("database", None, None)


def test_the_database_has_a_limited_time_to_respond(run, monkeypatch):
    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(health, "overview", lambda using, **options: time.sleep(60))
    done = run("health", "--timeout", "0.2")
    assert (done.code, done.out) == (1, "The database did not answer: no answer in 0.2 seconds.\n")
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_system_without_alarms_has_no_time_limit(run, store, monkeypatch):
    monkeypatch.setattr(health, "signal", SimpleNamespace())  # Windows has no SIGALRM.
    worker(store)
    assert run("health").code == 0


def test_schedules_that_are_failing_are_problems_and_status_also_reports_orphaned_ones(run, store, registry):
    schedules.create("broken", mail, every=60)
    schedules.create("orphan", mail, every=60)
    Schedule.objects.filter(pk="broken").update(last_error="E: x", last_error_at=database_now() - timedelta(hours=3))
    Schedule.objects.filter(pk="orphan").update(source="code", declarations="old")
    texts = [
        "Schedule broken is failing: its tick could not be fired 3 h ago.",
        "Schedule orphan is orphaned: no running worker declares it, so it does not fire.",
    ]
    assert run("health").lines == ["0 of 1 worker alive. Start manage.py run_jobworker."]
    worker(store)
    done = run("health")
    assert (done.code, done.lines) == (1, texts[:1])
    assert {problem["code"] for problem in run("health", "--format", "json").json["problems"]} == {"schedules"}
    assert [line for line in run("status").lines if line.startswith("! ")] == [f"! {text}" for text in texts]
    assert run("health", "--queue", "default").code == 0
    schedules.pause("broken")
    assert run("health").code == 0


def test_with_alerts_everything_that_status_warns_of_is_a_problem(run, store):
    worker(store, type_names=(SHIP,))
    store.attempts.fail([failed_try(job) for job in running(store, 1)])
    queues.pause("mail")
    create(store, 1, queue="mail")
    assert run("health").code == 0
    done = run("health", "--alerts")
    warnings = [line.removeprefix("! ") for line in run("status").lines if line.startswith("! ")]
    assert (done.code, done.lines) == (1, warnings)
    assert len(warnings) == 2
    found = run("health", "--alerts", "--format", "json").json["problems"]
    assert [problem["code"] for problem in found] == ["alert"] * 2
