"""While another transaction has locked a job or a record, its transaction waits, without delaying others."""

import asyncio
import threading
from contextlib import suppress
from functools import partial

import pytest
from django.db import connection, transaction
from psycopg import IsolationLevel

from django_jobchains import chains
from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.exceptions import JobLocked, LeaseLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff
from tests.records.models import Export
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.connections import Actor, holding, is_a_session_waiting
from tests.support.fixtures import only_slice
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, write
from tests.support.waiting import stays, until, until_completed
from tests.worker.test_locked_rows import _set_back_clock, until_its_lease_would_have_ended

__all__ = ("_set_back_clock",)

pytestmark = [committed, pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def _one_thread(settings):
    settings.JOBCHAINS = {"ASYNC_THREADS": 1, "REAP_SECONDS": 0.1, "STUCK_SECONDS": 0.1}


processors = only_slice(backoff=Backoff(0, 1, 0, 0))


def lock(job_ids):
    return holding(lambda store: store.attempts.lock_all(job_ids))


def assert_no_attempt_was_used():
    assert {(job.attempt, job.crashes) for job in Job.objects.all()} <= {(1, 0)}
    assert not FailedAttempt.objects.exists()


# Every kind


@kinds(*JOBS, *RECORDS)
def test_attempt_that_locked_its_job_first_completes_before_the_other_transaction(scenario, start_worker):
    others = []

    def lock_and_read(store, model, id_):
        with transaction.atomic():
            found = model.objects.select_for_update().get(id=id_)
            return found.state if model is Export else found.status

    def first(jobs):
        def function():
            write(jobs, "written")()
            model = Export if scenario.kind in RECORDS else Job
            waiting = Actor(partial(lock_and_read, model=model, id_=jobs[0].id))
            others.append(waiting.start().until_blocked_or_ended())

        yield complete(function)

    scenario.enqueue(first)
    start_worker(slots=1, poll_seconds=0.05)
    until(lambda: scenario.states() == {"completed"}, what=scenario.errors)
    assert others[0].result() == "completed"
    assert_no_attempt_was_used()


# Async handlers


@pytest.mark.parametrize("phase", ["aprepare", "acomplete"])
def test_locked_jobs_block_no_threads_and_keep_their_leases(processors, start_worker, gate, caplog, short_lease, phase):
    @processors.register("async.gated", lease=short_lease)
    async def gated(job):
        await asyncio.to_thread(gate.wait, 15)
        await getattr(job, phase)(write([job], job.input))

    worker = start_worker(poll_seconds=0.2)
    locked = chains.enqueue_many([gated.item("locked") for _ in range(3)])
    ids = [chain.id for chain in locked]
    until(lambda: Job.objects.with_status("running").filter(id__in=ids).count() == 3)
    other = lock(ids)
    gate.set()
    for chain in chains.enqueue_many([gated.item("free") for _ in range(20)]):
        until_completed(chain)
    until_its_lease_would_have_ended(locked[0])
    until(lambda: "waits for another transaction" in caplog.text)
    assert stays(lambda: {chain.refresh().status for chain in locked} == {"running"}, 0.3)
    assert (effects(), worker.health().is_live) == (["free"], True)
    other.result()
    for chain in locked:
        until_completed(chain)
    assert effects() == ["free", "locked"]
    assert_no_attempt_was_used()
    assert all(caplog.text.count(f"{chain.id} (async.gated) waits") <= 1 for chain in locked)


def test_a_locked_record_is_waited_for_without_a_thread(processors, start_worker, gate):
    @processors.records(Export)
    async def handle(record, run):
        await asyncio.to_thread(gate.wait, 15)
        await run.acomplete(lambda: None)

    locked, free = Export.objects.create(), Export.objects.create()
    start_worker(poll_seconds=0.05)
    until(lambda: Export.objects.filter(state="processing").count() == 2)
    other = holding(lambda store: Export.objects.select_for_update().get(pk=locked.pk))
    gate.set()
    until(lambda: Export.objects.get(pk=free.pk).state == "completed")
    assert Export.objects.get(pk=locked.pk).state == "processing"
    other.result()
    until(lambda: Export.objects.get(pk=locked.pk).state == "completed")


@pytest.fixture
def lock_before(processors, start_worker):
    """Start a worker with an async handler, and lock its job before ``begin(job)`` in the handler returns."""
    holders = []

    def start(handler, **options):
        async def locking(job):
            async def begin():
                holders.append(await asyncio.to_thread(lock, [job.id]))

            await handler(job, begin)

        chain = processors.register("async.locked", max_attempts=1, **options)(locking).enqueue()
        start.worker = start_worker(poll_seconds=0.2)
        until(lambda: holders)
        return chain, holders[0]

    return start


def test_phases_that_wait_for_the_row_keep_their_order(lock_before):
    started = threading.Event()

    async def ordered(job, begin):
        await begin()
        started.set()
        await asyncio.gather(job.aprepare(write([job], "a")), job.ablockers(), job.acomplete(write([job], "b")))

    chain, other = lock_before(ordered)
    assert started.wait(15)
    other.result()
    until_completed(chain)
    assert effects() == ["a", "b"]
    assert_no_attempt_was_used()


@pytest.mark.parametrize("reason", ["cancelled", "timed_out"])
def test_attempt_that_is_asked_to_stop_no_longer_waits(lock_before, reason):
    """The handler ends while its job is locked, and the outcome is written when the lock is released."""
    ended = threading.Event()

    async def stopped(job, begin):
        await begin()
        try:
            await job.acomplete(write([job], "written"))
        except asyncio.CancelledError:
            assert job.signal.reason == reason
            ended.set()
            raise

    chain, other = lock_before(stopped, timeout=1 if reason == "timed_out" else None)
    if reason == "cancelled":
        chains.cancel([chain.id])
    assert ended.wait(15)
    other.result()
    until(lambda: chain.refresh().status == ("cancelled" if reason == "cancelled" else "failed"))
    assert effects() == []


def test_stopping_worker_does_not_wait_for_the_row_and_uses_no_attempt(lock_before, start_worker):
    attempts = []

    async def writes(job, begin):
        attempts.append(job)
        if len(attempts) == 1:
            await begin()
        await job.acomplete(write([job], "written"))

    chain, other = lock_before(writes)
    lock_before.worker.stop(timeout=0)
    assert effects() == []
    other.result()
    start_worker(poll_seconds=0.2)
    until_completed(chain)
    assert effects() == ["written"]
    assert_no_attempt_was_used()


def test_abandoned_attempt_no_longer_waits(lock_before):
    errors = []

    async def unresponsive(job, begin):
        await begin()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(15)
        try:
            await job.acomplete(write([job], "late"))
        except LeaseLost as error:
            errors.append(error)

    chain, other = lock_before(unresponsive, timeout=0.1)
    until(lambda: errors)
    other.result()
    until(lambda: chain.refresh().status == "failed")
    assert effects() == []


# Batches: only the locked job is delayed


@pytest.fixture
def holders():
    """The other transactions that a handler has started."""
    return []


@pytest.fixture
def run_batch(processors, start_worker):
    """Return a function that registers a batch handler, enqueues jobs, and starts a worker."""

    def run(handler, count=3, **options):
        job_type = processors.register("batches.write", batch_limit=5, **options)(handler)
        made = chains.enqueue_many([job_type.item(number) for number in range(count)])
        start_worker(slots=1, poll_seconds=0.2)
        return made

    return run


def until_all_are_written(made):
    for chain in made:
        until_completed(chain)
    assert_no_attempt_was_used()
    assert effects() == ["written"]
    assert Effect.objects.count() == len(made)


@pytest.mark.parametrize("phase", ["prepare", "complete", "swallowing"])
def test_others_run_again_without_the_locked_job(run_batch, holders, monkeypatch, phase):
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 0.1)
    sizes = []

    def handler(jobs):
        sizes.append(len(jobs))
        if not holders:
            holders.append(lock([jobs[min(1, len(jobs) - 1)].id]))
        if phase == "prepare":
            with jobs.prepare():
                pass
        try:
            with jobs.complete():
                write(jobs, "written")()
        except JobLocked:
            if phase != "swallowing":
                raise

    made = run_batch(handler)
    until_completed(made[0])
    until_completed(made[2])
    assert made[1].refresh().status == "running"
    holders[0].result()
    until_all_are_written(made)
    assert sum(sizes) == 6  # the batch, and each of its jobs once more


