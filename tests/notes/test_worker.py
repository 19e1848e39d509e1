"""A worker writes the logs of its jobs while they run, when they end, and when the database is available again."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection

from django_jobchains.models import Chain, Job, JobProgress, LogLine
from django_jobchains.processors import Processors, RunningJob
from django_jobchains.store.job_logs import Logs
from django_jobchains.store.rows import AttemptKey, LogEntries
from django_jobchains.worker import log_writer
from tests.notes.log_rows import progress, texts
from tests.support.waiting import until, until_completed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def released():
    """The event that handlers wait for. It is set at the end of the test, so that none of them remains."""
    released = threading.Event()
    yield released
    released.set()


def handlers_of_each_kind(processors: Processors, released: threading.Event) -> dict[str, Any]:
    @processors.register("notes.plain")
    def plain(job: RunningJob[Any]) -> None:
        job.log("started")
        job.set_progress(0.5, "half")
        assert released.wait(20)

    @processors.register("notes.atomic", mode="atomic")
    def atomic(job: RunningJob[Any]) -> None:
        plain.processor.function(job)

    @processors.register("notes.async")
    async def asynchronous(job: RunningJob[Any]) -> None:
        job.log("started")
        job.set_progress(0.5, "half")
        while not released.is_set():
            await job.signal.async_wait(0.05)

    return {"plain": plain, "atomic": atomic, "async": asynchronous}


@pytest.mark.parametrize("kind", ["plain", "atomic", "async"])
def test_log_and_progress_are_written_while_the_job_runs(start_worker, processors, released, kind):
    handlers = handlers_of_each_kind(processors, released)
    if kind == "atomic" and connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time: the log is written when the handler's transaction has ended")
    chain: Chain = handlers[kind].enqueue()
    start_worker()
    until(lambda: texts(chain) == ["started"] and JobProgress.objects.exists())
    assert (progress(chain), chain.refresh().status) == ((0.5, "half"), "running")
    released.set()
    until_completed(chain)


def test_lines_of_a_failing_attempt_are_written_at_once(start_worker, processors, monkeypatch):
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 3600)

    @processors.register("notes.failing", max_attempts=1)
    def fail(job: RunningJob[Any]) -> None:
        job.log("last words")
        raise ValueError("no")

    chain = fail.enqueue()
    start_worker()
    until(lambda: texts(chain) == ["last words"])


def test_last_lines_are_written_before_the_worker_ends(make_worker, processors, monkeypatch):
    monkeypatch.setattr(log_writer, "REST_SECONDS", 3600)

    @processors.register("notes.brief")
    def brief(job: RunningJob[Any]) -> None:
        job.log("brief")

    chains = [brief.enqueue() for _ in range(20)]
    make_worker().run_until_idle()
    assert [texts(chain) for chain in chains] == [["brief"]] * 20


def test_nothing_is_written_for_a_job_that_logs_nothing(make_worker, processors, monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(Logs, "write", lambda logs, entries: calls.append(entries) or set())

    @processors.register("notes.silent")
    def silent(job: RunningJob[Any]) -> None:
        return None

    chain = silent.enqueue()
    make_worker().run_until_idle()
    assert (chain.refresh().status, calls) == ("completed", [])


Write = Callable[[Logs, list[LogEntries]], set[AttemptKey]]


def fail_writes(monkeypatch: pytest.MonkeyPatch, error_of: Callable[[list[LogEntries]], Exception | None]) -> None:
    """Make the store raise the error that a function returns for the entries."""
    write: Write = Logs.write

    def failing_write(logs: Logs, entries: list[LogEntries]) -> set[AttemptKey]:
        if error := error_of(entries):
            raise error
        return write(logs, entries)

    monkeypatch.setattr(Logs, "write", failing_write)


@pytest.fixture
def echo(processors):
    """A type whose handler logs its input."""

    @processors.register("notes.echo")
    def echo(job: RunningJob[str]) -> None:
        job.log(job.input)

    return echo


def test_lines_are_written_when_the_database_is_available_again(start_worker, echo, monkeypatch):
    unavailable = threading.Event()
    unavailable.set()
    tried = threading.Semaphore(0)

    def error_of(entries: list[LogEntries]) -> Exception | None:
        tried.release()
        return OperationalError("the server is gone") if unavailable.is_set() else None

    fail_writes(monkeypatch, error_of)
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.05)
    start_worker()
    first = echo.enqueue("first")
    until_completed(first)
    assert tried.acquire(timeout=10)
    second = echo.enqueue("second")
    until_completed(second)
    assert not LogLine.objects.exists()
    unavailable.clear()
    until(lambda: (texts(first), texts(second)) == (["first"], ["second"]))


def test_log_that_cannot_be_stored_does_not_affect_other_jobs(start_worker, echo, monkeypatch, caplog):
    bad = echo.enqueue("bad")
    good = [echo.enqueue(f"good {number}") for number in range(3)]
    fail_writes(monkeypatch, lambda entries: DataError("no") if any(e.job_id == bad.id for e in entries) else None)
    worker = start_worker()
    for chain in [bad, *good]:
        until_completed(chain)
    until(lambda: LogLine.objects.count() == 3)
    assert worker.stop() == 0
    assert not worker.failed
    assert [texts(chain) for chain in good] == [["good 0"], ["good 1"], ["good 2"]]
    assert "which continue to run: DataError: no" in caplog.text


def test_log_of_a_locked_job_is_written_later(start_worker, echo, monkeypatch):
    write: Write = Logs.write
    refused: list[LogEntries] = []

    def refuse_once(logs: Logs, entries: list[LogEntries]) -> set[AttemptKey]:
        if refused:
            return write(logs, entries)
        refused.extend(entries)
        return {each.key for each in entries}

    monkeypatch.setattr(Logs, "write", refuse_once)
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 0.02)
    start_worker()
    chain = echo.enqueue("patient")
    until(lambda: texts(chain) == ["patient"])


def test_attempt_that_lost_its_lease_writes_no_more_log(start_worker, processors, released):
    @processors.register("notes.slow")
    def slow(job: RunningJob[Any]) -> None:
        job.log("mine")
        assert released.wait(20)
        job.log("not mine any more")
        job.set_progress(1)

    chain = slow.enqueue()
    worker = start_worker()
    until(lambda: texts(chain) == ["mine"])
    Job.objects.filter(pk=chain.id).update(status="cancelled", lease_number=9, leased_by=None, leased_until=None)
    released.set()
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


def test_idle_log_writer_closes_its_connection_and_ends_with_the_worker(start_worker, echo, events, monkeypatch):
    closed = threading.Event()
    close_thread_connections = log_writer.close_thread_connections
    monkeypatch.setattr(log_writer, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(log_writer, "close_thread_connections", lambda: (close_thread_connections(), closed.set()))
    worker = start_worker()
    chain = echo.enqueue("a")
    until(lambda: texts(chain) == ["a"])
    closed.clear()
    assert closed.wait(10)
    worker.stop()
    assert not worker.components.threads["log-writer"].is_alive
    assert not worker.is_stuck
