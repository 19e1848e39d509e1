"""While another transaction has locked the job of an async handler, its phase waits without using a thread."""

import asyncio
import threading
from typing import Any, Literal

import pytest

from django_jobchains import chains
from django_jobchains.declare.policies import Lease
from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import JobType, Processors, RunningJob
from tests.async_handlers.effects import effects, write
from tests.support.connections import Actor, holding
from tests.support.waiting import stays, until, until_completed
from tests.worker.test_locked_rows import _set_back_clock, until_its_lease_would_have_ended

__all__ = ("_set_back_clock",)

pytestmark = pytest.mark.postgresql

When = Literal["aprepare", "acomplete"]


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def one_thread(settings):
    settings.JOBCHAINS = {"ASYNC_THREADS": 1, "REAP_SECONDS": 0.1, "STUCK_SECONDS": 0.1}


def register(
    processors: Processors, gate: threading.Event, phase: When = "acomplete", lease: Lease | None = None
) -> JobType[Any, Any]:
    """Register a handler that writes in a phase, which it begins when the gate is open."""

    @processors.register("async.gated", lease=lease)
    async def gated(job: RunningJob[str]) -> str:
        await asyncio.to_thread(gate.wait, 15)
        await getattr(job, phase)(write(job, job.input))
        return "done"

    return gated


def lock(*enqueued: Chain) -> Actor:
    return holding(lambda store: store.attempts.lock_all([chain.id for chain in enqueued]))


def until_running(*enqueued: Chain) -> None:
    running = Job.objects.with_status("running").filter(id__in=[chain.id for chain in enqueued])
    until(lambda: running.count() == len(enqueued))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("phase", ["aprepare", "acomplete"])
def test_locked_jobs_block_no_threads_and_keep_their_leases(processors, start_worker, gate, caplog, short_lease, phase):
    gated = register(processors, gate, phase, short_lease)
    worker = start_worker(poll_seconds=0.2)
    locked = chains.enqueue_many([gated.item("locked") for _ in range(3)])
    until_running(*locked)
    other = lock(*locked)
    gate.set()
    for chain in chains.enqueue_many([gated.item("free") for _ in range(20)]):
        until_completed(chain)
    until_its_lease_would_have_ended(locked[0])
    until(lambda: "waits for another transaction" in caplog.text)
    assert stays(lambda: {chain.refresh().status for chain in locked} == {"running"}, 0.3)
    assert effects() == ["free"] * 20
    assert worker.health().is_live
    other.result()
    for chain in locked:
        until_completed(chain)
    assert effects() == ["free"] * 20 + ["locked"] * 3
    assert {(job.attempt, job.crashes, job.lease_number) for job in Job.objects.all()} == {(1, 0, 1)}
    assert not FailedAttempt.objects.exists()
    assert all(caplog.text.count(f"{chain.id} (async.gated) waits") <= 1 for chain in locked)


@pytest.mark.usefixtures("one_thread")
def test_attempt_that_locked_its_job_first_completes_before_the_other_transaction(processors, start_worker):
    others = []

    @processors.register("async.first")
    async def first(job: RunningJob[Any]) -> None:
        def complete() -> None:
            others.append(Actor(lambda store: store.attempts.lock(job.id)).start().until_blocked_or_ended())

        await job.acomplete(complete)

    start_worker()
    until_completed(first.enqueue())
    assert others[0].result() == ("completed", 1)


@pytest.mark.usefixtures("one_thread")
def test_phases_that_wait_for_the_row_keep_their_order(processors, start_worker):
    is_locked, started = threading.Event(), threading.Event()

    @processors.register("async.ordered")
    async def ordered(job: RunningJob[Any]) -> None:
        await asyncio.to_thread(is_locked.wait, 15)
        started.set()
        await asyncio.gather(job.aprepare(write(job, "a")), job.ablockers(), job.acomplete(write(job, "b")))

    start_worker()
    chain = ordered.enqueue()
    until_running(chain)
    other = lock(chain)
    is_locked.set()
    assert started.wait(15)
    other.result()
    until_completed(chain)
    assert effects() == ["a", "b"]
    assert not FailedAttempt.objects.exists()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("reason", ["cancelled", "timed_out"])
def test_attempt_that_is_asked_to_stop_no_longer_waits(processors, start_worker, gate, reason):
    """The handler ends while its job is locked, and the outcome is written when the lock is released."""
    ended = threading.Event()

    @processors.register("async.stopped", timeout=1 if reason == "timed_out" else None, max_attempts=1)
    async def stopped(job: RunningJob[Any]) -> None:
        try:
            await asyncio.to_thread(gate.wait, 15)
            await job.acomplete(write(job, "written"))
        except asyncio.CancelledError:
            assert job.signal.reason == reason
            ended.set()
            raise

    start_worker(poll_seconds=0.2)
    chain = stopped.enqueue()
    until_running(chain)
    other = lock(chain)
    gate.set()
    if reason == "cancelled":
        chains.cancel([chain.id])
    assert ended.wait(15)
    other.result()
    until(lambda: chain.refresh().status == ("cancelled" if reason == "cancelled" else "failed"))
    assert not effects()


@pytest.mark.usefixtures("one_thread")
def test_stopping_worker_does_not_wait_for_the_row_and_uses_no_attempt(processors, start_worker, gate):
    gated = register(processors, gate)
    worker = start_worker(poll_seconds=0.2)
    chain = gated.enqueue("written")
    until_running(chain)
    other = lock(chain)
    gate.set()
    worker.stop(timeout=0)
    assert not effects()
    other.result()
    start_worker(poll_seconds=0.2)
    until_completed(chain)
    job = chain.refresh().current_job
    assert (job.attempt, job.crashes, effects()) == (1, 0, ["written"])
    assert not FailedAttempt.objects.exists()


@pytest.mark.usefixtures("one_thread")
def test_abandoned_attempt_no_longer_waits(processors, start_worker):
    """The handler locks its own job over another connection, so that it is locked before the timeout."""
    errors: list[BaseException] = []
    others: list[Actor] = []

    @processors.register("async.unresponsive", timeout=0.1, max_attempts=1)
    async def unresponsive(job: RunningJob[Any]) -> None:
        others.append(Actor(lambda store: store.attempts.lock(job.id), holds=True).start().until_stopped())
        try:
            await asyncio.sleep(15)
        except asyncio.CancelledError:
            try:
                await job.acomplete(write(job, "late"))
            except LeaseLost as error:
                errors.append(error)

    start_worker(poll_seconds=0.2)
    chain = unresponsive.enqueue()
    until(lambda: bool(errors))
    others[0].result()
    until(lambda: chain.refresh().status == "failed")
    assert not effects()
