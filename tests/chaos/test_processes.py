"""Worker processes that are killed, paused or stopped while they run jobs, or whose clocks differ."""

import random
import signal
import sqlite3
import time
from datetime import timedelta
from functools import partial

import psutil
import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import (
    EXIT_SECONDS,
    assert_ends_well,
    lasting,
    until_all_completed,
    until_count,
    write_and_attempt,
)
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.servers.faketime import clock
from tests.support.servers.programs import or_skip
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(lasting(0) + 120)]


LATER = timedelta(seconds=2)
SHUTDOWN_SECONDS = 10.0
#: Limits that a busy machine does not reach, because jobs that are returned to the queue too early have two effects.
LIMITS = {"LEASE_SECONDS": "60", "STOP_SECONDS": str(SHUTDOWN_SECONDS), "ABORT_SECONDS": str(SHUTDOWN_SECONDS)}
#: The time from the start of the process in which it imports, connects, claims and works.
LATEST_SIGNAL_SECONDS = 1.6


def test_a_killed_worker_loses_no_job_and_duplicates_no_effect(start_process):
    chains.enqueue_many([jobs.write.item(0.004) for _ in range(450)])
    chains.enqueue_many([jobs.step.item(9) for _ in range(5)])
    for killed_at in (80, 200, 320):
        process = start_process("--slots", "4")
        until_count(killed_at, process)
        process.kill()
    last = start_process()
    until_all_completed(last)
    assert Job.objects.count() == 500
    assert Job.objects.filter(crashes__gt=0).exists(), "no kill hit a running job"
    assert_invariants()


@pytest.mark.parametrize("count", [2, 4])
def test_several_workers_never_run_one_attempt(start_process, count):
    processes = [start_process("--slots", "4", LEASE_SECONDS="60") for _ in range(count)]
    for process in processes:
        process.until_ready()
    for _ in range(20):
        write_and_attempt(50, 50)
    until_all_completed(*processes, seconds=100)
    assert_ends_well(*processes)
    assert not any("locked" in process.output for process in processes)
    assert len(set(Job.objects.values_list("completed_by", flat=True))) == count
    assert set(Job.objects.values_list("attempt", "crashes")) == {(1, 0)}
    assert Effect.objects.count() == 2_000
    assert_invariants()


def pause(process):
    """Suspend the worker, but not while it holds SQLite's write lock, because nothing could reclaim its jobs then."""
    process.freeze()
    while connection.vendor == "sqlite" and _is_locked():
        process.signal(signal.SIGCONT)
        process.freeze()


