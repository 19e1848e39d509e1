"""SIGTERM and SIGINT, as deployments, people and service managers send them.

A stop counts as one request, however many processes and copies of the signal there are. systemd signals each process of
a unit, a terminal signals each process of the foreground group, and a wrapper (``uv run``, ``tini``, a shell script)
forwards a signal that the worker has already received itself.
"""

import shlex
import signal
import time
from configparser import ConfigParser
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs
from tests.support.worker_processes import free_port, until_gone

slow = pytest.mark.slow
SUPERVISED = ("--processes", "1")
#: Longer than handlers get after a second signal, and much shorter than the shutdown timeout.
HANDLER_SECONDS = 3.0
PATIENT = ("--slots", "1", "--shutdown-timeout", "60")


def job_rows():
    return list(Job.objects.order_by("pk").values_list("status", "attempt", "run_at", "leased_by"))


def until_started(process, count=1):
    until(lambda: Effect.objects.filter(label__startswith="started").count() >= count, 60, lambda: process.output)


def members(process):
    """Return the processes in the control group of a unit with this main process."""
    main = psutil.Process(process.pid)
    return [*main.children(recursive=True), main]


def signal_each(unit, number):
    """Do what systemd does with ``KillMode=control-group``: send the signal, and resume stopped processes."""
    for member in unit:
        member.send_signal(number)
        member.resume()


@slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_worker_ends_at_once_with_code_0(start_process, number):
    process = start_process("--shutdown-timeout", "60").until_ready()
    process.signal(number)
    assert process.wait() == 0
    assert "Stopped: no jobs." in process.output
    assert "Traceback" not in process.output


@slow
@pytest.mark.parametrize(
    ("mode", "number", "signals_each"),
    [
        ((), signal.SIGTERM, False),
        (("--processes", "2"), signal.SIGINT, False),
        (("--processes", "2"), signal.SIGINT, True),
        (("--processes", "2"), signal.SIGTERM, True),
    ],
)
def test_first_signal_lets_handlers_end(start_process, mode, number, signals_each):
    count = 2 if mode else 1
    process = start_process(*mode, *PATIENT, LEASE_SECONDS="60")
    process.until_working(count)  # or the first worker ends its job before the last worker starts
    made = chains.enqueue_many([jobs.stuck.item(HANDLER_SECONDS) for _ in range(count)])
    until_started(process, count)
    waiting = jobs.stuck.enqueue(0.0, priority=-1)
    unit = members(process)
    signal_each(unit if signals_each else unit[-1:], number)
    assert process.wait() == 0
    until_gone(unit)
    assert {chain.refresh().status for chain in made} == {"completed"}
    assert (waiting.refresh().status, waiting.current_job.attempt) == ("pending", 0)
    assert "Still running" not in process.output
    assert "Traceback" not in process.output


@slow
@pytest.mark.parametrize("mode", [(), SUPERVISED, ("--reload",)])
def test_signal_that_arrives_twice_at_once_lets_handlers_end(start_process, mode):
    chain = jobs.stuck.enqueue(HANDLER_SECONDS)
    process = start_process(*mode, *PATIENT)
    until_started(process)
    process.freeze()  # so that both signals are pending when it continues
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.signal(number)
    assert process.wait() == 0
    assert chain.refresh().status == "completed"


@slow
def test_second_signal_does_not_wait(start_process):
    jobs.heed.enqueue()
    before = job_rows()
    process = start_process("--shutdown-timeout", "60", ABORT_SECONDS="15", LEASE_SECONDS="60")
    until_started(process)
    process.signal(signal.SIGTERM)
    process.until_output("Stopping")
    assert process.is_alive
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert job_rows() == before
    assert Effect.objects.filter(label="aborted: worker_stopping").exists()


@slow
@pytest.mark.parametrize("mode", [(), SUPERVISED])
@pytest.mark.parametrize("signals", [1, 2])
def test_stuck_handler_does_not_keep_a_process_running(start_process, mode, signals):
    """The handler sleeps for a minute and ignores its signal. Its job is pending again, and no attempt is used."""
    chain = jobs.stuck.enqueue(60.0)
    before = job_rows()
    process = start_process(*mode, "--shutdown-timeout", "1" if signals == 1 else "60", STOP_SECONDS="15")
    until_started(process)
    unit = members(process)
    process.signal(signal.SIGTERM)
    if signals == 2:
        process.until_output("Stopping")
        process.signal(signal.SIGINT)
    assert process.wait() == 0
    until_gone(unit, 0)
    assert job_rows() == before
    assert not FailedAttempt.objects.exists()
    assert "1 returned to the queue" in process.output
    reason = "the shutdown timeout" if signals == 1 else "a second signal to stop"
    assert f"Still running after {reason}: {chain.type_name} {chain.id}." in process.output


