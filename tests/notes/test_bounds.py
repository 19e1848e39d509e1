"""Limits of the job log: stored lines, buffered characters, sizes of writes, and no cost for jobs that log nothing."""

import threading
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.handlers import job_log
from django_jobchains.handlers.job_log import HALF, MAX_LINES, AttemptLog, JobLogBuffer
from django_jobchains.models import LogLine
from django_jobchains.processors import RunningJob
from django_jobchains.testing import run_due_jobs
from tests.notes.conftest import lines
from tests.support.jobs import running


@pytest.fixture
def log_buffer():
    return JobLogBuffer()


@pytest.fixture
def job(store):
    return running(store)[0]


@pytest.fixture
def log(job, log_buffer):
    return AttemptLog(job, log_buffer)


@pytest.fixture
def others(job, log_buffer):
    """Return a function that returns the logs of this many other jobs."""
    ids = (UUID(int=number) for number in range(1, 100))
    return lambda count: [
        AttemptLog(job._replace(id=id_, key=(id_, job.lease_number)), log_buffer)
        for id_, _ in zip(ids, range(count), strict=False)
    ]


def add_lines(log, *texts):
    for text in texts:
        log.add(20, str(text), None)


def positions(taken):
    return [line.position for entries in taken for line in entries.lines]


def write_all(store, log_buffer):
    """Write the buffer, and return the positions of the stored lines."""
    while taken := log_buffer.take():
        assert store.logs.write(taken) == set()
    return list(LogLine.objects.order_by("position").values_list("position", flat=True))


def test_all_lines_up_to_the_limit_are_kept_and_then_the_first_and_last(store, log_buffer, log):
    add_lines(log, *range(MAX_LINES))
    assert write_all(store, log_buffer) == [*range(MAX_LINES)]
    add_lines(log, *range(4 * MAX_LINES))
    assert write_all(store, log_buffer) == [*range(HALF), *range(5 * MAX_LINES - HALF, 5 * MAX_LINES)]


@pytest.mark.parametrize("step", [7, 100, 400, 1_300])
def test_kept_lines_do_not_depend_on_how_often_lines_are_written(store, log_buffer, log, step, monkeypatch):
    total = MAX_LINES + 3 * step
    monkeypatch.setattr(job_log, "HALF", 50)
    log._deleted = 50
    for start in range(0, total, step):
        add_lines(log, *range(start, min(start + step, total)))
        kept = write_all(store, log_buffer)
        assert len(kept) <= 100
    assert kept == [*range(50), *range(total - 50, total)]


def test_buffered_characters_of_one_attempt_are_limited(log_buffer, log):
    add_lines(log, *["x" * 8_000] * 2_000)
    assert log.characters <= job_log.MAX_CHARACTERS_PER_ATTEMPT
    taken = log_buffer.take()
    assert sum(len(line.text) for entries in taken for line in entries.lines) <= job_log.MAX_CHARACTERS_PER_ATTEMPT
    assert (positions(taken)[0], positions(taken)[-1]) == (0, 1_999)
    assert (log.characters, log_buffer.take()) == (0, [])


def test_buffered_characters_of_all_attempts_are_limited_and_the_oldest_are_dropped(
    log_buffer, log, others, monkeypatch
):
    monkeypatch.setattr(job_log, "MAX_CHARACTERS", 10_000)
    add_lines(log, "first")
    for other in others(20):
        add_lines(other, "x" * 1_000)
    assert log_buffer.dropped == 13
    assert [entries.job_id.int for entries in log_buffer.take()] == [*range(13, 21)]


def test_lines_of_one_write_are_limited(log_buffer, others):
    for other in others(50):
        add_lines(other, *["x" * 100] * 100)
    sizes = []
    while taken := log_buffer.take():
        sizes.append(len(positions(taken)))
    assert sum(sizes) == 5_000
    assert max(sizes) <= 2 * job_log.MAX_LINES_AT_ONCE


def test_threads_of_one_job_share_one_sequence_of_positions(job, log_buffer):
    begin = threading.Barrier(4)
    running_job = RunningJob(job, None, SimpleNamespace(signal=None, log_buffer=log_buffer, max_attempts=1))

    def write():
        begin.wait(10)
        for _ in range(100):
            running_job.log("a")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert positions(log_buffer.take()) == [*range(400)]


@pytest.mark.django_db
def test_a_job_that_logs_nothing_sends_no_statement(processors):
    @processors.register("notes.either")
    def either(job):
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
