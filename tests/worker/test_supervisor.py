"""``--processes``: workers that die are replaced, signals reach all of them, and none keeps running."""

import http.client
import json
import os
import signal
import socket
import sysconfig
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection

from django_jobchains import chains
from django_jobchains.management.commands.run_jobworker import Command
from django_jobchains.models import Job
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import WorkerProcess

# These tests are about processes, not the database, so they run once.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(connection.vendor != "sqlite", reason="run on SQLite")]


def started() -> int:
    return Effect.objects.filter(label="started").count()


def job_rows() -> list[tuple[Any, ...]]:
    return list(Job.objects.order_by("pk").values_list("status", "attempt", "run_at", "leased_by"))


def until_working(process: WorkerProcess, count: int = 2) -> list[psutil.Process]:
    until(lambda: process.output.count("Worker ") >= count, 60, lambda: process.output)
    return process.workers()


def until_gone(workers: list[psutil.Process], seconds: float = 60) -> None:
    until(lambda: not any(is_running(worker) for worker in workers), seconds, "workers are still running")


def is_running(worker: psutil.Process) -> bool:
    try:
        return worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Any = probe.getsockname()[1]
        return int(port)


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def healthy(port: int) -> dict[str, Any]:
    """Return the health of the supervisor; nothing while there are problems."""
    status, health = ask(port, "/")
    return health if status == 200 and not health["problems"] else {}


def test_killed_worker_is_replaced_and_the_others_continue(start_process):
    port = free_port()
    arguments = ("--processes", "2", "--name", "mail", "--async-slots", "5", "--health-port", str(port))
    process = start_process(*arguments, RESTART_SECONDS="4")
    first, second = until_working(process)
    health: dict[str, Any] = until(lambda: healthy(port), 60, lambda: ask(port, "/"))
    assert (len(health["processes"]), health["slots"]) == (2, 2 * (10 + 5))
    first.kill()
    until(lambda: ask(port, "/live")[0] == 503, 15)
    assert ask(port, "/ready")[0] == 200
    until(lambda: ask(port, "/live")[0] == 200, 60, lambda: process.output)
    until(lambda: process.output.count("Worker mail-") == 3, 60, lambda: process.output)
    assert second in process.workers()
    assert first not in process.workers()
    assert f"({first.pid}) was killed by signal 9" in process.output
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.output


def test_killed_supervisor_leaves_no_worker_running(start_process):
    """The workers stop as after SIGTERM: their jobs are handed back, and no attempt is used."""
    chains.enqueue_many([jobs.heed.item() for _ in range(2)])
    before = job_rows()
    options = {"ABORT_SECONDS": "15", "LEASE_SECONDS": "60"}
    process = start_process("--processes", "2", "--slots", "1", "--shutdown-timeout", "0.5", **options)
    workers = until_working(process)
    until(lambda: started() >= 2, 60, lambda: process.output)
    process.signal(signal.SIGKILL)
    process.wait()
    until_gone(workers)
    assert job_rows() == before
    assert "The supervisor has ended" in process.output


def test_worker_that_cannot_stop_ends_when_its_supervisor_was_killed(start_process):
    process = start_process("--processes", "1", "--shutdown-timeout", "0", DEAF="1", STOP_SECONDS="")
    workers = until_working(process, 1)
    process.signal(signal.SIGKILL)
    process.wait()
    until_gone(workers)


def test_first_signal_lets_handlers_end(start_process):
    made = chains.enqueue_many([jobs.stuck.item(1.0) for _ in range(2)])
    process = start_process("--processes", "2", "--slots", "1", LEASE_SECONDS="60")
    workers = until_working(process)
    until(lambda: started() >= 2, 60, lambda: process.output)
    assert all(
        os.getsid(worker.pid) == worker.pid for worker in workers
    )  # Ctrl-C in a terminal reaches only the parent
    process.signal(signal.SIGINT)
    assert process.wait() == 0
    assert {chain.refresh().status for chain in made} == {"completed"}
    until_gone(workers, 0)
    assert "Traceback" not in process.output


@pytest.mark.parametrize("signals", [1, 2])
def test_stuck_handlers_do_not_keep_a_process_running(start_process, signals):
    jobs.stuck.enqueue(60.0)
    before = job_rows()
    process = start_process("--processes", "1", "--shutdown-timeout", "1" if signals == 1 else "60")
    workers = until_working(process, 1)
    until(started, 60, lambda: process.output)
    process.signal(signal.SIGTERM)
    if signals == 2:
        until(lambda: "Stopping" in process.output, 15, lambda: process.output)
        process.signal(signal.SIGTERM)
    assert process.wait() == 0
    until_gone(workers, 0)
    assert job_rows() == before


def test_worker_that_does_not_respond_is_finally_killed(start_process):
    process = start_process("--processes", "2", "--shutdown-timeout", "0", STOP_SECONDS="")
    workers = until_working(process)
    workers[0].suspend()
    process.signal(signal.SIGTERM)
    assert process.wait() == 1
    until_gone(workers, 0)
    assert f"({workers[0].pid}) was killed by signal 9" in process.output


def test_when_no_worker_can_start_the_supervisor_gives_up(start_process, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    process = start_process("--processes", "1", BROKEN_IF=str(broken))
    assert process.wait(100) == 1
    assert "The supervisor gives up: no worker process could start, 5 times in a row" in process.output
    assert process.output.count("RuntimeError: this version is broken") == 5


def test_supervisor_has_no_database_connection(start_process):
    process = start_process("--processes", "1")
    (worker,) = until_working(process, 1)
    until(lambda: connections_of(worker), 60)
    assert not connections_of(psutil.Process(process.pid))


def connections_of(process: psutil.Process) -> list[Any]:
    if connection.vendor == "sqlite":
        return [file for file in process.open_files() if file.path.startswith(str(connection.settings_dict["NAME"]))]
    port = int(connection.settings_dict["PORT"])
    return [connected for connected in process.net_connections() if connected.raddr[1:] == (port,)]


def test_burst_ends_when_nothing_is_due_with_django_admin(start_process):
    chains.enqueue_many([jobs.write.item(0.01) for _ in range(40)])
    script = Path(sysconfig.get_path("scripts"), "django-admin")
    process = start_process("--processes", "2", "--burst", start=(str(script),))
    assert process.wait(90) == 0
    assert set(Job.objects.values_list("status", flat=True)) == {"completed"}
    assert process.output.count("Stopped: ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "2", "--max-rss", "1M"], "less than a worker uses before its first job"),
        (["--processes", "2", "--type", "no.such.*"], "No processor to work for"),
        (["--processes", "2", "--database", "elsewhere"], "elsewhere"),
        (["--reload", "--burst"], "Use one of them"),
    ],
)
def test_invalid_options_are_reported_once(arguments, message, registry, processors, monkeypatch):
    monkeypatch.setattr(Command, "_called_from_command_line", True)
    monkeypatch.setattr("django_jobchains.worker.supervised_process.Child.__init__", None)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    processors.register("worker.nothing")(lambda job: None)
    with pytest.raises(CommandError) as caught:
        call_command("run_jobworker", *arguments)
    assert message in str(caught.value)


def test_health_port_in_use_is_refused(start_process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start_process("--processes", "2", "--health-port", str(taken.getsockname()[1]))
        assert process.wait(60) == 1
    assert "cannot be used: Address already in use" in process.output
    assert "started: " not in process.output
    assert "Traceback" not in process.output
