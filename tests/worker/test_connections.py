"""Threads and connections: each slot has its own, keeps them between attempts, and closes them at the end."""

import sqlite3
import threading

import psycopg
import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_jobchains import chains
from django_jobchains.db.libpq import add_network_options
from django_jobchains.models import Job
from django_jobchains.telemetry.events import AttemptEnded, ThreadFailed
from tests.shop.models import Effect
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import completed

SLOTS = 4
#: The connections for claims, results, reaper and keeper, and those of a vendor's listener.
OTHER_CONNECTIONS = 6


@pytest.fixture
def recording(processors):
    """A type whose handler uses the slot's connection and records the thread's name."""

    @processors.register("worker.noting")
    def recording(job):
        Effect.objects.create(job_id=job.id, label=threading.current_thread().name)

    return recording


@pytest.fixture
def opened():
    """The driver's connections that Django opens."""
    connection.ensure_connection()
    opened = []

    def watch(connection, **kwargs):
        opened.append(connection.connection)

    connection_created.connect(watch)
    yield opened
    connection_created.disconnect(watch)


def is_open(raw):
    if not isinstance(raw, sqlite3.Connection):
        return not raw.closed
    try:
        raw.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def sessions():
    """Return the number of the server's sessions in the test's database; 0 on SQLite."""
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]


def test_stopped_worker_leaves_no_connection_and_no_thread(recording, start_worker, opened):
    before, sessions_before = set(threading.enumerate()), sessions()
    worker = start_worker(slots=SLOTS)
    chains.enqueue_many([recording.item() for _ in range(50)])
    until(lambda: completed() == 50)
    started = {thread.name for thread in set(threading.enumerate()) - before}
    assert started >= {f"jobchains-slot-{number}" for number in range(1, SLOTS + 1)}
    assert all(name.startswith("jobchains-") for name in started)
    assert all(effect.label.startswith("jobchains-slot-") for effect in Effect.objects.all())
    assert sum(map(is_open, opened)) >= SLOTS
    worker.stop()
    until(lambda: not any(map(is_open, opened)))
    until(lambda: set(threading.enumerate()) <= before)
    until(lambda: sessions() == sessions_before, what=sessions)


def test_connections_are_kept_between_attempts(recording, start_worker):
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    with statements_of_others() as statements:
        start_worker(slots=SLOTS)
        chains.enqueue_many([recording.item() for _ in range(200)])
        until(lambda: completed() == 200)
        assert statements.connections <= SLOTS + OTHER_CONNECTIONS


def test_log_of_statements_does_not_grow_under_debug(processors, start_worker, settings):
    settings.DEBUG = True
    lengths = []

    @processors.register("worker.logged")
    def logged(job):
        Effect.objects.create(job_id=job.id, label="written")
        lengths.append(len(connections["default"].queries_log))

    chains.enqueue_many([logged.item() for _ in range(100)])
    start_worker(slots=2)
    until(lambda: completed() == 100)
    assert max(lengths) < 10


# Connections that break


@pytest.mark.postgresql
def test_connection_that_broke_in_a_handler_is_replaced(processors, start_worker):
    @processors.register("worker.breaking")
    def breaking(job):
        Effect.objects.create(job_id=job.id, label="before")
        if job.input and job.attempt == 1:
            connection.connection.close()
            Effect.objects.create(job_id=job.id, label="after")

    enqueued = chains.enqueue_many([breaking.item(number % 2 == 0) for number in range(10)])
    start_worker(slots=1, poll_seconds=0.2)
    until(lambda: completed() == 10)
    assert [chain.refresh().current_job.attempt for chain in enqueued] == [2, 1] * 5


