"""``status``, ``top`` and ``queues`` show the facts that ``tests/monitoring`` tests. Queues are paused and limited."""

import io
import re
import sqlite3
import sys
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, ProgrammingError, connection

from django_jobchains import queues, schedules
from django_jobchains.chains import enqueue
from django_jobchains.cli import status, top
from django_jobchains.models import Job, QueueState
from django_jobchains.processors import Processors
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.support.chains import attempt, mail, pending, running
from tests.support.jobs import failed_try
from tests.support.pool_states import POOL
from tests.support.throughput import put_clock, tally
from tests.support.worker_rows import worker

pytestmark = pytest.mark.django_db

EACH = pytest.mark.parametrize("command", ["status", "top --once"])


@pytest.fixture
def _records(registry):
    registry.add(part := Processors(queue="files"))
    part.records(Upload, retry_after=60, max_attempts=3)(lambda record, run: None)
    part.records(Letter, columns=LETTER_COLUMNS)(lambda record, run: None)


@pytest.fixture
def _facts(store, clock, _records):
    """Rows for each section of the output."""
    running(store)
    enqueue("shop.charge", 1)
    for state in ("queued", "processing", "failed", "failed"):
        Upload.objects.create(state=state, queued_at=store.stats.time_ago(0) + timedelta(seconds=20))
    clock.advance(200)
    worker(store)
    worker(store, "idle:8:def", busy=0, queues=("mail", "bank"))
    worker(store, "late:9:fed", is_stopping=True)
    worker(store, "hung:9:fed", stuck=2)
    states = {"full": {"is_saturated": True}, "broken": {"cannot_start": True}, "weak": {"is_weakened": True}}
    pools = (POOL, *(replace(POOL, key=key, **changes) for key, changes in states.items()))
    worker(store, "pool:9:fed", pools=pools)
    enqueue("shop.charge", 2)
    enqueue("shop.charge", 3, delay=600)
    mail.enqueue(queue="quiet", blockers=[enqueue("shop.plain", queue="other")])
    for text in ("first", "second"):
        store.attempts.fail([failed_try(attempt(store, pending(store)), error=f"Error: {text}\nmore")])


#: In the output of ``status`` and ``top``.
ROWS = {
    "mail:7:abc 3 of 10 running 0 s ago 2 h all 2 0.1.0",
    "idle:8:def 0 of 10 idle 0 s ago 2 h mail, bank 2 0.1.0",
    "late:9:fed 3 of 10 stopping 0 s ago 2 h all 2 0.1.0",
    "hung:9:fed 3 of 10 stuck (2) 0 s ago 2 h all 2 0.1.0",
    "pool:9:fed process images 2 of 4 1 running 120 MB 70 MB 1 5 3",
    "pool:9:fed process full 2 of 4 1 saturated 120 MB 70 MB 1 5 3",
    "pool:9:fed process broken 2 of 4 1 cannot start 120 MB 70 MB 1 5 3",
    "pool:9:fed process weak 2 of 4 1 in threads 120 MB 70 MB 1 5 3",
    "bank 2 3 min 0 open 1 0 0",
    "default 0 1 open 0 0 0",
    "quiet 0 0 open 0 1 0",
    "RECORDS MODEL WAITING OLDEST PROCESSING ERRORED FAILED QUEUE",
    "records.upload records.Upload 1 3 min 1 0 2 files",
    "shop.ship 2 2 0 s ago Error: second 2",
}
#: Only in one of them.
OTHER_ROWS = {
    "status": {
        "shop.charge 2 3 min 0 0 5 1 0 0",
        "! 2 slots of worker hung:9:fed are stuck: their handlers do not stop.",
        "! Worker pool:9:fed cannot start child processes for process 'broken': see its log.",
    },
    "top --once": {"5 workers · 12 of 50 slots busy · 3 jobs due · TIME"},
}


@EACH
@pytest.mark.usefixtures("_facts")
def test_each_section_shows_its_facts(run, command):
    done = run(*command.split())
    text = re.sub(r"\d+:\d+:\d+$", "TIME", re.sub(r"\b\d+ s ago", "0 s ago", done.out), flags=re.MULTILINE)
    found = {" ".join(line.split()) for line in text.splitlines()}
    assert (ROWS | OTHER_ROWS[command]) - found == set()
    assert {"Workers", "Child processes", "Queues", "Records", "Failed attempts in the last day"} - found == set()
    [job] = Job.objects.with_status("running")
    assert any(line.endswith(f"1 worker-1 {job.id}") for line in found) == (command != "status")


