"""A stop counts as one request, however many processes and copies of the signal there are.

systemd signals each process of a unit, a terminal signals each process of the foreground group, and a wrapper
(``uv run``, ``tini``, a shell script) forwards a signal that the worker has already received itself.
"""

import json
import re
import shlex
import signal
from collections.abc import Callable
from configparser import ConfigParser
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.db import connection
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import Job
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs
from tests.support.worker_processes import WorkerProcess
from tests.worker.test_supervisor import free_port, is_running

# These tests are about processes, not the database, so they run once.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(connection.vendor != "sqlite", reason="run on SQLite")]

#: Longer than handlers get after a second signal, and much shorter than the shutdown timeout.
HANDLER_SECONDS = 3.0
PATIENT_SETTINGS = ("--slots", "1", "--shutdown-timeout", "60")


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "workers.md").read_text()


def block(language: str) -> str:
    """Return the guide's example in this language."""
    found = re.search(rf"```{language}\n(# .*?)```", GUIDE, re.DOTALL)
    assert found
    return found[1]


def guide_unit() -> dict[str, str]:
    """Return the ``[Service]`` section of the guide's unit."""
    parser = ConfigParser(interpolation=None)
    parser.read_string(block("ini"))
    return dict(parser["Service"])


def guide_arguments() -> list[str]:
    return shlex.split(guide_unit()["execstart"].partition("run_jobworker")[2])


def shutdown_timeout(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--shutdown-timeout") + 1])


def members(process: WorkerProcess) -> list[psutil.Process]:
    """Return the processes in the control group of a unit with this main process."""
    main = psutil.Process(process.pid)
    return [*main.children(recursive=True), main]


def signal_each(unit: list[psutil.Process], number: int) -> None:
    """Do what systemd does with ``KillMode=control-group``: send the signal, and resume stopped processes."""
    for member in unit:
        member.send_signal(number)
        member.resume()


def has_ended(process: WorkerProcess, unit: list[psutil.Process]) -> Callable[[], bool]:
    return lambda: not process.is_alive and not any(is_running(member) for member in unit)


def until_started(process: WorkerProcess, count: int) -> None:
    until(lambda: Effect.objects.filter(label="started").count() >= count, 60, lambda: process.output)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_every_process_at_once_lets_handlers_end(start_process, number):
    made = chains.enqueue_many([jobs.stuck.item(HANDLER_SECONDS) for _ in range(2)])
    process = start_process("--processes", "2", *PATIENT_SETTINGS, LEASE_SECONDS="60")
    until_started(process, 2)
    unit = members(process)
    assert len(unit) == 3
    signal_each(unit, number)
    until(has_ended(process, unit), 60, lambda: process.output)
    assert process.wait() == 0
    assert {chain.refresh().status for chain in made} == {"completed"}
    assert "Still running" not in process.output


@pytest.mark.parametrize("mode", [(), ("--processes", "1"), ("--reload",)])
def test_signal_that_arrives_twice_at_once_lets_handlers_end(start_process, mode):
    chain = jobs.stuck.enqueue(HANDLER_SECONDS)
    process = start_process(*mode, *PATIENT_SETTINGS)
    until_started(process, 1)
    process.freeze()  # so that both signals are pending when it continues
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGINT)
    process.signal(signal.SIGCONT)
    assert process.wait() == 0
    assert chain.refresh().status == "completed"


@pytest.mark.usefixtures("heeded_hang_ups")
def test_retiring_worker_is_not_interrupted_by_a_stop(start_process):
    """The request to retire, when it was replaced, does not count as the first signal."""
    chain = jobs.stuck.enqueue(HANDLER_SECONDS)
    process = start_process("--processes", "1", *PATIENT_SETTINGS, LEASE_SECONDS="60")
    until_started(process, 1)
    process.signal(signal.SIGHUP)
    until(lambda: "Stopping" in process.output, 60, lambda: process.output)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert chain.refresh().status == "completed"


def test_stop_during_the_start_leaves_nothing(start_process):
    process = start_process("--processes", "2", *PATIENT_SETTINGS)
    until(lambda: process.output.count(" started: ") == 2, 60, lambda: process.output)
    unit = members(process)
    signal_each(unit, signal.SIGTERM)
    until(has_ended(process, unit), 60, lambda: process.output)
    assert process.wait() == 0
    assert "Traceback" not in process.output


def test_job_killed_by_a_service_manager_is_retried(start_process):
    """The manager's timeout is shorter than the worker's, and SIGKILL reaches the processes in any order."""
    held = chains.enqueue_many([jobs.hold.item() for _ in range(2)])
    process = start_process("--processes", "2", *PATIENT_SETTINGS, LEASE_SECONDS="60")
    until(lambda: Effect.objects.filter(label__startswith="started by").count() >= 2, 60, lambda: process.output)
    unit = members(process)
    signal_each(unit, signal.SIGTERM)
    until(lambda: process.output.count("Stopping: 1 running") == 2, 60, lambda: process.output)
    for member in unit:
        member.kill()
    until(has_ended(process, unit), 60, lambda: process.output)
    Job.objects.filter(status="running").update(leased_until=timezone.now() - timedelta(seconds=1))  # the leases end
    start_process()
    for chain in held:
        until_completed(chain, 40)
    assert set(Job.objects.values_list("attempt", "crashes")) == {(2, 1)}


def test_examples_in_the_guide_give_the_worker_enough_time_to_stop():
    arguments, compose = guide_arguments(), block("yaml")
    assert int(guide_unit()["timeoutstopsec"]) >= shutdown_timeout(arguments) + 5
    command, grace = re.search(r"command: (.*)", compose), re.search(r"stop_grace_period: (\d+)s", compose)
    assert command
    assert grace
    assert json.loads(command[1])[3:] == arguments
    assert int(grace[1]) >= shutdown_timeout(arguments) + 5


@pytest.mark.parametrize("kill_mode", [guide_unit()["killmode"], "control-group"])
def test_unit_in_the_guide_stops_while_a_handler_does_not_end(start_process, kill_mode):
    """The shutdown timeout is shortened. The handler takes a minute."""
    arguments = guide_arguments()
    stuck = jobs.stuck.enqueue(60.0)
    process = start_process(*arguments, "--shutdown-timeout", "1", "--health-port", str(free_port()))
    until_started(process, 1)
    processes = members(process)
    signal_each(processes if kill_mode == "control-group" else processes[-1:], signal.SIGTERM)
    until(has_ended(process, processes), 40, lambda: process.output)
    assert process.wait() == 0
    assert (stuck.refresh().status, stuck.current_job.attempt, stuck.current_job.crashes) == ("pending", 0, 0)
