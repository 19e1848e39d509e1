"""``status`` and ``queues``: workers, the backlog of queues, failing types; and the rules of queues."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.db import OperationalError, ProgrammingError

from django_jobchains import queues, testing
from django_jobchains.chains import enqueue
from django_jobchains.cli import status
from django_jobchains.models import QueueState
from django_jobchains.store import Store
from tests.commands.conftest import Run
from tests.commands.workers import worker
from tests.support.chains import attempt, failed, mail, pending, running
from tests.support.jobs import failed_try
from tests.support.pool_states import POOL
from tests.support.throughput import put_clock, tally

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock() -> Iterator[testing.Clock]:
    with testing.clock() as clock:
        yield clock


def row_of(out: str, name: str) -> list[str]:
    """Return the words of the row that starts with this name, with all ages as "0 s ago"."""
    [line] = [line for line in out.splitlines() if line.strip().startswith(f"{name} ")]
    return re.sub(r"\d+ s ago", "0 s ago", line).split()


def test_an_empty_database_has_messages(run: Run) -> None:
    done = run("status")
    assert done.code == 0
    assert "No workers are running: manage.py run_jobworker" in done.out
    assert "No jobs are waiting or running." in done.out
    assert "Failed" not in done.out


def test_workers_are_listed_with_their_activity(run: Run, store: Store) -> None:
    worker(store)
    worker(store, "idle:8:def", busy=0, queues=("mail", "bank"))
    worker(store, "late:9:fed", is_stopping=True)
    worker(store, "hung:9:fed", stuck=2)
    out = run("status").out
    assert " ".join(row_of(out, "mail:7:abc")) == "mail:7:abc 3 of 10 running 0 s ago 2 h all 2 0.1.0"
    assert " ".join(row_of(out, "idle:8:def")) == "idle:8:def 0 of 10 idle 0 s ago 2 h mail, bank 2 0.1.0"
    assert "stopping" in row_of(out, "late:9:fed")
    assert "! 2 slots of worker hung:9:fed are stuck: their handlers do not stop." in out


def test_a_silent_worker_is_stale_and_a_warning(run: Run, store: Store, clock: testing.Clock) -> None:
    worker(store)
    clock.advance(50)
    out = run("status").out
    assert "stale" in row_of(out, "mail:7:abc")
    assert re.search(r"! Worker mail:7:abc on host sent its last heartbeat 5\d s ago\.", out)


def test_queues_and_types_are_listed_with_their_jobs(run: Run, store: Store, clock: testing.Clock) -> None:
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


def test_a_type_without_a_worker_is_a_warning_unless_it_is_completed_by_hand(run: Run, store: Store) -> None:
    worker(store, type_names=("shop.charge",))
    enqueue("shop.plain")
    mail.enqueue()
    out = run("status").out
    assert "! No worker processes type shop.plain: 1 job has been due for 0 s." in out
    assert "No worker runs 'shop.mail'" not in out
    assert row_of(out, "shop.mail") == ["shop.mail", "0", "0", "0", "0", "0", "0", "1"]


def test_failing_types_are_listed_with_their_last_error(run: Run, store: Store) -> None:
    for text in ("first", "second"):
        store.attempts.fail([failed_try(attempt(store, pending(store)), error=f"Error: {text}\nmore")])
    out = run("status").out
    section = out[out.index("Failed in the last day") :]
    assert row_of(section, "shop.ship") == ["shop.ship", "2", "2", "0", "s", "ago", "Error:", "second"]
    assert "more" not in section


def test_the_throughput_of_the_last_minute_and_hour_is_shown(run: Run, store: Store, clock: testing.Clock) -> None:
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


def test_the_json_is_complete(run: Run, store: Store) -> None:
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
def test_lines_fit_the_terminal(run: Run, store: Store, width: int) -> None:
    worker(store, "a-very-long-name-of-a-host.example.com:12345:0123456789ab", queues=("one", "two", "three"))
    store.attempts.fail([failed_try(attempt(store, pending(store)), error="Error: " + "long " * 50)])
    pending(store)
    assert max(map(len, run("status", width=width).lines)) <= width


class TestQueues:
    def test_a_queue_is_paused_and_resumed(self, run: Run) -> None:
        assert run("pause", "mail", "bank", "mail").out == "mail, bank paused.\n"
        assert {state.name for state in queues.states()} == {"mail", "bank"}
        assert "paused" in row_of(run("queues").out, "mail")
        assert run("resume", "mail", "bank", "--format", "json").json == {"resumed": ["mail", "bank"]}
        assert queues.states() == []

    def test_a_limit_is_set_and_removed(self, run: Run) -> None:
        assert run("limit", "mail", "2").out == "mail: 2 slots of each worker.\n"
        assert QueueState.objects.get().slot_limit == 2
        assert run("queues", "--format", "json").json["queues"][0]["slot_limit"] == 2
        assert row_of(run("queues").out, "mail")[-7:-3] == ["2", "slots", "per", "worker"]
        assert run("limit", "mail", "none").out == "mail: no limit.\n"
        assert queues.states() == []

    def test_without_queues_there_is_a_message(self, run: Run) -> None:
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
    def test_an_invalid_argument_is_an_error_that_names_the_remedy(
        self, run: Run, words: list[str], message: str
    ) -> None:
        assert message in run(*words).error


@pytest.mark.parametrize(
    ("error", "has_hint"), [(ProgrammingError("no such table: x\nLINE 1"), True), (OperationalError("refused"), False)]
)
def test_a_database_error_is_one_line_with_a_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, has_hint: bool
) -> None:
    monkeypatch.setattr(status, "overview", lambda using: _raise(error))
    done = run("status")
    assert done.code == 1
    assert done.error.startswith(f"Database error: {str(error).splitlines()[0]}.")
    assert done.error.endswith("Has manage.py migrate been run?") == has_hint


def _raise(error: Exception) -> None:
    raise error


def test_pools_of_child_processes_are_listed(run: Run, store: Store) -> None:
    worker(store, pools=(POOL, replace(POOL, key="full", is_saturated=True)))
    done = run("status")
    rows = [line.split() for line in done.lines if " process " in line]
    assert rows[0][1:] == ["process", "images", "2", "of", "4", "1", "running", "120", "MB", "70", "MB", "1", "5", "3"]
    assert rows[1][7] == "saturated"
    assert run("status", "--format", "json").json["workers"][0]["pools"][0]["key"] == "images"
    assert "Child processes" in run("top", "--once").out


def test_a_pool_whose_processes_cannot_start_is_a_warning(run: Run, store: Store) -> None:
    worker(store, pools=(replace(POOL, cannot_start=True),))
    done = run("status")
    assert "cannot start" in done.out
    assert "! Worker mail:7:abc cannot start child processes for process 'images': see its log." in done.out


def test_a_pool_whose_jobs_run_in_threads_is_a_warning(run: Run, store: Store) -> None:
    worker(store, pools=(replace(POOL, is_weakened=True, is_saturated=True),))
    done = run("status")
    assert " in threads " in done.out
    assert "cannot start child processes for process 'images' and runs its jobs in threads: see its log." in done.out


def test_without_pools_their_table_is_omitted(run: Run, store: Store) -> None:
    worker(store)
    assert "Child processes" not in run("status").out
