"""Limits of the job log: stored lines, buffered characters, sizes of writes, and no cost for jobs that log nothing."""

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.handlers import job_log
from django_jobchains.handlers.job_log import HALF, MAX_LINES, AttemptLog, JobLogBuffer
from django_jobchains.models import LogLine
from django_jobchains.processors import Processors, Registry, RunningJob
from django_jobchains.store import Store, get_store
from django_jobchains.store.rows import ClaimedJob, LogEntries
from django_jobchains.testing import run_due_jobs
from tests.notes.log_rows import lines
from tests.support.jobs import running


@pytest.fixture
def log_buffer():
    return JobLogBuffer()


@pytest.fixture
def log(db, log_buffer):
    """The log of a running job."""
    return AttemptLog(running(get_store())[0], log_buffer)


def add_lines(log: AttemptLog, *texts: object) -> None:
    for text in texts:
        log.add(20, str(text), None)


def with_id(job: ClaimedJob, number: int) -> ClaimedJob:
    return job._replace(id=UUID(int=number), key=(UUID(int=number), job.lease_number))


def positions(taken: list[LogEntries]) -> list[int]:
    return [line.position for entries in taken for line in entries.lines]


def write_all(store: Store, log_buffer: JobLogBuffer) -> list[int]:
    """Write the buffer, and return the positions of the stored lines."""
    while taken := log_buffer.take():
        assert store.logs.write(taken) == set()
    return list(LogLine.objects.order_by("position").values_list("position", flat=True))


def test_first_and_the_last_of_many_lines_are_kept(log_buffer, log):
    add_lines(log, *range(5 * MAX_LINES))
    assert write_all(get_store(), log_buffer) == [*range(HALF), *range(5 * MAX_LINES - HALF, 5 * MAX_LINES)]


@pytest.mark.parametrize("step", [1, 7, 400, 1_300])
def test_kept_lines_do_not_depend_on_how_often_lines_are_written(log_buffer, log, step):
    total = MAX_LINES + 3 * step
    with patch.object(job_log, "HALF", 50):
        log._deleted = 50
        for start in range(0, total, step if step > 1 else 100):
            add_lines(log, *range(start, min(start + (step if step > 1 else 100), total)))
            kept = write_all(get_store(), log_buffer)
            assert len(kept) <= 100
    assert kept == [*range(50), *range(total - 50, total)]


def test_all_lines_are_kept_up_to_the_limit(log_buffer, log):
    add_lines(log, *range(MAX_LINES))
    assert write_all(get_store(), log_buffer) == [*range(MAX_LINES)]


def test_buffered_characters_of_one_attempt_are_limited(log_buffer, log):
    for _ in range(2_000):
        add_lines(log, "x" * 8_000)
    assert log.characters <= job_log.MAX_CHARACTERS_PER_ATTEMPT
    taken = log_buffer.take()
    assert sum(len(line.text) for entries in taken for line in entries.lines) <= job_log.MAX_CHARACTERS_PER_ATTEMPT
    assert positions(taken)[0] == 0
    assert positions(taken)[-1] == 1_999
    assert (log.characters, log_buffer.take()) == (0, [])


def test_buffered_characters_of_all_attempts_are_limited_and_the_oldest_are_dropped(log_buffer, log):
    job: ClaimedJob = running(get_store())[0]
    with patch.object(job_log, "MAX_CHARACTERS", 10_000):
        add_lines(log, "first")
        for number in range(20):
            add_lines(AttemptLog(with_id(job, number + 1), log_buffer), "x" * 1_000)
    assert log_buffer.dropped == 13
    taken = log_buffer.take()
    assert [entries.job_id.int for entries in taken] == [*range(13, 21)]


def test_lines_of_one_write_are_limited(log_buffer, log):
    job: ClaimedJob = running(get_store())[0]
    for number in range(50):
        add_lines(AttemptLog(with_id(job, number + 1), log_buffer), *["x" * 100] * 100)
    sizes = []
    while taken := log_buffer.take():
        sizes.append(len(positions(taken)))
    assert sum(sizes) == 5_000
    assert max(sizes) <= 2 * job_log.MAX_LINES_AT_ONCE


def test_threads_of_one_job_share_one_sequence_of_positions(db):
    claimed = running(get_store())[0]
    log_buffer = JobLogBuffer()
    begin = threading.Barrier(4)
    attempt: Any = SimpleNamespace(signal=None, log_buffer=log_buffer, max_attempts=1)
    job: RunningJob[Any] = RunningJob(claimed, None, attempt)

    def write() -> None:
        begin.wait(10)
        for _ in range(100):
            job.log("a")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert positions(log_buffer.take()) == [*range(400)]


@pytest.mark.django_db
def test_job_that_logs_nothing_sends_no_statement(monkeypatch):
    registry = Registry()
    processors = Processors()
    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)

    @processors.register("notes.either")
    def either(job: RunningJob[bool]) -> None:
        for number in range(300 if job.input else 0):
            job.log(str(number))
            job.set_progress(number / 300)

    counts = []
    for logs in (False, True):
        chain = either.enqueue(logs)
        with CaptureQueriesContext(connection) as queries:
            run_due_jobs(limit=1, raise_errors=True)
        counts.append(len(queries))
        assert len(lines(chain)) == (300 if logs else 0)
        assert any("logline" in query["sql"] for query in queries) is logs
    assert counts[1] - counts[0] == 2