@EACH
@pytest.mark.usefixtures("_facts")
def test_the_json_has_the_same_facts(run, command):
    found = run(*command.split(), "--format", "json").json
    facts = found.get("overview", found)
    assert {"workers", "queues", "types", "failing", "database"} <= facts.keys()
    assert [each["due"] for each in facts["queues"] if each["name"] == "bank"] == [2]
    assert facts["failing"][0]["last_error"] == "Error: second"
    letters, uploads = found["records"]
    assert (uploads["queued"], uploads["processing"], uploads["failed"], letters["queued"]) == (1, 1, 2, 0)
    assert found["throughput"].keys() == {"last_minute", "last_hour", "last_day"}
    assert all(each["heartbeat_at"].endswith("Z") for each in facts["workers"])
    if command == "status":
        assert (found["due"], len(found["warnings"])) == (3, 5)


def test_an_empty_database_has_messages_and_no_empty_tables(run):
    done = run("status")
    assert done.code == 0
    assert "No workers are running. Start one with manage.py run_jobworker." in done.out
    assert "No jobs are waiting or running." in done.out
    assert not {"Child processes", "Failed in the last day", "Types"} & set(done.lines)
    assert run("queues").out == "No jobs are waiting or running, and no queue is paused or limited.\n"


def test_a_silent_worker_is_stale_and_a_warning(run, store, clock):
    worker(store)
    clock.advance(50)
    assert re.search(r"mail:7:abc +3 of 10 +stale +5\d s ago", out := run("status").out)
    assert re.search(r"! Worker mail:7:abc on host sent its last heartbeat 5\d s ago\.", out)


@EACH
def test_the_throughput_of_the_last_minute_and_hour_is_shown(run, store, clock, command):
    put_clock(store, minute=30, second=30)
    counts = {"completed": 1_200, "failed": 1, "crashed": 2, "jobs_failed": 2}
    store.stats.add_counts([tally(age_seconds=60, **counts), tally(age_seconds=600)])
    totals = "completed, 2 failed (3 failed attempts)"
    line = f"Last minute: 1,200 jobs {totals} · last hour: 1,201 jobs {totals}"
    assert line in run(*command.split()).lines
    last_hour = run(*command.split(), "--format", "json").json["throughput"]["last_hour"]
    assert (last_hour["completed"], last_hour["failed"]) == (1_201, 3)


@pytest.mark.parametrize("change", ["TABLE records_letter RENAME TO x", "TABLE records_letter RENAME ended TO x"])
@pytest.mark.usefixtures("_records")
def test_a_table_that_is_not_migrated_is_a_problem_and_hides_no_other(run, store, change):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER {change}")
    worker(store)
    problem = "The table of records.letter does not exist or lacks columns. Run manage.py migrate."
    for command in ("status", "top --once"):
        done = run(*command.split())
        assert "records.upload  records.Upload" in done.out
        assert "records.letter  records" not in done.out
        assert (problem in done.out) == (command == "status")
        letters, uploads = run(*command.split(), "--format", "json").json["records"]
        assert (letters["problem"], uploads["problem"]) == ("missing", "")
    health = run("health", "--format", "json")
    assert (health.code, health.json["problems"]) == (1, [{"code": "records", "text": problem}])


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("command", ["status", "types"])
def test_lines_fit_the_terminal(run, store, command, width):
    worker(store, "a-very-long-name-of-a-host.example.com:12345:0123456789ab", queues=("one", "two", "three"))
    store.attempts.fail([failed_try(attempt(store, pending(store)), error="Error: " + "long " * 50)])
    pending(store)
    assert max(map(len, run(command, width=width).lines)) <= width


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (sqlite3.OperationalError("no such table: x\nLINE 1"), "Has manage.py migrate been run?"),
        (psycopg.errors.UndefinedColumn("no x"), "Has manage.py migrate been run?"),
        (psycopg.errors.InsufficientPrivilege("denied"), "Grant the privilege to the database user of this command."),
        (psycopg.errors.SyntaxError("near x"), "near x."),
    ],
)
def test_a_database_error_is_one_line_with_a_remedy(run, monkeypatch, cause, remedy):
    error = ProgrammingError(*cause.args)

    def overview(using):
        raise error from cause

    monkeypatch.setattr(status, "overview", overview)
    done = run("status")
    assert done.code == 1
    assert done.error.startswith(f"Database error: {str(error).splitlines()[0]}.")
    assert done.error.endswith(remedy)


# Queues


def test_a_queue_is_paused_and_resumed(run):
    assert run("pause", "mail", "bank", "mail").out == "mail, bank paused.\n"
    assert {state.name for state in queues.states()} == {"mail", "bank"}
    assert re.search(r"mail .* paused ", run("queues").out)
    assert run("resume", "mail", "bank", "--format", "json").json == {"resumed": ["mail", "bank"]}
    assert queues.states() == []


