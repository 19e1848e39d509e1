"""``status`` and ``queues``: workers, the backlog of queues, failing types; and the rules of queues."""

import re
from dataclasses import replace

import pytest
from django.db import OperationalError, ProgrammingError

from django_jobchains import queues, testing
from django_jobchains.chains import enqueue
from django_jobchains.cli import status
from django_jobchains.models import QueueState
from tests.commands.workers import worker
from tests.support.chains import attempt, failed, mail, pending, running
from tests.support.jobs import failed_try
from tests.support.pool_states import POOL
from tests.support.throughput import put_clock, tally

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock():
    with testing.clock() as clock:
        yield clock


def row_of(out, name):
    """Return the words of the row that starts with this name, with all ages as "0 s ago"."""
    [line] = [line for line in out.splitlines() if line.strip().startswith(f"{name} ")]
    return re.sub(r"\d+ s ago", "0 s ago", line).split()


def test_an_empty_database_has_messages(run):
    done = run("status")
    assert done.code == 0
    assert "No workers are running: manage.py run_jobworker" in done.out
    assert "No jobs are waiting or running." in done.out
    assert "Failed" not in done.out


def test_workers_are_listed_with_their_activity(run, store):
    worker(store)
    worker(store, "idle:8:def", busy=0, queues=("mail", "bank"))
    worker(store, "late:9:fed", is_stopping=True)
    worker(store, "hung:9:fed", stuck=2)
    out = run("status").out
    assert " ".join(row_of(out, "mail:7:abc")) == "mail:7:abc 3 of 10 running 0 s ago 2 h all 2 0.1.0"
    assert " ".join(row_of(out, "idle:8:def")) == "idle:8:def 0 of 10 idle 0 s ago 2 h mail, bank 2 0.1.0"
    assert "stopping" in row_of(out, "late:9:fed")
    assert "! 2 slots of worker hung:9:fed are stuck: their handlers do not stop." in out


def test_a_silent_worker_is_stale_and_a_warning(run, store, clock):
    worker(store)
    clock.advance(50)
    out = run("status").out
    assert "stale" in row_of(out, "mail:7:abc")
    assert re.search(r"! Worker mail:7:abc on host sent its last heartbeat 5\d s ago\.", out)


def test_queues_and_types_are_listed_with_their_jobs(run, store, clock):
    running(store)
    enqueue("shop.charge", 1)
    clock.advance(200)
    worker(store)
    enqueue("shop.charge", 2)
    enqueue("shop.charge", 3, delay=600)
    mail.enqueue(queue="quiet", blockers=[enqueue("shop.plain")])
    out = run("status").out
    assert row_of(out, "bank") == ["bank", "3", "3", "min", "0", "open", "1", "0", "0"]
    assert row_of(out, "default") == ["default", "0", "1", "open", "0", "0", "0"]
    assert row_of(out, "quiet") == ["quiet", "0", "0", "open", "0", "1", "0"]
    assert row_of(out, "shop.charge") == ["shop.charge", "2", "3", "min", "0", "0", "1", "1", "0", "0"]


def test_failing_types_are_listed_with_their_last_error(run, store):
    for text in ("first", "second"):
        store.attempts.fail([failed_try(attempt(store, pending(store)), error=f"Error: {text}\nmore")])
    out = run("status").out
    section = out[out.index("Failed in the last day") :]
    assert row_of(section, "shop.ship") == ["shop.ship", "2", "2", "0", "s", "ago", "Error:", "second"]
    assert "more" not in section


def test_the_throughput_of_the_last_minute_and_hour_is_shown(run, store, clock):
    assert "Last minute: 0 completed, 0 failed · last hour: 0 completed, 0 failed" in run("status").lines
    put_clock(store, minute=30, second=30)
    store.stats.add_counts([tally(completed=1_200, failed=1, crashed=2, age_seconds=60), tally(age_seconds=600)])
    store.stats.add_counts([tally(age_seconds=7_200)])
    assert "Last minute: 1,200 completed, 3 failed · last hour: 1,201 completed, 3 failed" in run("status").lines
    shown = run("status", "--format", "json").json["throughput"]
    assert {name: (part["completed"], part["failed"]) for name, part in shown.items()} == {
        "last_minute": (1_200, 3),
        "last_hour": (1_201, 3),
        "last_day": (1_202, 3),
    }
    assert shown["last_minute"]["starts_at"].endswith(":29:00Z")


