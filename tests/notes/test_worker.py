"""A worker writes the logs of its jobs while they run, when they end, and when the database is available again."""

import threading

import pytest
from django.db import DataError, OperationalError, connection

from django_jobchains.models import Job, JobProgress, LogLine
from django_jobchains.store.job_logs import Logs
from django_jobchains.worker import log_writer
from tests.notes.conftest import progress, texts
from tests.support.waiting import until, until_completed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def echo(processors):
    """A type whose handler logs its input."""

    @processors.register("notes.echo")
    def echo(job):
        job.log(job.input)

    return echo


@pytest.fixture
def write_with(monkeypatch):
    """Return a function that replaces ``Logs.write`` by a function of the original and the entries."""
    write = Logs.write

    def replace(function):
        monkeypatch.setattr(
            Logs, "write", lambda logs, entries: function(lambda entries: write(logs, entries), entries)
        )

    return replace


@pytest.mark.parametrize("kind", ["plain", "atomic", "async"])
def test_log_and_progress_are_written_while_the_job_runs(start_worker, processors, gate, kind):
    if kind == "atomic" and connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time: the log is written when the handler's transaction has ended")

    def report(job):
        job.log("started")
        job.set_progress(0.5, "half")

    def plain(job):
        report(job)
        assert gate.wait(20)

    async def asynchronous(job):
        report(job)
        while not gate.is_set():
            await job.signal.async_wait(0.05)

    options = {"mode": "atomic"} if kind == "atomic" else {}
    handler = processors.register(f"notes.{kind}", **options)(asynchronous if kind == "async" else plain)
    chain = handler.enqueue()
    start_worker()
    until(lambda: texts(chain) == ["started"] and JobProgress.objects.exists())
    assert (progress(chain), chain.refresh().status) == ((0.5, "half"), "running")
    gate.set()
    until_completed(chain)


def test_lines_of_a_failing_attempt_are_written_at_once(start_worker, processors, monkeypatch):
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 3600)

    @processors.register("notes.failing", max_attempts=1)
    def fail(job):
        job.log("last words")
        raise ValueError("no")

    chain = fail.enqueue()
    start_worker()
    until(lambda: texts(chain) == ["last words"])


def test_last_lines_are_written_before_the_worker_ends(make_worker, echo, monkeypatch):
    monkeypatch.setattr(log_writer, "REST_SECONDS", 3600)
    chains = [echo.enqueue("brief") for _ in range(20)]
    make_worker().run_until_idle()
    assert [texts(chain) for chain in chains] == [["brief"]] * 20


def test_nothing_is_written_for_a_job_that_logs_nothing(make_worker, processors, write_with):
    calls = []
    write_with(lambda write, entries: calls.append(entries) or set())
    chain = processors.register("notes.silent")(lambda job: None).enqueue()
    make_worker().run_until_idle()
    assert (chain.refresh().status, calls) == ("completed", [])


def test_lines_are_written_when_the_database_is_available_again(start_worker, echo, write_with, monkeypatch):
    is_available, tried = threading.Event(), threading.Semaphore(0)

    def write_if_available(write, entries):
        tried.release()
        if not is_available.is_set():
            raise OperationalError("the server is gone")
        return write(entries)

    write_with(write_if_available)
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.05)
    start_worker()
    first = echo.enqueue("first")
    until_completed(first)
    assert tried.acquire(timeout=10)
    second = echo.enqueue("second")
    until_completed(second)
    assert not LogLine.objects.exists()
    is_available.set()
    until(lambda: (texts(first), texts(second)) == (["first"], ["second"]))


def test_a_log_that_cannot_be_stored_does_not_affect_other_jobs(start_worker, echo, write_with, caplog):
    bad, *good = [echo.enqueue(f"job {number}") for number in range(4)]

    def refuse(write, entries):
        if any(each.job_id == bad.id for each in entries):
            raise DataError("no")
        return write(entries)

    write_with(refuse)
    worker = start_worker()
    for chain in [bad, *good]:
        until_completed(chain)
    until(lambda: LogLine.objects.count() == 3)
    assert worker.stop() == 0
    assert not worker.failed
    assert [texts(chain) for chain in good] == [["job 1"], ["job 2"], ["job 3"]]
    assert "which continue to run: DataError: no" in caplog.text


def test_the_log_of_a_locked_job_is_written_later(start_worker, echo, write_with, monkeypatch):
    refused = []

    def refuse_once(write, entries):
        if refused:
            return write(entries)
        refused.extend(entries)
        return {each.key for each in entries}

    write_with(refuse_once)
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 0.02)
    start_worker()
    chain = echo.enqueue("patient")
    until(lambda: texts(chain) == ["patient"])


def test_an_attempt_that_lost_its_lease_writes_no_more_log(start_worker, processors, gate):
    @processors.register("notes.slow")
    def slow(job):
        job.log("mine")
        assert gate.wait(20)
        job.log("not mine any more")
        job.set_progress(1)

    chain = slow.enqueue()
    worker = start_worker()
    until(lambda: texts(chain) == ["mine"])
    Job.objects.filter(pk=chain.id).update(status="cancelled", lease_number=9, leased_by=None, leased_until=None)
    gate.set()
    until(lambda: not worker.running)
    worker.stop()
    assert (texts(chain), JobProgress.objects.count()) == (["mine"], 0)


def test_dropped_lines_are_counted(start_worker, echo, monkeypatch, caplog):
    monkeypatch.setattr("django_jobchains.handlers.job_log.MAX_CHARACTERS", 250)
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 3600)
    worker = start_worker(slots=1)
    worker.components.context.log_buffer.ended = lambda key: None
    chains = [echo.enqueue("x") for _ in range(4)]
    for chain in chains:
        until_completed(chain)
    worker.stop()
    assert sum(len(texts(chain)) for chain in chains) == 1
    assert "dropped 3 log lines of jobs" in caplog.text


def test_an_idle_log_writer_closes_its_connection_and_ends_with_the_worker(start_worker, echo, events, monkeypatch):
    closed, close = threading.Event(), log_writer.close_thread_connections
    monkeypatch.setattr(log_writer, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(log_writer, "close_thread_connections", lambda: (close(), closed.set()))
    worker = start_worker()
    chain = echo.enqueue("a")
    until(lambda: texts(chain) == ["a"])
    closed.clear()
    assert closed.wait(10)
    worker.stop()
    assert not worker.components.threads["log-writer"].is_alive
    assert not worker.is_stuck