@pytest.mark.parametrize("words", [["pause", "post", "psot"], ["resume", "psot"], ["limit", "psot", "5"]])
def test_a_queue_that_nothing_uses_is_changed_with_a_warning(run, words):
    done = run(*words)
    assert (done.code, bool(done.out)) == (0, True)
    assert done.notes == ("No jobs are in the queue 'psot', and no worker or job type names it. Did you mean 'post'?\n")


def test_there_is_no_warning_about_a_queue_with_jobs_or_a_worker(run, store):
    enqueue("shop.plain", queue="nightly")
    worker(store, queues=("mail",))
    assert run("pause", "nightly", "mail", "post", "default").notes == ""


def test_a_limit_is_set_and_removed(run):
    assert run("limit", "mail", "2").out == "mail: at most 2 at once.\n"
    assert QueueState.objects.get().slot_limit == 2
    assert run("queues", "--format", "json").json["queues"][0]["slot_limit"] == 2
    assert "  at most 2 at once  " in run("queues").out
    assert run("limit", "mail", "none").out == "mail: no limit.\n"
    assert queues.states() == []


@pytest.mark.parametrize(("name", "shown"), [("token-mails", "token-mails"), ("password=hunter2", "password=********")])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("limit {} 2", "{}: at most 2 at once."),
        ("limits set --queue {} --concurrency 2", "queue {}: concurrency 2."),
        ("limits reset --queue {}", "queue {}: reset."),
        ("schedules show {}", "{}: {}"),
        ("status", "! No worker processes type {}: 1 job has been due for 2 min."),
        ("health --alerts", "No worker processes type {}: 1 job has been due for 2 min."),
    ],
)
def test_a_name_with_a_sensitive_word_does_not_mask_the_sentence_about_it(
    run, store, registry, clock, name, shown, words, line
):
    registry.add(part := Processors())
    job_type = part.register(name)(lambda job: None)
    schedules.create(name, job_type, every=300)
    job_type.enqueue(queue=name)
    clock.advance(125)
    worker(store)
    done, line = run(*words.format(name).split()), line.format(*[shown] * 2)
    assert line in done.lines
    if words in ("status", "health --alerts"):
        found = run(*words.split(), "--format", "json").json
        texts = found.get("warnings") or [problem["text"] for problem in found["problems"]]
        assert line.removeprefix("! ") in texts


# Top


@pytest.fixture
def stops_after(monkeypatch):
    """Return a function that makes Ctrl-C arrive after this many snapshots."""

    def stops_after(count):
        left = iter(range(count - 1))

        def sleep(seconds):
            if next(left, None) is None:
                raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", sleep)

    return stops_after


def test_running_jobs_are_limited_to_the_longest(run, store):
    made = [running(store) for _ in range(25)]
    oldest = Job.objects.get(pk=made[-1].id)
    Job.objects.filter(pk=oldest.pk).update(last_attempt_at=oldest.created_at.replace(year=2020))
    found = run("top", "--once", "--format", "json").json
    seconds = [job["running_seconds"] for job in found["running"]]
    assert (len(seconds), found["running"][0]["id"]) == (top.MAX_SHOWN, str(oldest.id))
    assert seconds == sorted(seconds, reverse=True)
    assert min(seconds) >= 0
    assert found["overview"]["queues"][0]["running"] == 25


def test_without_a_terminal_snapshots_are_appended_until_ctrl_c(run, stops_after):
    stops_after(3)
    done = run("top")
    assert (done.code, done.out.count("0 workers"), "\x1b" in done.out) == (0, 3, False)


def test_without_rich_snapshots_are_appended_on_a_terminal_too(stops_after, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setitem(sys.modules, "rich.live", None)
    stops_after(2)
    call_command("jobchains", "top", stdout=(out := Terminal()), no_color=True)
    assert (out.getvalue().count("0 workers"), "\x1b" in out.getvalue()) == (2, False)


def test_a_database_error_is_shown_and_top_continues(run, stops_after, monkeypatch):
    real, errors = top.snapshot, [OperationalError("the server went away\nmore")]

    def snapshot(using):
        if errors:
            raise errors.pop()
        return real(using)

    monkeypatch.setattr(top, "snapshot", snapshot)
    monkeypatch.setattr("django.db.backends.base.base.BaseDatabaseWrapper.close", lambda self: None)
    stops_after(2)
    done = run("top")
    assert (done.notes, done.out.count("0 workers")) == ("Database error: the server went away. Trying again.\n", 1)
