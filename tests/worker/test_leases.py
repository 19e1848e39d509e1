"""Leases are renewed; an attempt that lost its lease is aborted and writes nothing. See also tests/leases."""

import threading

import pytest
from django.db import OperationalError, connection

from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt
from django_jobchains.processors import Lease
from django_jobchains.telemetry.events import AttemptStuck
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed

LEASE = 1.0


def labels():
    return list(Effect.objects.values_list("label", flat=True))


@pytest.fixture(autouse=True)
def _short_intervals(settings, store):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.1}
    yield
    store.db.ahead_seconds = 0


@pytest.fixture
def renewals(store, monkeypatch):
    """How many leases each renewal was for, including the current one."""
    sizes, renew = [], store.leases.renew
    monkeypatch.setattr(store.leases, "renew", lambda leases, *args: sizes.append(len(leases)) or renew(leases, *args))
    return sizes


def test_lease_is_renewed_while_the_handler_runs_longer(processors, start_worker, gate):
    chain = processors.register("worker.long", lease=Lease(LEASE))(lambda job: gate.wait(30)).enqueue()
    start_worker()
    until(lambda: chain.refresh().status == "running")
    first = chain.current_job.leased_until
    until(lambda: (chain.refresh().current_job.leased_until - first).total_seconds() > 1.5 * LEASE)
    gate.set()
    until_completed(chain)
    assert (chain.current_job.attempt, chain.current_job.crashes, chain.current_job.lease_number) == (1, 0, 1)


@pytest.fixture
def outage(store, monkeypatch):
    """Leases cannot be renewed until this event is set."""
    ended, renew = threading.Event(), store.leases.renew

    def renew_later(leases):
        if not ended.is_set():
            raise OperationalError("connection refused")
        return renew(leases)

    monkeypatch.setattr(store.leases, "renew", renew_later)
    return ended


def test_handler_that_stops_when_its_lease_cannot_be_renewed_has_crashed(processors, start_worker, outage):
    @processors.register("worker.tried", lease=Lease(LEASE), max_attempts=1)
    def tried(job):
        if not labels():
            job.signal.wait(30)
            Effect.objects.create(job_id=job.id, label=str(job.signal.reason))
            outage.set()
            job.signal.raise_if_aborted()
        return job.attempt

    start_worker(poll_seconds=0.2)
    chain = tried.enqueue()
    until_completed(chain)
    assert (chain.output, chain.current_job.crashes, labels()) == (2, 1, ["error"])
    assert [failed.kind for failed in FailedAttempt.objects.all()] == ["crash"]


def test_handler_that_is_stuck_when_its_lease_cannot_be_renewed_has_crashed(
    processors, start_worker, outage, gate, settings, events
):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "STUCK_SECONDS": 0.05}
    ran = []

    @processors.register("worker.unresponsive", lease=Lease(LEASE), max_attempts=1)
    def unresponsive(job):
        ran.append(job)
        if len(ran) == 1:
            gate.wait(30)

    start_worker(poll_seconds=0.2)
    chain = unresponsive.enqueue()
    until(lambda: events.of(AttemptStuck))
    outage.set()
    until_completed(chain)
    assert chain.current_job.crashes == 1
    assert [failed.kind for failed in FailedAttempt.objects.all()] == ["crash"]


@pytest.mark.parametrize("mode", ["complete", "prepare", "atomic"])
@pytest.mark.postgresql
def test_transaction_longer_than_the_lease_keeps_the_job(
    processors, start_worker, gate, store, renewals, short_lease, mode
):
    """The row is locked, so the job is not reaped and the attempt is not aborted."""
    reasons = []

    @processors.register("worker.locked", lease=short_lease)
    def locked(job):
        with job.complete() if mode == "complete" else job.prepare("atomic" if mode == "atomic" else "staged"):
            Effect.objects.create(job_id=job.id, label="written")
            reasons.append("locked")
            gate.wait(30)
            reasons.append(job.signal.reason)

    start_worker()
    chain = locked.enqueue()
    until(lambda: reasons)
    before = len(renewals)
    until(lambda: len(renewals) > before + 1)  # so one of them began and ended while the row was locked
    store.db.ahead_seconds = 3600
    reaped = store.leases.reap(10, Backoff(), 10)  # what another worker's reaper does
    store.db.ahead_seconds = 0
    assert reaped == []
    gate.set()
    until_completed(chain)
    assert reasons == ["locked", None]
    assert (chain.current_job.attempt, chain.current_job.crashes) == (1, 0)
    assert labels() == ["written"]


@pytest.mark.postgresql
def test_lease_is_fresh_after_a_prepare_that_took_longer(processors, start_worker, store, settings):
    """A locked row cannot be renewed, so the commit renews it. Otherwise the next reaper would take the job.

    The clock of the database is advanced instead of waiting.
    """
    settings.JOBCHAINS = {"REAP_SECONDS": 3600}
    reaped = []

    @processors.register("worker.prepared", lease=Lease(60))
    def prepared(job):
        with job.prepare():
            store.db.ahead_seconds = 90
        reaped.extend(store.leases.reap(10, Backoff(), 10))  # what another worker's reaper does

    start_worker()
    chain = prepared.enqueue()
    until(lambda: chain.refresh().status != "running" and chain.current_job.attempt > 0)
    assert reaped == []
    assert chain.status == "completed"


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite allows one writer")
def test_transaction_longer_than_the_lease_completes_the_job_once_on_sqlite(processors, start_worker):
    @processors.register("worker.locked", lease=Lease(0.6))
    def locked(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
            job.signal.wait(1.5)

    start_worker()
    start_worker(poll_seconds=0.1)
    chain = locked.enqueue()
    until_completed(chain)
    assert labels() == ["written"]
