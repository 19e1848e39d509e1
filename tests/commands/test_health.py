"""``health``: an exit code for alerts, and messages with the reasons."""

import pytest
from django.db import OperationalError, ProgrammingError

from django_jobchains import queues, testing
from django_jobchains.chains import enqueue
from django_jobchains.cli import health
from tests.commands.workers import worker
from tests.support.chains import mail

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock():
    with testing.clock() as clock:
        yield clock


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
    assert (done.code, done.error) == (1, "not healthy: 1 problem")
    assert done.out == "0 of 1 worker alive. Start manage.py run_jobworker.\n"
    assert run("health", "--min-workers", "0").code == 0
    worker(store)
    assert run("health", "--min-workers", "2").code == 1
    worker(store, "other:8:abc")
    assert run("health", "--min-workers", "2").code == 0
    clock.advance(60)
    assert "0 of 1 worker alive" in run("health").out


def test_a_job_that_is_due_for_too_long_is_a_problem(run, store, clock):
    enqueue("shop.plain")
    clock.advance(400)
    worker(store)
    done = run("health", "--max-age", "5m")
    assert done.code == 1
    assert done.out == "The oldest due job has been waiting for 6 min, more than 5 min.\n"
    assert run("health", "--max-age", "500").code == run("health").code == 0
    [problem] = run("health", "--max-age", "300", "--format", "json").json["problems"]
    assert problem["code"] == "age"


def test_a_backlog_is_a_problem(run, store):
    worker(store)
    for _ in range(3):
        enqueue("shop.plain")
    assert run("health", "--max-backlog", "3").code == 0
    done = run("health", "--max-backlog", "2", "--format", "json")
    assert (done.code, done.json["backlog"]) == (1, 3)
    assert done.json["problems"] == [{"code": "backlog", "text": "3 jobs due, more than 2."}]


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
    assert run(*words, "--queue", "bank").code == 0
    assert run(*words, "--queue", "other").code == 1


@pytest.mark.parametrize(
    "error", [OperationalError("connection refused\nIs the server running?"), ProgrammingError("no such table")]
)
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_database_error_is_a_problem_without_a_traceback(run, monkeypatch, error, form):
    def away(using: str, **options: object) -> None:
        raise error

    monkeypatch.setattr(health, "overview", away)
    done = run("health", "--format", form)
    assert (done.code, done.error) == (1, "not healthy: 1 problem")
    if form == "json":
        assert done.json["problems"][0]["code"] == "database"
        assert done.json["workers"] is done.json["backlog"] is None
    else:
        assert done.out.startswith(f"Database error: {str(error).splitlines()[0]}.")
        assert ("Has manage.py migrate been run?" in done.out) == ("table" in str(error))


def test_the_database_has_a_limited_time_to_respond(run, monkeypatch):
    import signal
    import time

    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(health, "overview", lambda using, **options: time.sleep(60))
    done = run("health", "--timeout", "0.2")
    assert (done.code, done.out) == (1, "The database did not answer: no answer in 0.2 seconds.\n")
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-age", "soon"], "'soon' is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        (["--max-age", "-1"], "'-1' must be a number of seconds from 0"),
        (["--max-backlog", "1.5"], "'1.5' must be an integer from 0"),
        (["--queue", ""], "is not a name"),
    ],
)
def test_an_invalid_argument_is_an_error_that_names_the_remedy(run, words, message):
    assert message in run("health", *words).error
