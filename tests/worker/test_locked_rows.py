"""Another transaction locks a running job, or a job that waits for it: this delays only that job."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Chain, DeferredWrite, FailedAttempt, Job
from django_jobchains.processors import RunningJob
from django_jobchains.store import get_store
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.database import Part
from django_jobchains.store.deferred import Deferred
from django_jobchains.store.leases import Leases
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, JobReaped, OutcomeDelayed
from django_jobchains.worker.end_writer import MAX_BATCH_SIZE
from django_jobchains.worker.threads import LOCK_SECONDS
from tests.shop.models import Effect
from tests.support.connections import Actor, holding
from tests.support.jobs import database_now
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import Events
from tests.worker.test_commits import lose_the_reply

pytestmark = pytest.mark.postgresql

#: How far the clock of the database is advanced, so that leases end. Longer than a lease.
AHEAD_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _set_back_clock(store):
    yield
    store.db.ahead_seconds = 0


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def gated(processors, gate, short_lease):
    """A handler that records its start and waits for the gate, or until it is aborted."""

    @processors.register("worker.gated", lease=short_lease)
    def gated(job: RunningJob[Any]) -> str:
        Effect.objects.create(job_id=job.id, label="started")
        while not gate.wait(0.05):
            job.signal.raise_if_aborted()
        return "done"

    return gated


@pytest.fixture
def quick(processors):
    @processors.register("worker.quick")
    def quick(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="quick")

    return quick


def has_started(chain: Chain) -> bool:
    return Effect.objects.filter(job_id=chain.id, label="started").exists()


def lock(chain: Chain) -> Actor:
    """Lock the row of the chain's job in another transaction, until ``result()`` is called."""
    return holding(lambda store: store.attempts.lock(chain.id))


def until_its_lease_would_have_ended(chain: Chain) -> None:
    """Advance the clock past the time in the job's row, which cannot be renewed while it is locked.

    Wait until the worker has renewed the lease without writing to the row, before and after that.
    """
    renewals = DeferredWrite.objects.filter(job_id=chain.id, kind="lease")
    until(renewals.exists)
    get_store().db.ahead_seconds = AHEAD_SECONDS
    until(renewals.filter(leased_until__gt=database_now() + timedelta(seconds=AHEAD_SECONDS)).exists)


def assert_ran_once(chain: Chain, events: Events) -> None:
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes, job.lease_number) == ("completed", 1, 0, 1)
    assert Effect.objects.filter(job_id=chain.id, label="started").count() == 1
    assert not FailedAttempt.objects.exists()
    assert not events.of(AttemptAbandoned)
    assert not events.of(JobReaped)


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["while it is locked", "after the lock is released"])
def test_locked_attempt_is_neither_aborted_nor_reaped_and_other_jobs_continue(
    gated, quick, gate, start_worker, settings, events, returns
):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}
    workers = [start_worker(poll_seconds=0.2), start_worker(poll_seconds=0.2)]
    chain = gated.enqueue()
    until(lambda: has_started(chain))
    other = lock(chain)
    if returns == "while it is locked":
        gate.set()
    others = chains.enqueue_many([quick.item() for _ in range(600)])
    until(lambda: Job.objects.filter(status="completed").count() == len(others))
    until_its_lease_would_have_ended(chain)
    assert stays(lambda: chain.refresh().status == "running", 0.3)
    assert [(worker.health().is_live, worker.health().is_ready) for worker in workers] == [(True, True)] * 2
    other.result()
    gate.set()
    until_completed(chain)
    assert_ran_once(chain, events)


def test_delayed_outcomes_do_not_stop_claims(processors, quick, gate, start_worker):
    """Only outcomes that have not been tried count as a backlog."""
    count = 2 * MAX_BATCH_SIZE + 10

    @processors.register("worker.on_loop")
    async def on_loop(job: RunningJob[Any]) -> None:
        while not gate.is_set():  # noqa: ASYNC110 - the gate is a threading.Event
            await asyncio.sleep(0.05)

    worker = start_worker(async_slots=count, poll_seconds=0.2)
    locked = chains.enqueue_many([on_loop.item() for _ in range(count)])
    until(lambda: worker.running == count)
    other = holding(lambda store: list(Job.objects.select_for_update().filter(type_name="worker.on_loop")))
    gate.set()
    until(lambda: worker.running == 0)
    until_completed(quick.enqueue())
    assert {chain.refresh().status for chain in locked} == {"running"}
    other.result()