def _is_locked():
    other = sqlite3.connect(connection.settings_dict["NAME"], timeout=0.2, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        other.close()
    return False


def test_a_worker_paused_beyond_its_lease_writes_nothing_and_continues(start_process):
    first = start_process()
    chain = jobs.hold.enqueue()
    until(lambda: Effect.objects.filter(label=f"started by {first.pid}").exists(), 30, lambda: first.output)
    pause(first)
    second = start_process()
    until_completed(chain, 30, lambda: second.output)
    assert chain.output == second.pid
    first.signal(signal.SIGCONT)
    Effect.objects.create(job_id=chain.id, label="go on")
    until(lambda: Effect.objects.filter(label=f"LeaseLost in {first.pid}").exists(), 15, lambda: first.output)
    assert stays(lambda: Effect.objects.filter(label="written").count() == 1, 0.5)
    assert chain.refresh().output == second.pid

    assert_ends_well(second)
    again = jobs.write.enqueue(0.0)
    until_completed(again, 15, lambda: first.output)
    assert again.output == first.pid
    assert_invariants()


def test_workers_paused_in_turn_lose_and_duplicate_nothing(start_process):
    """Each is suspended for longer than its lease while it works and the other continues."""
    processes = [start_process("--slots", "4").until_ready() for _ in range(2)]
    for process in (*processes, *processes):
        before = crashes_of(process)
        until(partial(pause_at_work, process), 30, lambda: processes[0].output)
        until(lambda process=process, before=before: crashes_of(process) > before, 30)
        process.signal(signal.SIGCONT)
    until_all_completed(*processes)
    assert all(process.is_alive for process in processes)
    assert_invariants()


def crashes_of(process):
    return FailedAttempt.objects.filter(kind="crash", worker__contains=f":{process.pid}:").count()


def pause_at_work(process):
    """Pause the worker, and return whether it holds a job that others can take back. If not, let it continue.

    They cannot take back a job whose row the worker has locked. More jobs are enqueued, because otherwise the other
    worker may have run all of them before this one is paused.
    """
    if Job.objects.with_status("pending").count() < 50:
        chains.enqueue_many([jobs.write.item(0.02) for _ in range(150)])
    pause(process)
    until_executed(process)
    with transaction.atomic():
        jobs_of_process = Job.objects.filter(status="running", leased_by__contains=f":{process.pid}:")
        holds_unlocked = jobs_of_process.select_for_update(skip_locked=connection.vendor == "postgresql").exists()
    if not holds_unlocked:
        process.signal(signal.SIGCONT)
    return holds_unlocked


def until_executed(process):
    """Wait until the server has executed what the suspended worker has sent, which may lock its jobs or end them."""
    if connection.vendor == "postgresql":
        ports = [each.laddr.port for each in psutil.Process(process.pid).net_connections()]
        count = "SELECT count(*) FROM pg_stat_activity WHERE client_port = ANY(%s) AND state = 'active'"
        with connection.cursor() as cursor:
            until(lambda: cursor.execute(count, [ports]).fetchone() == (0,), 30)


@pytest.mark.postgresql
def test_workers_whose_clocks_differ_by_ten_minutes_start_nothing_early_and_reap_nothing(start_process):
    """Each worker queries for expired leases while the other one holds leases."""
    with or_skip():
        clocks = [clock(seconds) for seconds in (600, -600)]
    chains.enqueue_many([jobs.patient.item(3.0) for _ in range(8)])
    late = chains.enqueue_many([jobs.step.item(0, delay=LATER) for _ in range(20)])
    workers = [start_process("--slots", "6", LEASE_SECONDS="60", **environment) for environment in clocks]
    until_all_completed(*workers)
    assert len(set(Job.objects.values_list("completed_by", flat=True))) == 2
    assert set(Job.objects.values_list("attempt", "lease_number", "crashes")) == {(1, 1, 0)}
    for job in Job.objects.filter(pk__in=[chain.id for chain in late]):
        assert job.last_attempt_at is not None
        assert job.last_attempt_at >= job.run_at >= job.created_at + LATER
    assert_invariants()


def has_started(process):
    """Return whether the worker handles signals itself by now."""
    return "Worker " in process.output


def assert_ended_well(process, *, was_started):
    code = process.wait(SHUTDOWN_SECONDS + EXIT_SECONDS)
    if was_started or has_started(process):
        assert code == 0, process.output
        assert "Stopped" in process.output
    if code == 0:
        for word in ("Traceback", "Error", "Exception", "Fatal"):
            assert word not in process.output, process.output


def test_a_worker_stopped_at_any_moment_ends_cleanly(start_process):
    chance = random.Random(8)
    until_then = time.monotonic() + lasting(4)
    while time.monotonic() < until_then:
        chains.enqueue_many([jobs.write.item(chance.random() / 20) for _ in range(20)])
        chains.enqueue_many([jobs.attempt.item(chance.random() / 20) for _ in range(20)])
        options = ("--slots", "4", "--shutdown-timeout", str(SHUTDOWN_SECONDS))
        process = start_process(*options, **LIMITS)
        time.sleep(chance.random() * LATEST_SIGNAL_SECONDS)
        was_started = has_started(process)
        process.signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
        if chance.random() < 0.5:
            time.sleep(chance.random() / 10)
            process.signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
        assert_ended_well(process, was_started=was_started)
        assert not Job.objects.with_status("running").exists()
    run_through(start_process, "--burst")
    assert not FailedAttempt.objects.exists()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert_invariants()


def test_a_worker_that_has_finished_ends_cleanly(start_process):
    for options in (["--max-jobs", "5"], ["--burst"]):
        chains.enqueue_many([jobs.write.item(0.0) for _ in range(10)])
        run_through(start_process, *options)
    assert_invariants()


def run_through(start_process, *options):
    process = start_process(*options, LEASE_SECONDS="60")
    until(lambda: not process.is_alive, 60, lambda: process.output)
    assert_ended_well(process, was_started=True)
