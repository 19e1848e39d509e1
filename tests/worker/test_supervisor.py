"""``--processes``: workers that die are replaced, and none keeps running without its supervisor."""

import os
import signal
import socket
import sysconfig
from pathlib import Path

import psutil
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_jobchains import chains
from django_jobchains.management.commands.run_jobworker import Command
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import ask, free_port, until_gone
from tests.support.workers import completed
from tests.worker.test_signals import job_rows, until_started

slow = pytest.mark.slow


@slow
def test_killed_worker_is_replaced_and_the_others_continue(start_process):
    port = free_port()
    arguments = ("--processes", "2", "--name", "mail", "--async-slots", "5", "--health-port", str(port))
    process = start_process(*arguments, RESTART_SECONDS="4")
    first, second = process.until_working(2)
    until(lambda: ask(port, "/")[1]["problems"] == [], 60, lambda: ask(port, "/"))
    health = ask(port, "/")[1]
    assert (len(health["processes"]), health["slots"]) == (2, 2 * (10 + 5))
    first.kill()
    until(lambda: ask(port, "/live")[0] == 503, 15)
    assert ask(port, "/ready")[0] == 200
    until(lambda: ask(port, "/live")[0] == 200, 60, lambda: process.output)
    process.until_output("Worker mail-", 3)
    assert second in process.workers()
    assert first not in process.workers()
    assert f"({first.pid}) was killed by signal 9" in process.output
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.output


@slow
def test_killed_supervisor_leaves_no_worker_running(start_process):
    """The workers stop as after SIGTERM: their jobs are returned to the queue, and no attempt is used."""
    chains.enqueue_many([jobs.heed.item() for _ in range(2)])
    before = job_rows()
    options = {"ABORT_SECONDS": "15", "LEASE_SECONDS": "60"}
    process = start_process("--processes", "2", "--slots", "1", "--shutdown-timeout", "0.5", **options)
    workers = process.until_working(2)
    until_started(process, 2)
    # Ctrl-C in a terminal reaches only the supervisor.
    assert all(os.getsid(worker.pid) == worker.pid for worker in workers)
    process.signal(signal.SIGKILL)
    process.wait()
    until_gone(workers)
    assert job_rows() == before
    assert "The supervisor has ended" in process.output


@slow
def test_worker_that_cannot_stop_ends_when_its_supervisor_was_killed(start_process):
    process = start_process("--processes", "1", "--shutdown-timeout", "0", DEAF="1", STOP_SECONDS="")
    workers = process.until_working()
    process.signal(signal.SIGKILL)
    process.wait()
    until_gone(workers)


@slow
def test_worker_that_does_not_respond_is_finally_killed(start_process):
    process = start_process("--processes", "2", "--shutdown-timeout", "0", STOP_SECONDS="")
    workers = process.until_working(2)
    workers[0].suspend()
    process.signal(signal.SIGTERM)
    assert process.wait() == 1
    until_gone(workers, 0)
    assert f"({workers[0].pid}) was killed by signal 9" in process.output


@slow
def test_supervisor_has_no_database_connection(start_process):
    process = start_process("--processes", "1")
    (worker,) = process.until_working()
    until(lambda: has_connections(worker), 60)
    assert not has_connections(psutil.Process(process.pid))


def has_connections(process):
    if connection.vendor == "sqlite":
        return any(file.path.startswith(str(connection.settings_dict["NAME"])) for file in process.open_files())
    port = int(connection.settings_dict["PORT"])
    return any(connected.raddr[1:] == (port,) for connected in process.net_connections())


@slow
def test_burst_ends_when_nothing_is_due_with_django_admin(start_process):
    chains.enqueue_many([jobs.write.item(0.01) for _ in range(40)])
    script = Path(sysconfig.get_path("scripts"), "django-admin")
    process = start_process("--processes", "2", "--burst", start=(str(script),))
    assert process.wait(90) == 0
    assert completed() == 40
    assert process.output.count("Stopped: ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-rss", "1M"], "less than a worker uses before its first job"),
        (["--type", "no.such.*"], "No processor to run"),
        (["--database", "elsewhere"], "elsewhere"),
        (["--name", 99 * "x"], "end with -1 to -2"),
        (["--reload", "--burst"], "Use one of them"),
    ],
)
def test_invalid_options_are_reported_before_a_worker_starts(arguments, message, registry, quick, monkeypatch):
    monkeypatch.setattr(Command, "_called_from_command_line", True)
    monkeypatch.setattr("django_jobchains.worker.supervised_process.Child.__init__", None)
    with pytest.raises(CommandError, match=message):
        call_command("run_jobworker", "--processes", "2", *arguments)


@slow
def test_health_port_in_use_is_refused(start_process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start_process("--processes", "2", "--health-port", str(taken.getsockname()[1]))
        assert process.wait(60) == 1
    assert "cannot be used: Address already in use" in process.output
    assert "started: " not in process.output
    assert "Traceback" not in process.output
