"""Others hold locks on jobs that run, time limits are short, and workers are restarted meanwhile."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.db import Error, connection, connections, transaction

from django_jobchains import chains
from django_jobchains.models import DeferredWrite, FailedAttempt, Job
from tests.chaos.app import jobs
from tests.chaos.lasting import lasting
from tests.chaos.oracle import assert_invariants
from tests.shop.models import Effect
from tests.worker.processes import StartProcess, WorkerProcess
from tests.worker.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(lasting(0) + 180),
]

#: How long a lock is held, at the most; the leases of these jobs last two seconds.
MAX_HELD_SECONDS = 5.0
LOCKERS = 3


def lock_a_running_job(chance: random.Random, stopping: threading.Event) -> bool:
    """As a user's transaction does that enqueues with the job as a blocker, or wants to complete it."""
    with transaction.atomic():
        ids = list(Job.objects.filter(status="running").values_list("id", flat=True)[:20])
        if not ids:
            return False
        lock = "FOR SHARE" if chance.random() < 0.3 else "FOR UPDATE"
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT id FROM django_jobchains_job WHERE id = %s {lock} SKIP LOCKED", [chance.choice(ids)]
            )
            if cursor.fetchone() is None:
                return False
        stopping.wait(chance.random() * MAX_HELD_SECONDS)
    return True


@contextmanager
def monkey(name: str, step: Callable[[random.Random, threading.Event], bool], seed: int) -> Iterator[list[int]]:
    """Calls ``step`` again and again on a thread; yields how often it did something."""
    stopping, done, errors = threading.Event(), [0], []
    chance = random.Random(seed)

    def run() -> None:
        try:
            while not stopping.is_set():
                done[0] += step(chance, stopping)
                stopping.wait(0.02)
        except Error as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield done
    finally:
        stopping.set()
        thread.join(30)
    assert not errors
    assert not thread.is_alive()


@contextmanager
def session_defaults(**values: str) -> Iterator[None]:
    """Defaults of the database, for sessions that begin from now on."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        for setting, value in values.items():
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
        try:
            yield
        finally:
            for setting in values:
                cursor.execute(f"ALTER DATABASE {name} RESET {setting}")


def enqueue_some() -> None:
    chains.enqueue_many([jobs.attempt.item(0.01) for _ in range(40)])
    firsts = chains.enqueue_many([jobs.first.item(3) for _ in range(4)])
    chains.enqueue_many([jobs.attempt.item(0.0) for _ in range(4)])
    chains.enqueue_many([jobs.nothing.item(None, blockers=[chain]) for chain in firsts])


def keep_busy(processes: list[WorkerProcess], seconds: float, restart: Callable[[], None] | None = None) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if Job.objects.incomplete().count() < 200:
            enqueue_some()
        time.sleep(0.3)
        if restart is not None:
            restart()
        assert all(process.is_alive for process in processes)


def until_all_completed(processes: list[WorkerProcess]) -> None:
    def left() -> object:
        rows = Job.objects.incomplete().values_list("type_name", "status", "attempt", "crashes", "last_error")[:10]
        return list(rows), list(DeferredWrite.objects.values()), [process.output[-3_000:] for process in processes]

    until(lambda: not Job.objects.exclude(status="completed").exists(), 90, left)


def assert_nothing_ran_twice() -> None:
    """Handlers that returned were not called again; no failure, and no crash, that was not one."""
    assert_invariants()
    attempts = Job.objects.filter(type_name="chaos.attempt")
    assert set(attempts.values_list("attempt", "crashes")) == {(1, 0)}
    assert Effect.objects.filter(job_id__in=attempts.values("id")).count() == attempts.count()
    assert not FailedAttempt.objects.filter(kind="crash").exists()


def lockers(count: int = LOCKERS) -> ExitStack:
    stack = ExitStack()
    for number in range(count):
        stack.enter_context(monkey(f"locker-{number}", lock_a_running_job, seed=number))
    return stack


def test_locks_on_running_jobs_delay_only_these(start_process: StartProcess) -> None:
    enqueue_some()
    processes = [start_process("--slots", "4").until_ready() for _ in range(2)]
    with lockers():
        keep_busy(processes, lasting(8))
    until_all_completed(processes)
    assert_nothing_ran_twice()
    assert not FailedAttempt.objects.exists()


def test_short_time_limits_fail_no_attempt_that_they_do_not_hit(start_process: StartProcess) -> None:
    """Limits that locks reach, and statements of workers under load may."""
    with session_defaults(lock_timeout="100ms", statement_timeout="1s"):
        enqueue_some()
        processes = [start_process("--slots", "4").until_ready() for _ in range(2)]
        with lockers():
            keep_busy(processes, lasting(8))
        until_all_completed(processes)
    assert_nothing_ran_twice()


def test_workers_that_are_restarted_meanwhile_run_nothing_twice(start_process: StartProcess) -> None:
    chance = random.Random(7)
    enqueue_some()
    processes = [start_process("--slots", "4", "--shutdown-timeout", "5").until_ready() for _ in range(2)]

    def restart() -> None:
        if chance.random() < 0.5:
            return
        old = processes.pop(0)
        old.signal(signal.SIGTERM)
        processes.append(start_process("--slots", "4", "--shutdown-timeout", "5").until_ready())
        assert old.wait() == 0

    with lockers(), session_defaults(lock_timeout="200ms", statement_timeout="2s"):
        keep_busy(processes, lasting(12), restart)
    until_all_completed(processes)
    assert_nothing_ran_twice()
