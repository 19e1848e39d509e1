"""The database restarts, ends sessions, and stops responding while a worker runs."""

import random
import signal
import time

import pytest
from django.db import connections

from django_jobchains import chains
from django_jobchains.models import Job
from tests.chaos.oracle import (
    EXIT_SECONDS,
    assert_ends_well,
    completed,
    lasting,
    until_all_completed,
    write_and_attempt,
)
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server, start_process
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(lasting(0) + 120)]

__all__ = ("cluster", "server", "start_process")


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
    write_and_attempt(500, 300, 0.02, using=ALIAS)
    process = start_process("--slots", "4")
    until(lambda: completed(ALIAS) >= 10, 30, lambda: process.output)
    ended = 0
    until_then = time.monotonic() + lasting(5)
    while time.monotonic() < until_then or ended <= 10:
        if Job.objects.using(ALIAS).incomplete().count() < 100:
            enqueue_mixed()
        ended += end_a_session(chance)
        time.sleep(0.15)
    until_all_completed(process, using=ALIAS)
    assert_invariants(ALIAS)
    assert_ends_well(process)


def enqueue_mixed():
    write_and_attempt(60, 40, 0.01, using=ALIAS)
    chains.enqueue_many([jobs.first.item(3) for _ in range(5)], using=ALIAS)


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
    until_all_completed(process, using=ALIAS)
    assert_invariants(ALIAS)
    assert_ends_well(process)


def end_a_session(chance):
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


def test_a_supervisor_lets_a_worker_end_although_its_database_does_not_answer(cluster, start_process):
    """The handlers do not end either, so each step takes as long as it may, and one a second longer than usual."""
    chains.enqueue_many([jobs.stuck.item(60.0) for _ in range(4)], using=ALIAS)
    process = start_process("--processes", "1", "--slots", "4", "--shutdown-timeout", "1", ABORT_SECONDS="2")
    until(lambda: Effect.objects.using(ALIAS).count() == 4, 30, lambda: process.output)
    reconnect()
    try:
        cluster.freeze()
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.output
    finally:
        cluster.thaw()
