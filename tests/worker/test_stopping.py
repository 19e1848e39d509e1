"""Stopping uses no attempt: unfinished jobs are immediately returned to the queue."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.chains import Chains
from tests.shop.models import Effect
from tests.support.connections import holding
from tests.support.jobs import database_now
from tests.support.waiting import until
from tests.support.workers import completed

#: How much longer than its timeout stopping may take on a busy machine. Handlers wait for 30 seconds.
STOP_MARGIN_SECONDS = 15.0


@pytest.fixture
def waiting(processors, gate):
    """A type whose handler runs until the gate opens and ignores its signal."""

    @processors.register("worker.waiting")
    def waiting(job):
        Effect.objects.create(job_id=job.id, label="started")
        gate.wait(30)
        return "done"

    return waiting


def job_rows():
    return list(Job.objects.order_by("pk").values_list("status", "attempt", "run_at", "leased_by", "last_error"))


def has_started():
    return Effect.objects.filter(label="started").exists()


def threads(name):
    return [thread for thread in threading.enumerate() if name in thread.name]


def stop_in_time(worker, timeout):
    started = time.monotonic()
    code = worker.stop(timeout=timeout)
    assert time.monotonic() - started < (0 if timeout > 1 else timeout) + STOP_MARGIN_SECONDS
    return code


def test_nothing_is_claimed_while_stopping(waiting, start_worker, gate):
    worker = start_worker(slots=2)
    waiting.enqueue()
    until(has_started)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: not threads("claim-loop"))
    late = waiting.enqueue()
    gate.set()
    stopping.join()
    assert (late.refresh().status, late.current_job.lease_number) == ("pending", 0)


def test_jobs_claimed_ahead_are_handed_back(waiting, quick, make_worker):
    chains.enqueue_many([waiting.item(priority=1), *(quick.item() for _ in range(20))])
    before = dict(Job.objects.values_list("id", "run_at"))
    worker = make_worker(slots=1)
    worker.components.slots.backlog.average_seconds = 0.001  # as after many short jobs: the worker claims ahead
    worker.start()
    until(has_started)  # Some jobs are claimed ahead now. Half a second later, they would be queued again anyway.
    assert worker.stop(timeout=0) == 1
    until(
        lambda: set(Job.objects.values_list("status", "attempt", "leased_by")) == {("pending", 0, None)}, what=job_rows
    )
    assert dict(Job.objects.values_list("id", "run_at")) == before
    assert not Job.objects.filter(lease_number=0).exists(), "some jobs were not claimed"


def test_jobs_claimed_ahead_of_a_long_job_go_to_another_worker(waiting, quick, start_worker):
    first = [quick.item(priority=2) for _ in range(40)]
    chains.enqueue_many([*first, waiting.item(priority=1), *(quick.item() for _ in range(20))])
    start_worker(slots=1, poll_seconds=0.2)
    until(has_started)
    start_worker(slots=1, poll_seconds=0.2)
    until(lambda: completed() == 60)
    assert completed(attempt=1) == 60


def test_idle_worker_stops_at_once(quick, start_worker):
    assert stop_in_time(start_worker(), 60) == 0


def test_claim_that_returns_after_the_end_is_handed_back(waiting, make_worker, monkeypatch, gate):
    worker, is_claiming = make_worker(), threading.Event()
    claim = type(worker.store.jobs).claim

    def late(store, *args):
        is_claiming.set()
        gate.wait(30)
        return claim(store, *args)

    monkeypatch.setattr(type(worker.store.jobs), "claim", late)
    waiting.enqueue()
    worker.start()
    assert is_claiming.wait(15)
    worker.stop(timeout=0)
    gate.set()
    until(lambda: not threads("claim-loop"))
    assert [(status, attempt) for status, attempt, *_ in job_rows()] == [("pending", 0)]


@pytest.mark.postgresql
def test_claim_that_the_server_is_still_running_at_the_end_is_cancelled(waiting, make_worker):
    """Otherwise the server would commit it after the end of the process, and the jobs would count as crashed."""
    worker, table = make_worker(), Job._meta.db_table
    chain = waiting.enqueue()
    locker = holding(lambda store: store.db.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", []))
    try:
        worker.start()
        until(lambda: blocked_claims() == 1)
        worker.stop(timeout=0)
        until(lambda: blocked_claims() == 0)
    finally:
        locker.end()
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)


def blocked_claims():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
            "AND query LIKE 'WITH RECURSIVE%%'"
        )
        return cursor.fetchone()[0]


def test_expired_job_that_the_claim_loop_could_not_cancel_is_cancelled_at_the_end(quick, make_worker, monkeypatch):
    hand_back, has_failed = Attempts.hand_back, threading.Event()

    def fail(attempts, *args, **options):
        if threading.current_thread() in threads("claim-loop"):
            has_failed.set()
            raise OperationalError("The server restarts.")
        return hand_back(attempts, *args, **options)

    monkeypatch.setattr(Attempts, "hand_back", fail)
    monkeypatch.setattr(Chains, "expire", lambda *args: [])  # Maintenance does not find the job first.
    chain = quick.enqueue(expires=database_now() - timedelta(minutes=1))
    worker = make_worker()
    worker.start()
    assert has_failed.wait(15)
    worker.stop(timeout=0)
    until(lambda: chain.refresh().is_expired)