@pytest.mark.parametrize("stops", [True, False])
def test_statements_over_many_jobs_have_a_short_lock_timeout(
    processors, gate, start_worker, settings, monkeypatch, stops
):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "SWEEP_SECONDS": 0.1}

    @processors.register("worker.unresponsive")
    def unresponsive(job: RunningJob[Any]) -> None:
        gate.wait(30)

    calls: dict[str, set[tuple[str, int]]] = {}

    def record_lock_timeouts(owner: type[Part], name: str) -> None:
        call = getattr(owner, name)

        def recorded(part: Any, *args: Any, **options: Any) -> Any:
            calls.setdefault(name, set()).add((threading.current_thread().name, part.db._patience.milliseconds))
            return call(part, *args, **options)

        monkeypatch.setattr(owner, name, recorded)

    for owner, name in ((Leases, "reap"), (Deferred, "apply"), (Blockers, "sweep"), (Attempts, "hand_back")):
        record_lock_timeouts(owner, name)
    worker = start_worker(slots=1, poll_seconds=0.2)
    chain = unresponsive.enqueue()
    until(lambda: worker.running == 1)
    expected = int(LOCK_SECONDS * 1000)
    if stops:
        worker.stop(timeout=0)
        until(lambda: calls.get("hand_back") == {("jobchains-hand-back", expected)}, what=calls)
    else:
        until(lambda: calls.keys() >= {"reap", "apply", "sweep"})
        worker.components.claim_loop._hand_back([(chain.id, 0)])
        assert {timeout for recorded in calls.values() for _thread, timeout in recorded} == {expected}


def test_delay_is_reported_once_and_names_the_job(gated, gate, start_worker, events):
    start_worker(poll_seconds=0.2)
    chain = gated.enqueue()
    until(lambda: has_started(chain))
    other = lock(chain)
    gate.set()
    until(lambda: events.of(OutcomeDelayed))
    other.result()
    until_completed(chain)
    [delayed] = events.of(OutcomeDelayed)
    assert (delayed.job_id, delayed.type_name) == (chain.id, "worker.gated")


def test_worker_that_stops_while_a_job_is_locked_stores_the_result_for_later(
    gated, quick, gate, start_worker, store, settings, events
):
    """Handlers that have returned do not run again, and no crash is counted."""
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}
    worker = start_worker(poll_seconds=0.2)
    chain = gated.enqueue()
    until(lambda: has_started(chain))
    other = lock(chain)
    gate.set()
    until(lambda: worker.running == 0)
    others = chains.enqueue_many([quick.item() for _ in range(50)])
    until(lambda: Effect.objects.filter(label="quick").count() > 10)
    worker.stop()
    running = Job.objects.filter(status="running").values_list("id", flat=True)
    stored = DeferredWrite.objects.filter(kind="outcome").values_list("job_id", flat=True)
    until(lambda: chain.id in stored.all() and set(running.all()) <= set(stored.all()))
    returned = set(Effect.objects.filter(label="quick").values_list("job_id", flat=True))
    completed = Job.objects.filter(status="completed").values_list("id", flat=True)
    assert {*completed, *stored} == {*returned, chain.id}
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.filter(status="completed").count() == len(others))
    store.db.ahead_seconds = AHEAD_SECONDS
    assert stays(lambda: chain.refresh().status == "running", 0.5)
    other.result()
    until_completed(chain)
    assert chain.refresh().output == "done"
    assert_ran_once(chain, events)
    assert Effect.objects.filter(label="quick").count() == len(others)
    assert not DeferredWrite.objects.filter(kind="outcome").exists()


def test_handler_inside_complete_does_not_prevent_other_hand_backs(processors, start_worker, gate, settings, caplog):
    """Its own job is handed back when its transaction has ended, without counting an attempt."""
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}
    is_inside = threading.Event()

    @processors.register("worker.inside")
    def inside(job: RunningJob[bool]) -> str:
        if job.attempt == 1 and job.input and not gate.is_set():
            with job.complete():
                is_inside.set()
                gate.wait(30)
                raise ValueError("It is rolled back.")
        gate.wait(30)
        return "done"

    worker = start_worker(slots=5, poll_seconds=0.2)
    locked = inside.enqueue(True)
    others = chains.enqueue_many([inside.item(False) for _ in range(4)])
    until(lambda: worker.running == 5)
    assert is_inside.wait(15)
    worker.stop(timeout=0)
    until(lambda: {chain.refresh().status for chain in others} == {"pending"})
    until(lambda: "0 outcomes could not be written and 1 jobs could not be handed back" in caplog.text)
    assert locked.refresh().status == "running"
    gate.set()
    start_worker(poll_seconds=0.2)
    for chain in [locked, *others]:
        until_completed(chain)
    assert [(job.attempt, job.crashes) for job in Job.objects.all()] == [(1, 0)] * 5
    assert not FailedAttempt.objects.exists()