def test_batch_in_atomic_mode_continues_without_the_locked_job(run_batch, holders, monkeypatch):
    """The job is locked before the handler is called, so the handler gets only the other jobs."""
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 0.1)
    begin = BatchAttempt.begin
    sizes = []

    def lock_first(attempt):
        if not holders:
            holders.append(lock([attempt.jobs[0].id]))
        begin(attempt)

    def handler(jobs):
        sizes.append(len(jobs))
        write(jobs, "written")()

    monkeypatch.setattr(BatchAttempt, "begin", lock_first)
    made = run_batch(handler, mode="atomic")
    until(lambda: [chain.refresh().status for chain in made].count("completed") == 2)
    assert sum(sizes) == 2
    holders[0].result()
    until_all_are_written(made)


def test_batch_waits_for_a_short_lock_and_keeps_the_lock_timeout_of_the_handler(run_batch, holders, monkeypatch):
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 20)
    seen = []

    def handler(jobs):
        with connection.cursor() as cursor:
            holders.append(lock([jobs[1].id]))
            cursor.execute("SET lock_timeout = '7s'")
            with jobs.complete():
                cursor.execute("SHOW lock_timeout")
                seen.append((len(jobs), cursor.fetchone()[0]))
                write(jobs, "written")()

    made = run_batch(handler)
    until(lambda: holders and is_a_session_waiting())
    holders[0].result()
    until_all_are_written(made)
    assert seen == [(3, "7s")]


def test_jobs_that_ended_after_a_wait_for_a_lock_stay_ended(run_batch, holders, monkeypatch):
    """Only the transaction that was committed counts, not the first try to open it."""
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 20)

    def handler(jobs):
        if not holders:
            holders.append(lock([jobs[1].id]))
            with jobs.prepare():
                effect(jobs[0], "prepared")
            jobs[0].finish("kept")
            raise ValueError("after the lock")

    made = run_batch(handler, 2)
    until(lambda: holders and is_a_session_waiting())
    holders[0].result()
    for chain in made:
        until_completed(chain)
    assert [(chain.output, chain.jobs.get().attempt) for chain in made] == [("kept", 1), (None, 2)]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=str)
def test_job_that_was_written_while_the_batch_waited_is_read_again(run_batch, holders, monkeypatch, level):
    """Above READ COMMITTED, a transaction that waited for the row gets a serialization failure."""
    monkeypatch.setattr(BatchAttempt, "lock_seconds", 20)
    connection.ensure_connection()  # the connection of this thread keeps its options after the test
    options = {**connection.settings_dict["OPTIONS"], "isolation_level": level}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    def handler(jobs):
        holders.append(holding(lambda store: Job.objects.filter(id=jobs[1].id).update(crashes=0)))
        with jobs.complete():
            write(jobs, "written")()

    made = run_batch(handler)
    until(lambda: holders and is_a_session_waiting())
    holders[0].result()
    until_all_are_written(made)