def test_the_json_is_complete(run, store):
    worker(store)
    failed(store)
    enqueue("shop.plain", queue="default")
    found = run("status", "--format", "json").json
    assert {"workers", "queues", "types", "failing", "database", "due", "warnings"} <= found.keys()
    assert found["workers"][0]["id"] == "mail:7:abc"
    assert found["workers"][0]["heartbeat_at"].endswith("Z")
    assert [(queue["name"], queue["due"]) for queue in found["queues"]] == [("default", 1)]
    assert found["failing"][0]["last_error"] == "Boom: no"


@pytest.mark.parametrize("width", [60, 100])
def test_lines_fit_the_terminal(run, store, width):
    worker(store, "a-very-long-name-of-a-host.example.com:12345:0123456789ab", queues=("one", "two", "three"))
    store.attempts.fail([failed_try(attempt(store, pending(store)), error="Error: " + "long " * 50)])
    pending(store)
    assert max(map(len, run("status", width=width).lines)) <= width


class TestQueues:
    def test_a_queue_is_paused_and_resumed(self, run):
        assert run("pause", "mail", "bank", "mail").out == "mail, bank paused.\n"
        assert {state.name for state in queues.states()} == {"mail", "bank"}
        assert "paused" in row_of(run("queues").out, "mail")
        assert run("resume", "mail", "bank", "--format", "json").json == {"resumed": ["mail", "bank"]}
        assert queues.states() == []

    def test_a_limit_is_set_and_removed(self, run):
        assert run("limit", "mail", "2").out == "mail: 2 slots of each worker.\n"
        assert QueueState.objects.get().slot_limit == 2
        assert run("queues", "--format", "json").json["queues"][0]["slot_limit"] == 2
        assert row_of(run("queues").out, "mail")[-7:-3] == ["2", "slots", "per", "worker"]
        assert run("limit", "mail", "none").out == "mail: no limit.\n"
        assert queues.states() == []

    def test_without_queues_there_is_a_message(self, run):
        assert run("queues").out == "No jobs are waiting or running, and no queue is paused or limited.\n"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["pause"], "required: QUEUE"),
            (["pause", ""], "is not a name: pass 1 to 100 printable characters"),
            (["resume", "x" * 101], "is not a name"),
            (["limit", "mail"], "required: N|none"),
            (["limit", "mail", "0"], "'0' must be an integer from 1"),
            (["limit", "mail", "many"], "'many' must be an integer from 1"),
        ],
    )
    def test_an_invalid_argument_is_an_error_that_names_the_remedy(self, run, words, message):
        assert message in run(*words).error


@pytest.mark.parametrize(
    ("error", "has_hint"), [(ProgrammingError("no such table: x\nLINE 1"), True), (OperationalError("refused"), False)]
)
def test_a_database_error_is_one_line_with_a_remedy(run, monkeypatch, error, has_hint):
    monkeypatch.setattr(status, "overview", lambda using: _raise(error))
    done = run("status")
    assert done.code == 1
    assert done.error.startswith(f"Database error: {str(error).splitlines()[0]}.")
    assert done.error.endswith("Has manage.py migrate been run?") == has_hint


def _raise(error):
    raise error


def test_pools_of_child_processes_are_listed(run, store):
    states = {"full": {"is_saturated": True}, "broken": {"cannot_start": True}, "weak": {"is_weakened": True}}
    worker(store, pools=(POOL, *(replace(POOL, key=key, **changes) for key, changes in states.items())))
    done = run("status")
    rows = [line.split() for line in done.lines if " process " in line and line.startswith("  ")]
    assert rows[0][1:] == ["process", "images", "2", "of", "4", "1", "running", "120", "MB", "70", "MB", "1", "5", "3"]
    assert [" ".join(row[7:-7]) for row in rows[1:]] == ["saturated", "cannot start", "in threads"]
    assert "! Worker mail:7:abc cannot start child processes for process 'broken': see its log." in done.lines
    assert run("status", "--format", "json").json["workers"][0]["pools"][0]["key"] == "images"
    assert "Child processes" in run("top", "--once").out


def test_without_pools_their_table_is_omitted(run, store):
    worker(store)
    assert "Child processes" not in run("status").out
