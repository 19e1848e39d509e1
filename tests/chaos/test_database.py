"""The database restarts, ends sessions, and stops responding while a worker runs."""

import random
import signal
import time
from typing import Any

import pytest
from django.db import connections

from django_jobchains import chains
from django_jobchains.models import Job
from tests.chaos.lasting import lasting
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server, start_process
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs
from tests.support.worker_processes import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(lasting(0) + 120)]

__all__ = ("cluster", "server", "start_process")

#: How long stopping may take in addition to its timeout.
EXIT_SECONDS = 10.0


def completed() -> int:
    return Job.objects.using(ALIAS).with_status("completed").count()


def left() -> Any:
    return list(Job.objects.using(ALIAS).incomplete().values_list("status", "attempt", "crashes", "last_error")[:10])


def until_count(count: int, process: WorkerProcess) -> None:
    until(lambda: completed() >= count, 30, lambda: process.output[-3_000:])


def until_all_completed(process: WorkerProcess, seconds: float = 60) -> None:
    until(
        lambda: not Job.objects.using(ALIAS).exclude(status="completed").exists(),
        seconds,
        lambda: (left(), process.output[-3_000:]),
    )


def test_a_worker_survives_restarts_of_its_database(cluster, start_process):
    chains.enqueue_many([jobs.write.item(0.02) for _ in range(900)], using=ALIAS)
    chains.enqueue_many([jobs.step.item(9) for _ in range(10)], using=ALIAS)
    process = start_process("--slots", "4")
    for count, mode in ((100, "fast"), (300, "immediate"), (500, "fast"), (700, "immediate")):
        until_count(count, process)
        cluster.restart(mode)
        reconnect()
    until_all_completed(process)
    assert Job.objects.using(ALIAS).count() == 1_000
    assert_invariants(ALIAS)
    assert process.is_alive
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_worker_started_without_its_database_waits_for_it(cluster, start_process):
    chain = jobs.write.enqueue(0.0, using=ALIAS)
    cluster.stop()
    reconnect()
    process = start_process()
    until(lambda: "trying again" in process.output, 30, lambda: process.output)
    assert process.is_alive
    cluster.start()
    until_completed(chain, 30, lambda: process.output)
    assert_invariants(ALIAS)


def test_a_worker_survives_the_end_of_its_sessions(cluster, start_process):
    chance = random.Random(11)
    chains.enqueue_many([jobs.write.item(0.02) for _ in range(500)], using=ALIAS)
    chains.enqueue_many([jobs.attempt.item(0.02) for _ in range(300)], using=ALIAS)
    process = start_process("--slots", "4")
    until(lambda: completed() >= 10, 30, lambda: process.output)
    ended = 0
    until_then = time.monotonic() + lasting(5)
    while time.monotonic() < until_then or ended <= 10:
        if left_count() < 100:
            enqueue_mixed()
        ended += end_a_session(chance)
        time.sleep(0.15)
    until_all_completed(process)
    assert process.is_alive
    assert_invariants(ALIAS)


def left_count() -> int:
    return Job.objects.using(ALIAS).incomplete().count()


def enqueue_mixed() -> None:
    items = [*(jobs.write.item(0.01) for _ in range(60)), *(jobs.attempt.item(0.01) for _ in range(40))]
    chains.enqueue_many([*items, *(jobs.first.item(3) for _ in range(5))], using=ALIAS)


def test_a_worker_survives_a_database_that_restarts_every_few_seconds(cluster, start_process):
    """Some restarts come while the worker is still reconnecting."""
    chance = random.Random(12)
    process = start_process("--slots", "4")
    until_then = time.monotonic() + lasting(8)
    while time.monotonic() < until_then:
        enqueue_mixed()
        time.sleep(chance.random() * 2)
        cluster.restart(chance.choice(["fast", "immediate"]))
        reconnect()
    until_all_completed(process)
    assert process.is_alive
    assert_invariants(ALIAS)
    process.signal(signal.SIGTERM)
    assert process.wait(EXIT_SECONDS) == 0


def end_a_session(chance: random.Random) -> int:
    """End a random session of the worker, and return 1, or 0 if it has none. All other sessions are the worker's."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        pids = [pid for (pid,) in cursor.fetchall()]
        if pids:
            cursor.execute("SELECT pg_terminate_backend(%s)", [chance.choice(pids)])
    return bool(pids)


@pytest.mark.parametrize("state", ["stopped", "frozen"])
def test_a_worker_ends_in_time_although_its_database_does_not_answer(cluster, start_process, state):
    chain = jobs.heed.enqueue(using=ALIAS)
    process = start_process("--shutdown-timeout", "1")
    until(lambda: Effect.objects.using(ALIAS).exists(), 30, lambda: process.output)
    reconnect()
    try:
        cluster.stop("immediate") if state == "stopped" else cluster.freeze()
        since = time.monotonic()
        process.signal(signal.SIGTERM)
        process.wait()
        assert time.monotonic() - since < 1 + EXIT_SECONDS
    finally:
        cluster.start() if state == "stopped" else cluster.thaw()
    other = start_process()
    until(lambda: chain.refresh().current_job.attempt > 1, 30, lambda: other.output)


def test_attempts_end_before_their_lease_when_the_database_does_not_answer(cluster, start_process):
    """Another worker may start the job when its lease of 2 seconds has ended. The limit allows for a busy machine."""
    jobs.heed.enqueue(using=ALIAS)
    process = start_process("--verbosity", "2")
    until(lambda: Effect.objects.using(ALIAS).filter(label="started").exists(), 30, lambda: process.output)
    try:
        cluster.freeze()
        frozen = time.monotonic()
        until(lambda: "lost its lease" in process.output, 10, lambda: process.output)
        assert time.monotonic() - frozen < 2.0 + 3.0
        assert ": error" in process.output
    finally:
        cluster.thaw()
    until(lambda: Effect.objects.using(ALIAS).filter(label="aborted: error").exists(), 15, lambda: process.output)
    until(lambda: Effect.objects.using(ALIAS).filter(label="started").count() == 2, 15, lambda: process.output)
    assert_invariants(ALIAS, all_completed=False)
