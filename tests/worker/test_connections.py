"""Threads and connections: each slot has its own, keeps them between attempts, and closes them at the end."""

import sqlite3
import threading
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.statements import statements_of_others
from tests.support.waiting import until, until_completed

SLOTS = 4
#: The connections for claims, results, reaper and keeper, and those of a vendor's listener.
OTHER_CONNECTIONS = 6


@pytest.fixture
def recording(processors):
    """A handler that uses the slot's connection and records the thread's name."""

    @processors.register("worker.noting")
    def recording(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label=threading.current_thread().name)

    return recording


class Opened:
    """Records the driver's connections that Django opens."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def watch(self, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
        self.all.append(connection.connection)

    @property
    def still_open(self) -> int:
        return sum(map(_is_open, self.all))


def _is_open(raw: Any) -> bool:
    if not isinstance(raw, sqlite3.Connection):
        return not raw.closed
    try:
        raw.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


@pytest.fixture
def opened():
    connection.ensure_connection()
    opened = Opened()
    connection_created.connect(opened.watch)
    yield opened
    connection_created.disconnect(opened.watch)


def sessions() -> int:
    """Return the number of the server's sessions in the test's database; 0 on SQLite."""
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def worker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("jobchains-")]


def completed() -> int:
    return Job.objects.with_status("completed").count()


def test_stopped_worker_leaves_no_connection_and_no_thread(recording, start_worker, opened):
    before = set(threading.enumerate())
    sessions_before = sessions()
    worker = start_worker(slots=SLOTS)
    chains.enqueue_many([recording.item() for _ in range(50)])
    until(lambda: completed() == 50)
    assert opened.still_open >= SLOTS
    worker.stop()
    until(lambda: opened.still_open == 0)
    until(lambda: set(threading.enumerate()) <= before)
    until(lambda: sessions() == sessions_before, what=sessions)


def test_threads_have_descriptive_names(recording, start_worker):
    before = set(threading.enumerate())
    start_worker(slots=SLOTS)
    recording.enqueue()
    until(lambda: completed() == 1)
    started = set(threading.enumerate()) - before
    assert {f"jobchains-slot-{number}" for number in range(1, SLOTS + 1)} <= set(worker_threads())
    assert all(thread.name.startswith("jobchains-") for thread in started)
    assert Effect.objects.get().label.startswith("jobchains-slot-")


def test_connections_are_kept_between_attempts(recording, start_worker):
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    with statements_of_others() as statements:
        start_worker(slots=SLOTS)
        chains.enqueue_many([recording.item() for _ in range(200)])
        until(lambda: completed() == 200)
        assert statements.connections <= SLOTS + OTHER_CONNECTIONS


@pytest.mark.postgresql
def test_connection_that_broke_in_a_handler_is_replaced(processors, start_worker):
    @processors.register("worker.breaking")
    def breaking(job: RunningJob[bool]) -> None:
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
    def ended(job: RunningJob[None]) -> None:
        if job.attempt == 1:
            with job.complete(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        Effect.objects.create(job_id=job.id, label="written")

    chain = ended.enqueue()
    start_worker(slots=1, poll_seconds=0.2)
    until_completed(chain)
    assert chain.current_job.attempt == 2


def test_log_of_statements_does_not_grow_under_debug(processors, start_worker, settings):
    settings.DEBUG = True
    lengths: list[int] = []

    @processors.register("worker.logged")
    def logged(job: RunningJob[None]) -> None:
        Effect.objects.create(job_id=job.id, label="written")
        lengths.append(len(connections["default"].queries_log))

    chains.enqueue_many([logged.item() for _ in range(100)])
    start_worker(slots=2)
    until(lambda: completed() == 100)
    assert max(lengths) < 10
