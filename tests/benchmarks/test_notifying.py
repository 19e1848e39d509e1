"""Comparison of notifiers: the servers that they need, the waiting processes, and the figures."""

import json
import os
import sys
from pathlib import Path

import pytest
from django.db import connections

from benchmarks.bare_signals import SENDERS, WAITS
from benchmarks.cells import NotRun
from benchmarks.crowd import crowd, report_ready, waiting
from benchmarks.notifiers import NULL, Way
from benchmarks.ports import answers
from benchmarks.seen import Seen, figures
from benchmarks.servers import Servers, reached_at
from benchmarks.workers import WorkerFailed

#: A program that listens on the port in its last argument.
SERVER = f"""#!{sys.executable}
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
threading.Event().wait()
"""

REPORTS_READY = "from benchmarks.crowd import report_ready; import threading; report_ready(); threading.Event().wait()"


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_server_is_started_once_and_ends_with_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "redis-server", SERVER)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with Servers() as servers:
        url = servers.redis()
        assert servers.redis() == url
        assert answers(port_of(url))
    assert not answers(port_of(url))


def test_a_server_that_is_missing_or_does_not_start_is_a_reason_to_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Servers() as servers:
        with pytest.raises(NotRun, match="no nats-server on the PATH"):
            servers.jetstream()
        program(tmp_path, "nats-server", f"#!{sys.executable}\nraise SystemExit('port is taken')")
        with pytest.raises(NotRun, match="nats-server did not start: port is taken"):
            servers.nats()


def test_a_missing_driver_is_a_reason_to_skip() -> None:
    with Servers() as servers, pytest.raises(NotRun, match="not_there"):
        Way("not_there.Notifier").environment_for(servers)


def test_processes_receive_their_notifier_in_the_environment() -> None:
    way = Way("in_process.InProcessNotifier", lambda servers: {"servers": "a"}, lambda servers: {"BENCH_REDIS": "b"})
    environment = way.environment_for(Servers())
    assert json.loads(environment.pop("BENCH_NOTIFIER")) == {
        "BACKEND": "django_jobchains.notifications.in_process.InProcessNotifier",
        "OPTIONS": {"servers": "a"},
    }
    assert environment == {"BENCH_REDIS": "b"}
    assert json.loads(NULL.environment_for(Servers())["BENCH_NOTIFIER"])["OPTIONS"] == {}


def test_each_floor_has_a_sender_and_a_waiting_worker() -> None:
    assert set(SENDERS) == set(WAITS)


def test_other_processes_receive_the_database_as_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"USER": "me", "PASSWORD": "p@ss", "HOST": "127.0.0.1", "PORT": "5433", "NAME": "postgres"}
    monkeypatch.setitem(connections.databases, "elsewhere", one)
    assert reached_at("elsewhere") == {
        "BENCH_DATABASE_URL": "postgresql://me:p%40ss@127.0.0.1:5433/postgres",
        "BENCH_DATABASE_NAME": "postgres",
    }


def test_a_crowd_is_ready_when_the_count_has_grown() -> None:
    numbers: list[int] = []

    def ready() -> int:
        numbers.append(len(numbers) + 1)
        return numbers[-1]

    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    with crowd(command, 3, ready, {}):
        assert numbers[-1] >= 3


def test_waiting_processes_report_that_they_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting([sys.executable, "-c", REPORTS_READY], 2, {}):
        pass
    monkeypatch.setenv("BENCH_READY", str(tmp_path))
    report_ready()
    assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]


def test_a_process_that_ends_early_is_an_error_with_its_output() -> None:
    code = "raise SystemExit('no such table')"
    with (
        pytest.raises(WorkerFailed, match=r"processes ended, with .1.\.\nno such table"),
        waiting([sys.executable, "-c", code], 2, {}),
    ):
        pytest.fail("no process can be ready")


def test_the_figures_of_a_job_are_computed() -> None:
    seen = Seen(milliseconds=[1.0, 2.0, 3.0], statements=[8, 9, 40], idle_statements=[0, 3], transactions=60)
    found = figures(seen)
    assert found["p50 ms"] == 2.0
    assert found["statements of a job"] == 9
    assert found["statements of the worst"] == 40
    assert found["statements without a job"] == 1.5
    assert found["transactions of a job, mean"] == 20


def test_without_counts_there_are_only_times() -> None:
    seen = Seen(milliseconds=[1.0, 2.0], statements=[], idle_statements=[], transactions=None)
    assert set(figures(seen)) == {"p50 ms", "p95 ms", "p99 ms"}
