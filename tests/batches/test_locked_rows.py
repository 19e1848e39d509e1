"""If another transaction has locked one job of a batch, only that job is delayed."""

from typing import Any

import pytest
from django.db import connection
from psycopg import IsolationLevel

from django_jobchains import chains
from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.exceptions import JobLocked
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Batch
from tests.batches.test_transactions import statuses, write_effect, written_by
from tests.shop.models import Effect
from tests.support.connections import Actor, holding
from tests.support.waiting import until, until_completed

pytestmark = pytest.mark.postgresql


@pytest.fixture
def holders():
    """The other transactions that a handler has started."""
    return []


def lock(holders: list[Actor], *ids: Any) -> None:
    """Lock jobs in another transaction, at the first call."""
    if not holders:
        holders.append(holding(lambda store: store.attempts.lock_all(ids)))


def is_a_session_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


def assert_no_attempt_was_used(enqueued: list[Chain]) -> None:
    assert {(job.attempt, job.crashes) for job in Job.objects.all()} == {(1, 0)}
    assert written_by("written") == {chain.id for chain in enqueued}
    assert Effect.objects.filter(label="written").count() == len(enqueued)
    assert not FailedAttempt.objects.exists()


@pytest.mark.parametrize("phase", ["prepare", "complete", "swallowing"])
def test_others_run_again_without_the_locked_job(processors, start_worker, holders, monkeypatch, phase):
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 0.1)
    sizes = []

    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        sizes.append(len(jobs))
        lock(holders, jobs[min(1, len(jobs) - 1)].id)
        if phase == "prepare":
            with jobs.prepare():
                pass
        try:
            with jobs.complete():
                for job in jobs:
                    write_effect(job, "written")
        except JobLocked:
            if phase != "swallowing":
                raise

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    start_worker(slots=1, poll_seconds=0.2)
    until_completed(enqueued[0])
    until_completed(enqueued[2])
    assert statuses(enqueued) == ["completed", "running", "completed"]
    holders[0].result()
    until_completed(enqueued[1])
    assert_no_attempt_was_used(enqueued)
    assert sum(sizes) == 6  # the batch, and each of its jobs once more


def test_batch_in_atomic_mode_continues_without_the_locked_job(processors, start_worker, holders, monkeypatch):
    """The job is locked before the handler is called, so the handler gets only the other jobs."""
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 0.1)
    begin = BatchAttempt.begin

    def lock_before(attempt: BatchAttempt) -> None:
        lock(holders, attempt.jobs[0].id)
        begin(attempt)

    monkeypatch.setattr(BatchAttempt, "begin", lock_before)
    sizes = []

    @processors.register("batches.atomic", batch_limit=5, mode="atomic")
    def atomic(jobs: Batch[int]) -> None:
        sizes.append(len(jobs))
        for job in jobs:
            write_effect(job, "written")

    enqueued = chains.enqueue_many([atomic.item(number) for number in range(3)])
    start_worker(slots=1, poll_seconds=0.2)
    until(lambda: statuses(enqueued).count("completed") == 2)
    assert sum(sizes) == 2
    holders[0].result()
    for chain in enqueued:
        until_completed(chain)
    assert_no_attempt_was_used(enqueued)


def test_batch_waits_for_a_short_lock_and_keeps_the_lock_timeout_of_the_handler(
    processors, start_worker, holders, monkeypatch
):
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 20)
    seen = []

    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        with connection.cursor() as cursor:
            lock(holders, jobs[1].id)
            cursor.execute("SET lock_timeout = '7s'")
            with jobs.complete():
                cursor.execute("SHOW lock_timeout")
                seen.append((len(jobs), cursor.fetchone()[0]))
                for job in jobs:
                    write_effect(job, "written")

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    start_worker(slots=1)
    until(lambda: holders and is_a_session_waiting())
    holders[0].result()
    for chain in enqueued:
        until_completed(chain)
    assert seen == [(3, "7s")]
    assert_no_attempt_was_used(enqueued)


def test_jobs_that_ended_after_a_wait_for_a_lock_stay_ended(processors, start_worker, holders, monkeypatch):
    """Only the transaction that was committed counts, not the first try to open it."""
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 20)

    @processors.register("batches.fails", batch_limit=5)
    def fails(jobs: Batch[int]) -> None:
        if not holders:
            lock(holders, jobs[1].id)
            with jobs.prepare():
                write_effect(jobs[0], "prepared")
            jobs[0].finish("kept")
            raise ValueError("after the lock")

    enqueued = chains.enqueue_many([fails.item(number) for number in range(2)])
    start_worker(slots=1)
    until(lambda: holders and is_a_session_waiting())
    holders[0].result()
    for chain in enqueued:
        until_completed(chain)
    assert [(chain.output, chain.jobs.get().attempt) for chain in enqueued] == [("kept", 1), (None, 2)]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=str)
def test_job_that_was_written_while_the_batch_waited_is_read_again(
    processors, start_worker, holders, monkeypatch, level
):
    """Above READ COMMITTED, a transaction that waited for the row gets a serialization failure."""
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 20)
    connection.ensure_connection()  # the connection of this thread keeps its options after the test
    options = {**connection.settings_dict["OPTIONS"], "isolation_level": level}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        holders.append(holding(lambda store: Job.objects.filter(id=jobs[1].id).update(crashes=0)))
        with jobs.complete():
            for job in jobs:
                write_effect(job, "written")

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    start_worker(slots=1)
    until(lambda: holders and is_a_session_waiting())
    [holder] = holders
    holder.result()
    for chain in enqueued:
        until_completed(chain)
    assert_no_attempt_was_used(enqueued)


def test_batch_that_locked_its_jobs_first_completes_before_the_other_transaction(processors, start_worker):
    others = []

    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        with jobs.complete():
            others.append(Actor(lambda store: store.attempts.lock(jobs[1].id)).start().until_blocked_or_ended())
            for job in jobs:
                write_effect(job, "written")

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    start_worker(slots=1)
    for chain in enqueued:
        until_completed(chain)
    assert others[0].result() == ("completed", 1)
    assert_no_attempt_was_used(enqueued)
