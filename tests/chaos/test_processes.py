"""Worker processes that are killed, paused, and stopped while they run jobs."""

import random
import signal
import sqlite3
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs
from tests.support.worker_processes import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def completed() -> int:
    return Job.objects.with_status("completed").count()


def until_count(count: int, process: WorkerProcess) -> None:
    until(lambda: completed() >= count, 30, lambda: process.output)


def until_crashes(count: int) -> None:
    until(lambda: FailedAttempt.objects.filter(kind="crash").count() >= count, 20)


def until_all_completed(*processes: WorkerProcess, seconds: float = 60) -> None:
    def facts() -> Any:
        left = Job.objects.incomplete().values_list("type_name", "status", "attempt", "crashes", "run_at")[:10]
        return list(left), [process.output[-2_000:] for process in processes]

    until(lambda: not Job.objects.exclude(status="completed").exists(), seconds, facts)


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


def test_two_workers_never_run_one_attempt(start_process):
    processes = [start_process(LEASE_SECONDS="60"), start_process(LEASE_SECONDS="60")]
    for process in processes:
        process.until_ready()
    for _ in range(20):
        chains.enqueue_many([jobs.attempt.item(0.0) for _ in range(100)])
    until_all_completed(*processes)
    workers = set(Job.objects.values_list("completed_by", flat=True))
    assert len(workers) == 2
    assert set(Job.objects.values_list("attempt", "lease_number", "crashes")) == {(1, 1, 0)}
    assert Effect.objects.count() == 2_000
    assert_invariants()


def pause(process: WorkerProcess) -> None:
    """Suspend the worker, but not while it holds SQLite's write lock, because nothing could reclaim its jobs then."""
    process.freeze()
    while connection.vendor == "sqlite" and _is_locked():
        process.signal(signal.SIGCONT)
        process.freeze()


def _is_locked() -> bool:
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

    second.signal(signal.SIGTERM)
    assert second.wait() == 0
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


def crashes_of(process: WorkerProcess) -> int:
    return FailedAttempt.objects.filter(kind="crash", worker__contains=f":{process.pid}:").count()


def pause_at_work(process: WorkerProcess) -> bool:
    """Pause the worker, and return whether it holds a job that others can take back. If not, let it continue.

    They cannot take back a job whose row the worker has locked. More jobs are enqueued, because otherwise the other
    worker may have run all of them before this one is paused.
    """
    if Job.objects.with_status("pending").count() < 50:
        chains.enqueue_many([jobs.write.item(0.02) for _ in range(150)])
    pause(process)
    with transaction.atomic():
        jobs_of_process = Job.objects.filter(status="running", leased_by__contains=f":{process.pid}:")
        holds_unlocked = jobs_of_process.select_for_update(skip_locked=connection.vendor == "postgresql").exists()
    if not holds_unlocked:
        process.signal(signal.SIGCONT)
    return holds_unlocked


def test_a_deploy_in_the_middle_of_work_costs_no_attempt(start_process):
    chance = random.Random(7)
    items = [jobs.write.item(chance.random() / 20) for _ in range(200)]
    items += [jobs.attempt.item(chance.random() / 20) for _ in range(200)]
    chains.enqueue_many(items)
    for _ in range(5):
        process = start_process("--slots", "5", LEASE_SECONDS="60", STOP_SECONDS="10")
        wanted = completed() + chance.randrange(5, 60)
        until_count(wanted, process)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert not Job.objects.with_status("running").exists()
    last = start_process(LEASE_SECONDS="60")
    until_all_completed(last)
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert not FailedAttempt.objects.exists()
    assert_invariants()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite")
def test_four_processes_share_one_sqlite_file(start_process):
    processes = [start_process("--slots", "4", LEASE_SECONDS="60") for _ in range(4)]
    for process in processes:
        process.until_ready()
    for _ in range(20):
        chains.enqueue_many([jobs.write.item(0.0) for _ in range(100)])
    until_all_completed(*processes, seconds=100)
    for process in processes:
        process.signal(signal.SIGTERM)
    for process in processes:
        assert process.wait() == 0
        assert "locked" not in process.output
    assert len(set(Job.objects.values_list("completed_by", flat=True))) == 4
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert_invariants()