@slow
@pytest.mark.usefixtures("heeded_hang_ups")
def test_retiring_worker_is_not_interrupted_by_a_stop(start_process):
    """The request to retire, when it was replaced, does not count as the first signal."""
    chain = jobs.stuck.enqueue(HANDLER_SECONDS)
    process = start_process(*SUPERVISED, *PATIENT, LEASE_SECONDS="60")
    until_started(process)
    process.signal(signal.SIGHUP)
    process.until_output("Stopping")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert chain.refresh().status == "completed"


@slow
def test_signal_during_the_start_loses_nothing(start_process):
    chains.enqueue_many([jobs.write.item(0.01) for _ in range(20)])
    for milliseconds in range(100, 900, 200):
        process = start_process()
        time.sleep(milliseconds / 1000)
        process.signal(signal.SIGTERM)
        process.wait(60)
    assert not Job.objects.with_status("running").exists()
    assert set(Job.objects.values_list("status", "attempt")) <= {("pending", 0), ("completed", 1)}


@slow
def test_stop_of_a_supervisor_during_the_start_leaves_nothing(start_process):
    process = start_process("--processes", "2", *PATIENT)
    process.until_output(" started: ", 2)
    unit = members(process)
    signal_each(unit, signal.SIGTERM)
    assert process.wait(60) == 0
    until_gone(unit)
    assert "Traceback" not in process.output


@slow
def test_signals_until_the_very_end_change_nothing(start_process):
    process = start_process().until_ready()
    while process.is_alive:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        time.sleep(0.0005)
    assert process.wait() == 0
    assert "Traceback" not in process.output


@slow
def test_job_killed_by_a_service_manager_is_retried(start_process):
    """The manager's timeout is shorter than the worker's, and SIGKILL reaches the processes in any order."""
    held = chains.enqueue_many([jobs.hold.item() for _ in range(2)])
    process = start_process("--processes", "2", *PATIENT, LEASE_SECONDS="60")
    until_started(process, 2)
    unit = members(process)
    signal_each(unit, signal.SIGTERM)
    process.until_output("Stopping: 1 running", 2)
    for member in unit:
        member.kill()
    process.wait()
    until_gone(unit)
    Job.objects.filter(status="running").update(leased_until=timezone.now() - timedelta(seconds=1))  # the leases end
    start_process()
    for chain in held:
        until_completed(chain, 40)
    assert set(Job.objects.values_list("attempt", "crashes")) == {(2, 1)}


@slow
def test_a_process_that_a_handler_has_forked_does_not_inherit_the_handling_of_signals(start_process):
    codes = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 1}
    ended = {number: jobs.forks.enqueue(int(number)) for number in codes}
    process = start_process("--slots", "1")
    for number, code in codes.items():
        until_completed(ended[number], 60, lambda: process.output)
        assert ended[number].output == code


# The unit of the deployment page

UNIT = Path(__file__).parents[2] / "docs" / "operate" / "files" / "shop-worker.service"


def guide_unit():
    """Return the ``[Service]`` section of the unit, and the arguments of its worker."""
    parser = ConfigParser(interpolation=None)
    parser.read(UNIT)
    unit = dict(parser["Service"])
    return unit, shlex.split(unit["execstart"].partition("run_jobworker")[2])


@slow
@pytest.mark.parametrize("kill_mode", [guide_unit()[0]["killmode"], "control-group"])
def test_unit_in_the_guide_stops_while_a_handler_does_not_end(start_process, kill_mode):
    """The shutdown timeout is shortened. The handler takes a minute."""
    stuck = jobs.stuck.enqueue(60.0)
    process = start_process(*guide_unit()[1], "--shutdown-timeout", "1", "--health-port", str(free_port()))
    until_started(process)
    unit = members(process)
    signal_each(unit if kill_mode == "control-group" else unit[-1:], signal.SIGTERM)
    assert process.wait(40) == 0
    until_gone(unit)
    assert (stuck.refresh().status, stuck.current_job.attempt, stuck.current_job.crashes) == ("pending", 0, 0)
