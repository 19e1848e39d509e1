"""Leases are renewed; an attempt that lost its lease is aborted and writes nothing."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_jobchains import chains
from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import LeaseLost as LeaseLostError
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import JobType, Lease, Processors, RunningJob
from django_jobchains.telemetry.events import AttemptAbandoned
from django_jobchains.worker.held_leases import HeldJobs
from tests.shop.models import Effect
from tests.support.statements import statements_of_others
from tests.support.waiting import until, until_completed

LEASE = 1.0


@dataclass
class Handler:
    """What a handler recorded, and the gate that it waits for."""

    started: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    reasons: list[str | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


@pytest.fixture
def handler(settings, store):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.1}
    handler = Handler()
    yield handler
    handler.gate.set()
    store.db.ahead_seconds = 0


@pytest.fixture
def renewals(store, monkeypatch):
    """How many leases each renewal was for, including the current one."""
    sizes: list[int] = []
    renew = store.leases.renew

    def recorded(leases: Any, *args: Any) -> Any:
        sizes.append(len(leases))
        return renew(leases, *args)

    monkeypatch.setattr(store.leases, "renew", recorded)
    return sizes


def register_until_aborted(processors: Processors, handler: Handler, lease: Lease) -> JobType[Any, Any]:
    """Register a handler that waits for its signal and then tries to write."""

    @processors.register("worker.until_aborted", lease=lease)
    def until_aborted(job: RunningJob[Any]) -> None:
        handler.started.set()
        job.signal.wait(30)
        handler.reasons.append(job.signal.reason)
        try:
            with job.complete():
                Effect.objects.create(job_id=job.id, label="written")
        except BaseException as error:
            handler.errors.append(error)
            raise

    return until_aborted


def test_lease_is_renewed_while_the_handler_runs_longer(processors, start_worker, handler):
    @processors.register("worker.long", lease=Lease(LEASE))
    def long(job: RunningJob[None]) -> str:
        handler.started.set()
        handler.gate.wait(30)
        return "done"

    start_worker()
    chain = long.enqueue()
    assert handler.started.wait(30)
    first = chain.refresh().current_job.leased_until
    assert first is not None
    until(lambda: (chain.refresh().current_job.leased_until - first).total_seconds() > 1.5 * LEASE)
    handler.gate.set()
    until_completed(chain)
    assert (chain.current_job.attempt, chain.current_job.crashes, chain.current_job.lease_number) == (1, 0, 1)


def test_one_statement_renews_the_leases_of_all_attempts(processors, start_worker, handler, renewals):
    running = threading.Barrier(21, timeout=15)

    @processors.register("worker.together", lease=Lease(LEASE))
    def together(job: RunningJob[None]) -> None:
        running.wait()
        handler.gate.wait(30)

    with statements_of_others() as statements:
        start_worker(slots=20)
        chains.enqueue_many([together.item() for _ in range(20)])
        running.wait()
        until(lambda: renewals.count(20) >= 3, what=renewals)
        assert 2 <= statements.count("SET leased_until") <= len(renewals)
        handler.gate.set()
        until(lambda: Job.objects.with_status("completed").count() == 20)


@pytest.mark.parametrize("reason", ["taken_by_another_worker", "already_completed", "cancelled", "not_found"])
def test_lost_lease_aborts_the_handler_and_its_writes(processors, start_worker, handler, events, short_lease, reason):
    until_aborted = register_until_aborted(processors, handler, short_lease)
    start_worker()
    job = until_aborted.enqueue().current_job
    assert handler.started.wait(30)
    row = Job.objects.filter(pk=job.pk)
    if reason == "taken_by_another_worker":
        row.update(lease_number=2, leased_by="another")
    elif reason == "not_found":
        row.delete()
    else:
        row.update(status=reason.removeprefix("already_"))
    until(lambda: handler.errors)
    assert handler.reasons == [reason]
    assert isinstance(handler.errors[0], LeaseLostError)
    until(lambda: events.of(AttemptAbandoned))
    assert (events.of(AttemptAbandoned)[0].job_id, events.of(AttemptAbandoned)[0].reason) == (job.id, reason)
    assert not Effect.objects.exists()
    assert not FailedAttempt.objects.exists()


def test_output_of_a_lost_lease_is_not_written(processors, start_worker, handler, events):
    @processors.register("worker.output", lease=Lease(60))
    def output(job: RunningJob[None]) -> str:
        handler.started.set()
        handler.gate.wait(30)
        return "stale"

    start_worker()
    job = output.enqueue().current_job
    assert handler.started.wait(30)
    Job.objects.filter(pk=job.pk).update(lease_number=2, leased_by="another")
    handler.gate.set()
    until(lambda: events.of(AttemptAbandoned))
    job.refresh_from_db()
    assert (job.status, job.output, job.leased_by) == ("running", None, "another")


def test_attempts_are_aborted_if_their_lease_cannot_be_renewed(processors, start_worker, handler, store, monkeypatch):
    def unavailable(leases: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(store.leases, "renew", unavailable)
    until_aborted = register_until_aborted(processors, handler, Lease(LEASE))
    start_worker()
    until_aborted.enqueue()
    until(lambda: handler.reasons)
    assert handler.reasons == ["error"]


def test_job_aborted_while_the_database_was_away_is_completed_later(
    processors, start_worker, store, monkeypatch, handler
):
    renew = store.leases.renew

    def unavailable(leases: Any) -> Any:
        raise OperationalError("connection refused")

    @processors.register("worker.tried", lease=Lease(LEASE))
    def tried(job: RunningJob[None]) -> int:
        if job.attempt == 1:
            job.signal.wait(30)
            monkeypatch.setattr(store.leases, "renew", renew)
            job.signal.raise_if_aborted()
        return job.attempt

    monkeypatch.setattr(store.leases, "renew", unavailable)
    start_worker(poll_seconds=0.2)
    chain = tried.enqueue()
    until_completed(chain)
    assert chain.output == 2


@pytest.mark.parametrize("mode", ["complete", "prepare", "atomic"])
@pytest.mark.postgresql
def test_transaction_longer_than_the_lease_keeps_the_job(
    processors, start_worker, handler, store, renewals, short_lease, mode
):
    """The row is locked, so the job is not reaped and the attempt is not aborted."""

    @processors.register("worker.locked", lease=short_lease)
    def locked(job: RunningJob[None]) -> None:
        phase = job.complete() if mode == "complete" else job.prepare("atomic" if mode == "atomic" else "staged")
        with phase:
            handler.started.set()
            Effect.objects.create(job_id=job.id, label="written")
            handler.gate.wait(30)
            handler.reasons.append(job.signal.reason)

    start_worker()
    chain = locked.enqueue()
    assert handler.started.wait(30)
    before = len(renewals)
    until(lambda: len(renewals) > before + 1)  # so one of them began and ended while the row was locked
    store.db.ahead_seconds = 3600
    reaped = store.leases.reap(10, Backoff(), 10)  # what another worker's reaper does
    store.db.ahead_seconds = 0
    assert reaped == []
    handler.gate.set()
    until_completed(chain)
    assert handler.reasons == [None]
    assert (chain.current_job.attempt, chain.current_job.crashes) == (1, 0)
    assert Effect.objects.count() == 1


@pytest.mark.postgresql
def test_lease_is_fresh_after_a_prepare_that_took_longer(processors, start_worker, handler, store, settings):
    """A locked row cannot be renewed, so the commit renews it. Otherwise the next reaper would take the job.

    The clock of the database is advanced instead of waiting.
    """
    settings.JOBCHAINS = {"REAP_SECONDS": 3600}
    reaped: list[Any] = []

    @processors.register("worker.prepared", lease=Lease(60))
    def prepared(job: RunningJob[None]) -> None:
        with job.prepare():
            store.db.ahead_seconds = 90
        reaped.extend(store.leases.reap(10, Backoff(), 10))  # what another worker's reaper does

    start_worker()
    chain = prepared.enqueue()
    until(lambda: chain.refresh().status != "running" and chain.current_job.attempt > 0)
    assert reaped == []
    assert chain.status == "completed"


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite allows one writer")
def test_transaction_longer_than_the_lease_completes_the_job_once_on_sqlite(processors, start_worker, handler):
    @processors.register("worker.locked", lease=Lease(0.6))
    def locked(job: RunningJob[None]) -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
            job.signal.wait(1.5)

    start_worker()
    start_worker(poll_seconds=0.1)
    chain = locked.enqueue()
    until_completed(chain)
    assert Effect.objects.count() == 1


def test_older_attempt_of_the_same_worker_is_aborted(processors, store):
    """The worker claims the job again before the older attempt has noticed that its lease is lost."""
    slow: JobType[Any, Any] = processors.register("worker.slow")(lambda job: None)
    slow.enqueue()
    leases = HeldJobs(store)
    (first,) = store.jobs.claim("worker", 1, {"worker.slow": 0.0})
    old = leases.hold(first.key, 0.0, time.monotonic(), first.queue)
    until(lambda: store.leases.reap(10, Backoff(0, 1, 0, 0), 10))
    (second,) = until(lambda: store.jobs.claim("worker", 1, {"worker.slow": 60.0}))
    new = leases.hold(second.key, 0.0, time.monotonic(), second.queue)
    leases.renew_due()
    assert (old.reason, new.reason) == ("taken_by_another_worker", None)
    assert [number for _, number in leases.held()] == [second.lease_number]
