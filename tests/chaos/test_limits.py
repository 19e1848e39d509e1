"""The server ends statements that take too long, and has fewer connections than the worker wants."""

import signal
import time
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, connections, transaction

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import EXIT_SECONDS, assert_ends_well, until_all_completed, write_and_attempt
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server, start_process
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]

__all__ = ("cluster", "server", "start_process")

#: The connection of this process, and the connections of a worker's own threads.
OTHER_SESSIONS = 1 + 6
#: The time limits, and the words of their errors.
TIMEOUTS = {
    "statement_timeout": "statement timeout",
    "lock_timeout": "lock timeout",
    "idle_in_transaction_session_timeout": "idle-in-transaction timeout",
}


def execute(statement):
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement)


def end_other_sessions():
    execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@contextmanager
def short(timeout):
    """Set the limits for every other session."""
    execute(f"ALTER DATABASE postgres SET {timeout} = '200ms'")
    end_other_sessions()
    try:
        yield
    finally:
        execute(f"ALTER DATABASE postgres RESET {timeout}")
        end_other_sessions()


@contextmanager
def locked(table):
    with transaction.atomic(using=ALIAS):
        execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_worker_survives_time_limits_of_statements_locks_and_transactions(cluster, start_process):
    write_and_attempt(300, 100, 0.02, using=ALIAS)
    process = start_process("--slots", "4").until_ready()

    def reaches(words):
        """Lock the tables for a moment, and return whether the worker has reached the limit."""
        for table in (Job._meta.db_table, Effect._meta.db_table):
            with locked(table):
                time.sleep(0.5)
            time.sleep(0.3)
        return words in " ".join(FailedAttempt.objects.using(ALIAS).values_list("error", flat=True)) + process.output

    for timeout, words in TIMEOUTS.items():
        with short(timeout):
            chains.enqueue_many([jobs.slow_write.item(0.5, priority=1) for _ in range(4)], using=ALIAS)
            until(lambda words=words: reaches(words), 30, lambda: process.output)
    until_all_completed(process, using=ALIAS)
    assert_invariants(ALIAS)
    assert_ends_well(process)


@pytest.fixture
def crowded(cluster):
    """Limit the server to ten connections."""
    for statement in ("SET max_connections = 10", "RESET max_connections"):
        execute(f"ALTER SYSTEM {statement}")
        reconnect()
        cluster.restart("fast")
        if statement.startswith("SET"):
            yield
            reconnect()


def test_a_worker_works_with_fewer_connections_than_it_wants(crowded, start_process):
    """The worker wants more than twice as many as exist. A handler with a connection can still enqueue."""
    chains.enqueue_many([jobs.write.item(0.02) for _ in range(100)], using=ALIAS)
    process = start_process("--slots", "20")
    refused = FailedAttempt.objects.using(ALIAS).filter(error__contains="too many clients")
    until(lambda: "too many clients" in process.output or refused.exists(), 20, lambda: process.output)
    for _ in range(50):
        jobs.write.enqueue(0.0, using=ALIAS)
        jobs.attempt.enqueue(0.0, using=ALIAS)
    until_all_completed(process, using=ALIAS)
    assert_invariants(ALIAS)
    assert_ends_well(process)


def test_a_worker_without_any_connection_waits_for_one_and_ends_in_time(crowded, start_process):
    chain = jobs.write.enqueue(0.0, using=ALIAS)
    with all_taken():
        process = start_process()
        until(lambda: "trying again" in process.output, 20, lambda: process.output)
        stopped = start_process("--shutdown-timeout", "1")
        until(lambda: "trying again" in stopped.output, 20, lambda: stopped.output)
        since = time.monotonic()
        stopped.signal(signal.SIGTERM)
        assert stopped.wait() == 0
        assert time.monotonic() - since < EXIT_SECONDS
    until_all_completed(process, using=ALIAS)
    assert chain.refresh().status == "completed"
    assert_ends_well(process)


@pytest.mark.django_db(transaction=True)
def test_idle_slots_release_their_connections(processors, start_worker, monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.slots.IDLE_SECONDS", 0.3)
    write = processors.register("chaos.write")(lambda job: Job.objects.count() and None)
    start_worker(slots=8)
    for _ in range(2):
        chains.enqueue_many([write.item() for _ in range(50)])
        until(lambda: not Job.objects.incomplete().exists())
        until(lambda: sessions() <= OTHER_SESSIONS)


def sessions():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@contextmanager
def all_taken():
    taken = []
    try:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            while True:
                other = connections[ALIAS].copy()
                other.connect()
                taken.append(other)
        yield
    finally:
        for other in taken:
            other.close()