@pytest.mark.postgresql
def test_connection_closed_by_the_server_in_a_handler_is_replaced(processors, start_worker):
    @processors.register("worker.ended")
    def ended(job):
        if job.attempt == 1:
            with job.complete(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        Effect.objects.create(job_id=job.id, label="written")

    chain = ended.enqueue()
    start_worker(slots=1, poll_seconds=0.2)
    until_completed(chain)
    assert chain.current_job.attempt == 2


@pytest.mark.postgresql
def test_sessions_that_the_server_ended_while_they_were_idle_are_replaced(recording, start_worker, events, monkeypatch):
    """As after ``idle_session_timeout``. No thread fails, so that nothing that depends on an end is lost."""
    monkeypatch.setattr("django_jobchains.worker.threads.IDLE_SECONDS", 0)
    worker = start_worker(poll_seconds=0.2)
    until_completed(recording.enqueue())
    writer = worker.components.threads["outcome-writer"]
    until(lambda: worker.components.outcome_writer.is_drained and not writer.busy_seconds)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    until_completed(recording.enqueue())
    until(lambda: len(events.of(AttemptEnded)) == 2)
    assert writer.name not in {event.thread for event in events.of(ThreadFailed)}


@pytest.mark.postgresql
def test_read_only_sessions_are_replaced(recording, start_worker, events, monkeypatch):
    """They were opened while the database was read-only, or a proxy led to a standby. ``SELECT 1`` succeeds there."""
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.2)

    with connection.cursor() as cursor:
        alter = f"ALTER DATABASE {connection.ops.quote_name(connection.settings_dict['NAME'])}"
        cursor.execute(f"{alter} SET default_transaction_read_only = on")
        try:
            worker = start_worker(poll_seconds=0.1)
            threads = worker.components.threads
            until(lambda: events.of(ThreadFailed))
        finally:
            cursor.execute(f"{alter} RESET default_transaction_read_only")
    assert all("The session is read-only" in event.error for event in events.of(ThreadFailed))
    chain = recording.enqueue()
    until_completed(chain)
    assert chain.current_job.attempt == 1
    until(lambda: not any(thread.is_failing for thread in threads.values()))
    assert threads["claim-loop"].connection.connection is not None  # for the cancellation of a claim


def lose_the_reply(*, is_committed):
    """Cut off this thread's next commit, before or after it reaches the server.

    It may or may not have succeeded: the lease number decides.
    """
    raw = connection.connection
    commit = raw.commit

    def cut():
        if is_committed:
            commit()
        raw.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    raw.commit = cut


@pytest.mark.postgresql
@pytest.mark.parametrize("is_committed", [True, False])
def test_completion_is_written_once_if_its_commit_gets_no_reply(processors, start_worker, settings, is_committed):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}

    @processors.register("worker.cut")
    def cut(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
            if job.attempt == 1 and job.input == "first":
                lose_the_reply(is_committed=is_committed)
            return job.continue_with("worker.cut", "second") if job.input == "first" else "done"

    start_worker(poll_seconds=0.2)
    chain = cut.enqueue("first")
    until(lambda: chain.refresh().status == "completed" and chain.jobs.count() == 2)
    assert [job.attempt for job in chain.jobs] == ([1, 1] if is_committed else [2, 1])
    assert Effect.objects.filter(job_id=chain.id).count() == 1
    assert stays(lambda: Job.objects.count() == 2 and Effect.objects.count() == 2, 0.3)


@pytest.mark.postgresql
@pytest.mark.parametrize("is_committed", [True, False])
def test_prepare_is_retried_if_its_commit_gets_no_reply(processors, start_worker, is_committed):
    @processors.register("worker.cut_early")
    def cut_early(job):
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")
            if job.attempt == 1:
                lose_the_reply(is_committed=is_committed)
        Effect.objects.create(job_id=job.id, label="continued")

    start_worker(poll_seconds=0.2)
    chain = cut_early.enqueue()
    until_completed(chain)
    assert chain.current_job.attempt == 2
    assert Effect.objects.filter(label="prepared").count() == 1 + is_committed
    assert Effect.objects.filter(label="continued").count() == 1


@pytest.fixture(params=["9000", None])
def network_options(request, db, monkeypatch):
    """Let this process open connections as worker processes do. Returns options of the project; None is unset."""
    options = {"keepalives_idle": 7, "tcp_user_timeout": request.param}
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)
    add_network_options()
    yield options
    connection_created.disconnect(dispatch_uid="jobchains_network_options")


@pytest.mark.postgresql
def test_the_server_detects_a_vanished_worker_as_the_worker_detects_a_vanished_server(network_options):
    if connection.settings_dict["HOST"].startswith("/") or not connection.settings_dict["HOST"]:
        pytest.skip("needs a connection over a network")
    worker = connection.copy()
    try:
        with worker.cursor() as cursor:
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name ~ '^tcp_(keepalives|user)'")
            found = dict(cursor.fetchall())
    finally:
        worker.close()
    assert found == {
        "tcp_keepalives_idle": "7",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": network_options["tcp_user_timeout"] or "0",
    }
