"""When the supervisor restarts a worker process, when it gives up, and what it reports."""

import os
import signal
import sys

import pytest

from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import (
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    ProcessStarted,
    SupervisorGaveUp,
)
from django_jobchains.worker import supervised_process
from django_jobchains.worker.supervised_process import VARIABLE, Restarts, failed_to_start
from django_jobchains.worker.supervisor import Supervisor


def test_restart_delay_grows_until_a_process_has_run_for_a_while():
    restarts = Restarts()
    waits = [restarts.ended(1, lived_seconds=2, failed_to_start=False) for _ in range(6)]
    assert waits == [0.5, 1, 2, 4, 5, 5]
    assert restarts.ended(2, lived_seconds=2, failed_to_start=False) == 0.5
    assert restarts.ended(1, lived_seconds=20, failed_to_start=False) == 0
    assert restarts.ended(1, lived_seconds=2, failed_to_start=False) == 0.5


def test_supervisor_gives_up_if_every_process_repeatedly_fails_to_start():
    restarts = Restarts()

    def end(*numbers, failed_to_start=True):
        for number in numbers:
            restarts.ended(number, lived_seconds=1, failed_to_start=failed_to_start)
        return restarts.has_none_that_starts({1, 2})

    assert not end(1, 1, 1, 1, 1, 2, 2, 2, 2)
    assert not end(2, failed_to_start=False)
    assert not end(2, 2, 2, 2)
    assert end(2)
    assert not restarts.has_none_that_starts({1, 2, 3})


@pytest.mark.parametrize(
    ("code", "has_begun", "failed"),
    [
        (1, False, True),
        (-signal.SIGSEGV, False, True),
        (-signal.SIGKILL, False, False),
        (-signal.SIGTERM, False, False),
        (0, False, False),
        (1, True, False),
    ],
)
def test_failed_starts_exclude_kills_and_later_errors(code, has_begun, failed):
    assert failed_to_start(code, has_begun=has_begun) is failed


# The events of a supervisor. Its processes run ``python -c`` with these programs instead of a worker.

FAILS, WAITS = "raise SystemExit(3)", "import time; time.sleep(60)"
WAIT_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16]


@pytest.fixture
def run(monkeypatch):
    def run(program):
        """Run a supervisor of one process until it ends."""
        monkeypatch.setattr(supervised_process, "FIRST_WAIT_SECONDS", WAIT_SECONDS[0])
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", program])
        supervisor = Supervisor(1, name="mail", shutdown_seconds=5)
        supervisor.run()
        return supervisor

    return run


def test_a_process_that_cannot_begin_is_reported_each_time_and_then_the_supervisor_gives_up(events, run):
    supervisor = run(FAILS)
    started, ended = events.of(ProcessStarted), events.of(ProcessEnded)
    assert [(event.worker, event.number, event.reason) for event in started] == [(supervisor.id, 1, "")] * 5
    assert [(event.pid, event.code) for event in ended] == [(event.pid, 3) for event in started]
    assert [event.restart_seconds for event in ended] == WAIT_SECONDS
    [gave_up] = events.of(SupervisorGaveUp)
    assert gave_up.reason.startswith("no worker process could start, 5 times in a row;")


def test_a_supervisor_that_gives_up_starts_nothing_more(events, run, monkeypatch):
    monkeypatch.setattr(supervised_process, "MIN_LIFETIME_SECONDS", 0)  # each process may be restarted at once
    run(FAILS)
    assert [type(event) for event in events.all] == [ProcessStarted, ProcessEnded] * 5 + [SupervisorGaveUp]


def test_a_process_that_the_operating_system_does_not_start_is_reported(events, run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    run(WAITS)
    failed = events.of(ProcessNotStarted)
    assert [(event.number, event.restart_seconds) for event in failed] == [(1, seconds) for seconds in WAIT_SECONDS]
    assert "/no/such/python" in failed[0].error
    assert [type(event) for event in events.all[5:]] == [SupervisorGaveUp]


@pytest.mark.parametrize("written", ["b'[' * 100_000 + b'\\n'", "b'[]\\n' * 1000", "b'x' * 20_000_000"])
def test_what_user_code_writes_to_the_supervisor_does_not_end_it(events, run, written):
    writes = f"import os; os.write(int(os.environ['{VARIABLE}'].split(':')[0]), {written})"
    run(f"{writes}; {FAILS}")
    assert [event.code for event in events.of(ProcessEnded)] == [3] * 5


@pytest.mark.usefixtures("heeded_hang_ups")
def test_a_replacement_that_ends_at_once_is_reported_and_the_old_process_continues(events, run, monkeypatch):
    def intervene(event):
        if isinstance(event, ProcessStarted) and not event.reason:
            monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", FAILS])
            os.kill(os.getpid(), signal.SIGHUP)
        if isinstance(event, ProcessNotReplaced):
            os.kill(os.getpid(), signal.SIGTERM)

    add_sink(intervene)
    try:
        run(WAITS)
    finally:
        remove_sink(intervene)
    old, new = events.of(ProcessStarted)
    assert (old.number, new.number, new.reason) == (1, 1, "rolling restart")
    assert [(event.number, event.reason) for event in events.of(ProcessNotReplaced)] == [(1, "it ended with 3")]
    [ended] = events.of(ProcessEnded)
    assert (ended.pid, ended.code, ended.restart_seconds) == (old.pid, -signal.SIGTERM, None)