def holders_of_row_locks() -> list[int]:
    """Return the sessions that are idle in a transaction and have written or locked rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
        )
        return [pid for (pid,) in cursor.fetchall()]


def test_locked_dependent_delays_only_the_chain_it_waits_for(gated, quick, gate, start_worker, events):
    start_worker(poll_seconds=0.2)
    chain = gated.enqueue()
    dependent = quick.enqueue(blockers=[chain])
    until(lambda: has_started(chain))
    other = lock(dependent)
    gate.set()
    others = chains.enqueue_many([quick.item() for _ in range(100)])
    until(lambda: Job.objects.filter(status="completed").count() == len(others))
    assert chain.refresh().status == "running"
    other.result()
    until_completed(dependent)
    assert_ran_once(chain, events)


def test_locked_blocker_delays_only_the_job_whose_continuation_waits_for_it(processors, quick, gate, start_worker):
    @processors.register("worker.going_on", continues_with=["worker.quick"])
    def going_on(job: RunningJob[Any]) -> Any:
        return job.continue_with("worker.quick", blockers=[blocker])

    blocker = quick.enqueue(delay=600)
    other = lock(blocker)
    chain = going_on.enqueue()
    others = chains.enqueue_many([quick.item() for _ in range(100)])
    start_worker(poll_seconds=0.2)
    until(lambda: Job.objects.filter(status="completed").count() == len(others))
    assert chain.refresh().status == "running"
    other.result()
    until(lambda: chain.refresh().status == "blocked")
    assert not FailedAttempt.objects.exists()


@pytest.mark.parametrize("sqlstate", ["57014", "54000"])
def test_limit_of_the_database_fails_only_the_attempt_that_exceeds_it(processors, quick, start_worker, sqlstate):
    """A limit of time or of a statement's size does not mean that the database is down: the batch is split."""

    @processors.register("worker.guilty", max_attempts=1)
    def guilty(job: RunningJob[Any]) -> None:
        pass

    with raising_when_completed("worker.guilty", sqlstate):
        chain = guilty.enqueue()
        others = chains.enqueue_many([quick.item() for _ in range(100)])
        start_worker(poll_seconds=0.2)
        until(lambda: Job.objects.filter(status="completed").count() == len(others))
        until(lambda: chain.refresh().status == "failed")
    assert [failed.job_id for failed in FailedAttempt.objects.all()] == [chain.id]
    assert "by the trigger" in FailedAttempt.objects.get().error


def test_permanent_conflict_delays_one_job_and_fails_no_attempt(processors, quick, start_worker):
    @processors.register("worker.unlucky")
    def unlucky(job: RunningJob[Any]) -> None:
        pass

    with raising_when_completed("worker.unlucky", "55P03"):
        chain = unlucky.enqueue()
        others = chains.enqueue_many([quick.item() for _ in range(100)])
        start_worker(poll_seconds=0.2)
        until(lambda: Job.objects.filter(status="completed").count() == len(others))
        assert chain.refresh().status == "running"
    until_completed(chain)
    assert not FailedAttempt.objects.exists()


class raising_when_completed:  # noqa: N801 - a context manager
    """A trigger that raises when a job of this type is completed."""

    def __init__(self, type_name: str, sqlstate: str) -> None:
        self._type_name, self._sqlstate = type_name, sqlstate

    def __enter__(self) -> None:
        self._execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION 'by the trigger' USING ERRCODE = '{self._sqlstate}'; END $$",
            "CREATE TRIGGER refuse BEFORE UPDATE ON django_jobchains_job FOR EACH ROW "
            f"WHEN (NEW.status = 'completed' AND NEW.type_name = '{self._type_name}') EXECUTE FUNCTION refuse()",
        )

    def __exit__(self, *error: object) -> None:
        self._execute("DROP TRIGGER refuse ON django_jobchains_job", "DROP FUNCTION refuse")

    @staticmethod
    def _execute(*statements: str) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("ending", ["completed", "failed"])
def test_outcome_is_written_once_if_its_commit_gets_no_reply(
    processors, start_worker, events, monkeypatch, is_committed, ending
):
    @processors.register("worker.unanswered", max_attempts=1)
    def unanswered(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="started")
        if ending == "failed":
            raise ValueError("No.")

    name = "finish" if ending == "completed" else "fail"
    write: Callable[..., Any] = getattr(Attempts, name)
    cuts = iter([True])

    def cut(attempts: Attempts, *args: Any, **options: Any) -> Any:
        if next(cuts, False):
            lose_the_reply(is_committed=is_committed)
        return write(attempts, *args, **options)

    monkeypatch.setattr(Attempts, name, cut)
    start_worker(poll_seconds=0.2)
    chain = unanswered.enqueue()
    until(lambda: events.of(AttemptEnded))
    assert [(event.job_id, event.ending) for event in events.of(AttemptEnded)] == [(chain.id, ending)]
    assert not events.of(AttemptAbandoned)
    assert (chain.refresh().status, chain.current_job.attempt) == (ending, 1)
    assert Effect.objects.count() == 1
    assert FailedAttempt.objects.count() == (ending == "failed")


@pytest.mark.parametrize("mode", ["atomic", "in complete()"])
def test_cancel_does_not_wait_for_a_handler_inside_its_transaction(processors, start_worker, mode):
    reasons = []

    @processors.register("worker.long", mode="atomic" if mode == "atomic" else "staged")
    def long(job: RunningJob[Any]) -> None:
        if mode == "atomic":
            wait(job)
        else:
            with job.complete():
                wait(job)

    def wait(job: RunningJob[Any]) -> None:
        job.signal.wait(30)
        reasons.append(job.signal.reason)
        job.signal.raise_if_aborted()

    worker = start_worker(poll_seconds=0.2)
    chain = long.enqueue()
    until(lambda: worker.running == 1 and len(holders_of_row_locks()) == 1)
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
        assert chains.cancel([chain.id]) == {chain.id}
        cursor.execute("RESET lock_timeout")
    until(lambda: chain.refresh().status == "cancelled")
    assert reasons == ["cancelled"]
