"""Another transaction locks a running job, or a job that waits for it: this delays only that job."""

import asyncio
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection

from django_jobchains import chains
from django_jobchains.models import DeferredWrite, FailedAttempt, Job
from django_jobchains.payloads.codecs import encode_payloads
from django_jobchains.processors import Backoff, FailJob, RescheduleJob
from django_jobchains.store import deferred, errors, get_store
from django_jobchains.store.attempts import Attempts
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.deferred import Deferred
from django_jobchains.store.leases import Leases
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, JobReaped, OutcomeDelayed, ThreadFailed
from django_jobchains.worker import end_writer
from django_jobchains.worker.caretakers import Unblocker
from django_jobchains.worker.end_writer import MAX_BATCH_SIZE, MAX_RETRY_SECONDS, DelayedEnds
from django_jobchains.worker.threads import LOCK_SECONDS
from tests.shop.models import Effect
from tests.support.clocks import Clock
from tests.support.connections import holding
from tests.support.jobs import database_now
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import completed
from tests.worker.test_connections import lose_the_reply

pytestmark = pytest.mark.postgresql

#: How far the clock of the database is advanced, so that leases end. Longer than a lease.
AHEAD_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _set_back_clock(store):
    yield
    store.db.ahead_seconds = 0


@pytest.fixture(autouse=True)
def _reaps_soon(settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "SWEEP_SECONDS": 0.1}


@pytest.fixture
def gated(processors, gate, short_lease):
    """A type whose handler records its start and waits for the gate, or until it is aborted."""

    @processors.register("worker.gated", lease=short_lease, backoff=Backoff(7000, 1, 7000, 0))
    def gated(job):
        Effect.objects.create(job_id=job.id, label="started")
        while not gate.wait(0.05):
            job.signal.raise_if_aborted()
        return "done"

    return gated


@pytest.fixture
def quick(processors):
    @processors.register("worker.quick")
    def quick(job):
        Effect.objects.create(job_id=job.id, label="quick")

    return quick


@pytest.fixture
def others(quick):
    """Return a function that waits until this many other jobs are completed."""

    def others(count=100):
        chains.enqueue_many([quick.item() for _ in range(count)])
        until(lambda: completed() == count)

    return others


def lock(chain):
    """Lock the row of the chain's job in another transaction, until ``result()`` is called."""
    return holding(lambda store: store.attempts.lock(chain.id))


@pytest.fixture
def start(start_worker):
    return lambda **options: start_worker(**{"poll_seconds": 0.2, **options})


@pytest.fixture
def locked(gated, start):
    """Return a running chain of a worker, and the transaction that has locked its job."""
    chain = gated.enqueue()
    start()
    until(lambda: Effect.objects.filter(job_id=chain.id, label="started").exists())
    return chain, lock(chain)


def return_and_stop(worker, gate, *enqueued):
    """Let the handlers of these chains return while their jobs are locked, and stop the worker. Return the locks."""
    until(lambda: worker.running == len(enqueued))
    locks = [lock(chain) for chain in enqueued]
    gate.set()
    until(lambda: worker.running == 0)
    worker.stop()
    return locks


def until_its_lease_would_have_ended(chain):
    """Advance the clock past the time in the job's row, which cannot be renewed while it is locked.

    Wait until the worker has renewed the lease without writing to the row, before and after that.
    """
    renewals = DeferredWrite.objects.filter(job_id=chain.id, kind="lease")
    until(renewals.exists)
    get_store().db.ahead_seconds = AHEAD_SECONDS
    until(renewals.filter(leased_until__gt=database_now() + timedelta(seconds=AHEAD_SECONDS)).exists)


def assert_ran_once(chain, events):
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes, job.lease_number) == ("completed", 1, 0, 1)
    assert Effect.objects.filter(job_id=chain.id, label="started").count() == 1
    assert not FailedAttempt.objects.exists()
    assert not events.of(AttemptAbandoned)
    assert not events.of(JobReaped)


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["while it is locked", "after the lock is released"])
def test_locked_attempt_is_neither_aborted_nor_reaped_and_other_jobs_continue(
    locked, others, gate, start, events, returns
):
    (chain, other), worker = locked, start()
    if returns == "while it is locked":
        gate.set()
    others(600)
    until_its_lease_would_have_ended(chain)
    assert stays(lambda: chain.refresh().status == "running", 0.3)
    assert (worker.health().is_live, worker.health().is_ready) == (True, True)
    other.result()
    gate.set()
    until_completed(chain)
    assert_ran_once(chain, events)


def test_delayed_outcomes_do_not_stop_claims(processors, quick, gate, start):
    """Only outcomes that have not been tried count as a backlog."""
    count = 2 * MAX_BATCH_SIZE + 10

    @processors.register("worker.on_loop")
    async def on_loop(job):
        while not gate.is_set():  # noqa: ASYNC110 - the gate is a threading.Event
            await asyncio.sleep(0.05)

    worker = start(async_slots=count)
    enqueued = chains.enqueue_many([on_loop.item() for _ in range(count)])
    until(lambda: worker.running == count)
    other = holding(lambda store: list(Job.objects.select_for_update().filter(type_name="worker.on_loop")))
    gate.set()
    until(lambda: worker.running == 0)
    until_completed(quick.enqueue())
    assert {chain.refresh().status for chain in enqueued} == {"running"}
    other.result()


def test_delay_is_reported_once_and_names_the_job(locked, gate, events):
    chain, other = locked
    gate.set()
    until(lambda: events.of(OutcomeDelayed))
    other.result()
    until_completed(chain)
    [delayed] = events.of(OutcomeDelayed)
    assert (delayed.job_id, delayed.type_name) == (chain.id, "worker.gated")
    assert delayed.line().endswith("another transaction has locked it, or a job that waits for it")


def test_locked_dependent_delays_only_the_chain_it_waits_for(gated, quick, others, gate, start, events):
    start()
    chain = gated.enqueue()
    dependent = quick.enqueue(blockers=[chain])
    until(lambda: Effect.objects.filter(label="started").exists())
    other = lock(dependent)
    gate.set()
    others()
    assert chain.refresh().status == "running"
    other.result()
    until_completed(dependent)
    assert_ran_once(chain, events)


@pytest.mark.parametrize("stops", [False, True])
def test_locked_dependent_delays_only_the_expired_job_it_waits_for(quick, others, start, store, events, stops):
    """A worker that stops hands over the job that it could not cancel, so that it does not count as crashed."""
    late, other_late = [quick.enqueue(expires=database_now() - timedelta(minutes=1)) for _ in range(2)]
    other = lock(quick.enqueue(blockers=[late]))
    worker = start()
    others()
    until(lambda: other_late.refresh().is_expired and late.refresh().status == "running")
    assert not events.of(ThreadFailed)
    if stops:
        worker.stop()
        store.db.ahead_seconds = AHEAD_SECONDS
        start()
        assert stays(lambda: late.refresh().status == "running", 0.3)
    other.result()
    until(lambda: late.refresh().is_expired)
    assert (late.current_job.attempt, late.current_job.crashes) == (0, 0)


@pytest.fixture
def locked_late(quick):
    """Four expired jobs that one locked job waits for."""
    late = chains.enqueue_many([quick.item(expires=database_now() - timedelta(minutes=1)) for _ in range(4)])
    other = lock(quick.enqueue(blockers=late))
    yield late
    other.result()


def test_claim_loop_defers_expired_jobs_that_it_cannot_cancel_soon(locked_late, make_worker, store, monkeypatch):
    monkeypatch.setattr(errors, "MAX_PARTS_SECONDS", -1)  # Only until the first failure.
    hand_back, tried, expired = Attempts.hand_back, [], []

    def record(attempts, keys, *args, **options):
        tried.append(len(keys))
        return hand_back(attempts, keys, *args, **options)

    monkeypatch.setattr(Attempts, "hand_back", record)
    store.jobs.claim("worker", 10, {"worker.quick": 60}, expired=expired)
    make_worker().components.claim_loop._hand_back([job.key for job in expired])
    assert tried == [4, 2, 1]
    assert set(DeferredWrite.objects.values_list("job_id", flat=True)) == {chain.id for chain in locked_late}


def test_expired_jobs_that_maintenance_cannot_cancel_are_logged_once_per_round(locked_late, make_worker, caplog):
    unblocker = Unblocker(make_worker().components.context, SimpleNamespace(is_first=True))
    for _ in range(2):
        while unblocker.step():
            pass
    lines = [record.getMessage() for record in caplog.records if "cannot be cancelled yet" in record.getMessage()]
    assert [line.partition(",")[0] for line in lines] == ["4 expired jobs cannot be cancelled yet"] * 2


def test_locked_dependent_of_a_stuck_job_does_not_delay_other_maintenance(processors, quick, make_worker):
    follower = processors.register("worker.follower", on_blocker_failure="fail")(lambda job: None)
    unblocker = Unblocker(make_worker().components.context, SimpleNamespace(is_first=True))
    failed = quick.enqueue()
    stuck = follower.enqueue(blockers=[failed])
    other = lock(follower.enqueue(blockers=[stuck]))
    Job.objects.filter(pk=failed.id).update(status="failed")
    late = quick.enqueue(expires=database_now() - timedelta(minutes=1))
    with pytest.raises(OperationalError):
        unblocker.step()
    assert late.refresh().is_expired
    other.result()
    unblocker.step()
    assert stuck.refresh().status == "failed"


def test_locked_blocker_delays_only_the_job_whose_continuation_waits_for_it(processors, quick, others, start):
    @processors.register("worker.going_on", continues_with=["worker.quick"])
    def going_on(job):
        return job.continue_with("worker.quick", blockers=[blocker])

    blocker = quick.enqueue(delay=600)
    other = lock(blocker)
    chain = going_on.enqueue()
    start()
    others()
    assert chain.refresh().status == "running"
    other.result()
    until(lambda: chain.refresh().status == "blocked")
    assert not FailedAttempt.objects.exists()


@contextmanager
def raising_when_completed(type_name, sqlstate):
    """Let a trigger raise when a job of this type is completed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION 'by the trigger' USING ERRCODE = '{sqlstate}'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON django_jobchains_job FOR EACH ROW "
            f"WHEN (NEW.status = 'completed' AND NEW.type_name = '{type_name}') EXECUTE FUNCTION refuse()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER refuse ON django_jobchains_job")
        cursor.execute("DROP FUNCTION refuse")


@pytest.mark.parametrize(("sqlstate", "fails"), [("57014", True), ("54000", True), ("55P03", False)])
def test_error_of_the_database_affects_only_the_attempt_that_causes_it(processors, others, start, sqlstate, fails):
    """The batch is split. A limit of time or size fails the attempt; a permanent conflict only delays the job."""
    chain = processors.register("worker.guilty", max_attempts=1)(lambda job: None).enqueue()
    with raising_when_completed("worker.guilty", sqlstate):
        start()
        others()
        if fails:
            until(lambda: chain.refresh().status == "failed")
        else:
            assert chain.refresh().status == "running"
    if fails:
        [failed] = FailedAttempt.objects.all()
        assert failed.job_id == chain.id
        assert "by the trigger" in failed.error
    else:
        until_completed(chain)
        assert not FailedAttempt.objects.exists()


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("ending", ["completed", "failed"])
def test_outcome_is_written_once_if_its_commit_gets_no_reply(
    processors, start, events, monkeypatch, is_committed, ending
):
    @processors.register("worker.unanswered", max_attempts=1)
    def unanswered(job):
        Effect.objects.create(job_id=job.id, label="started")
        if ending == "failed":
            raise ValueError("No.")

    name = "finish" if ending == "completed" else "fail"
    write, cuts = getattr(Attempts, name), iter([True])

    def cut(attempts, *args, **options):
        if next(cuts, False):
            lose_the_reply(is_committed=is_committed)
        return write(attempts, *args, **options)

    monkeypatch.setattr(Attempts, name, cut)
    start()
    chain = unanswered.enqueue()
    until(lambda: events.of(AttemptEnded))
    assert [(event.job_id, event.ending) for event in events.of(AttemptEnded)] == [(chain.id, ending)]
    assert not events.of(AttemptAbandoned)
    assert (chain.refresh().status, chain.current_job.attempt) == (ending, 1)
    assert Effect.objects.count() == 1
    assert FailedAttempt.objects.count() == (ending == "failed")


@pytest.mark.parametrize("mode", ["atomic", "in complete()"])
def test_cancel_does_not_wait_for_a_handler_inside_its_transaction(processors, start, mode):
    reasons = []

    @processors.register("worker.long", mode="atomic" if mode == "atomic" else "staged")
    def long(job):
        if mode == "atomic":
            wait(job)
        else:
            with job.complete():
                wait(job)

    def wait(job):
        job.signal.wait(30)
        reasons.append(job.signal.reason)
        job.signal.raise_if_aborted()

    worker = start()
    chain = long.enqueue()
    until(lambda: worker.running == 1 and holders_of_row_locks() == 1)
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
        assert chains.cancel([chain.id]) == {chain.id}
        cursor.execute("RESET lock_timeout")
    until(lambda: chain.refresh().status == "cancelled")
    assert reasons == ["cancelled"]


def holders_of_row_locks():
    """Return the number of sessions that are idle in a transaction and have written or locked rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
        )
        return cursor.fetchone()[0]


@pytest.mark.parametrize("stops", [True, False])
def test_statements_over_many_jobs_have_a_short_lock_timeout(processors, gate, start, monkeypatch, stops):
    calls = {}

    def record_lock_timeouts(owner, name):
        call = getattr(owner, name)

        def recorded(part, *args, **options):
            calls.setdefault(name, set()).add((threading.current_thread().name, part.db._patience.milliseconds))
            return call(part, *args, **options)

        monkeypatch.setattr(owner, name, recorded)

    for owner, name in ((Leases, "reap"), (Deferred, "apply"), (Blockers, "sweep"), (Attempts, "hand_back")):
        record_lock_timeouts(owner, name)
    chain = processors.register("worker.unresponsive")(lambda job: gate.wait(30)).enqueue()
    worker = start(slots=1)
    until(lambda: worker.running == 1)
    expected = int(LOCK_SECONDS * 1000)
    if stops:
        worker.stop(timeout=0)
        until(lambda: calls.get("hand_back") == {("jobchains-hand-back", expected)}, what=calls)
    else:
        until(lambda: calls.keys() >= {"reap", "apply", "sweep"})
        worker.components.claim_loop._hand_back([(chain.id, 0)])
        assert {timeout for recorded in calls.values() for _thread, timeout in recorded} == {expected}


# Workers that stop while jobs are locked


def test_worker_that_stops_while_a_job_is_locked_stores_the_result_for_later(gated, quick, gate, start, store, events):
    """Handlers that have returned do not run again, and no crash is counted."""
    worker = start()
    chain = gated.enqueue()
    until(lambda: Effect.objects.filter(label="started").exists())
    other = lock(chain)
    gate.set()
    until(lambda: worker.running == 0)
    chains.enqueue_many([quick.item() for _ in range(50)])
    until(lambda: Effect.objects.filter(label="quick").count() > 10)
    worker.stop()
    running = Job.objects.filter(status="running").values_list("id", flat=True)
    stored = DeferredWrite.objects.filter(kind="outcome").values_list("job_id", flat=True)
    until(lambda: chain.id in stored.all() and set(running.all()) <= set(stored.all()))
    returned = set(Effect.objects.filter(label="quick").values_list("job_id", flat=True))
    assert {*Job.objects.with_status("completed").values_list("id", flat=True), *stored} == {*returned, chain.id}
    start()
    until(lambda: completed() == 50)
    store.db.ahead_seconds = AHEAD_SECONDS
    assert stays(lambda: chain.refresh().status == "running", 0.5)
    other.result()
    until_completed(chain)
    assert chain.refresh().output == "done"
    assert_ran_once(chain, events)
    assert Effect.objects.filter(label="quick").count() == 50
    assert not DeferredWrite.objects.filter(kind="outcome").exists()


def test_outcome_that_cannot_be_stored_is_not_reported_as_stored(gated, gate, start, store, monkeypatch, caplog):
    """A codec may refuse it, for example."""
    defer, enqueued = store.deferred.defer, [gated.enqueue() for _ in range(2)]

    def refuse_one(ended):
        if enqueued[0].id in {attempt.key[0] for attempt in ended}:
            raise ValueError("no key")
        defer(ended)

    monkeypatch.setattr(store.deferred, "defer", refuse_one)
    locks = return_and_stop(start(), gate, *enqueued)
    until(lambda: "The ends of 1 attempts could not be written" in caplog.text)
    assert f"The outcome of job {enqueued[0].id} could not be stored" in caplog.text
    for other in locks:
        other.result()


def test_handler_inside_complete_does_not_prevent_other_hand_backs(processors, start, gate, caplog):
    """Its own job is returned to the queue when its transaction has ended, without counting an attempt."""
    is_inside = threading.Event()

    @processors.register("worker.inside")
    def inside(job):
        if job.attempt == 1 and job.input and not gate.is_set():
            with job.complete():
                is_inside.set()
                gate.wait(30)
                raise ValueError("It is rolled back.")
        gate.wait(30)
        return "done"

    worker = start(slots=5)
    locked = inside.enqueue(True)
    others = chains.enqueue_many([inside.item(False) for _ in range(4)])
    until(lambda: worker.running == 5)
    assert is_inside.wait(15)
    worker.stop(timeout=0)
    until(lambda: {chain.refresh().status for chain in others} == {"pending"})
    until(
        lambda: "The ends of 1 attempts could not be written, for example because their jobs are locked" in caplog.text
    )
    assert locked.refresh().status == "running"
    gate.set()
    start()
    for chain in [locked, *others]:
        until_completed(chain)
    assert [(job.attempt, job.crashes) for job in Job.objects.all()] == [(1, 0)] * 5
    assert not FailedAttempt.objects.exists()


@pytest.mark.parametrize("max_attempts", [None, 1])
def test_unwritable_deferred_result_fails_by_the_policy_of_its_type(processors, gate, start, max_attempts):
    policy = {"backoff": Backoff(7000, 1, 7000, 0), "max_attempts": max_attempts}
    chain = processors.register("worker.refused", **policy)(lambda job: gate.wait(15)).enqueue()
    [other] = return_and_stop(start(), gate, chain)
    with raising_when_completed("worker.refused", "54000"):
        other.result()
        start()
        until(lambda: FailedAttempt.objects.exists())
    job, failed = Job.objects.get(), FailedAttempt.objects.get()
    assert job.status == ("failed" if max_attempts else "pending")
    assert max_attempts or (job.run_at - failed.finished_at).total_seconds() == pytest.approx(7000, abs=60)


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (None, 7000),
        (ValueError(), 7000),
        (RescheduleJob(delay=60), 60),
        (RescheduleJob(run_at=datetime(2100, 1, 1, tzinfo=UTC)), 7000),
        (FailJob(), None),
    ],
    ids=repr,
)
def test_deferred_outcome_stores_the_backoff_of_its_type(processors, gate, start, error, wait):
    @processors.register("worker.backed_off", backoff=Backoff(7000, 1, 7000, 0))
    def backed_off(job):
        gate.wait(15)
        if error is not None:
            raise error

    [other] = return_and_stop(start(), gate, backed_off.enqueue())
    other.result()
    stored = until(lambda: DeferredWrite.objects.filter(kind="outcome").first())
    assert stored.outcome["retry_seconds"] == wait


def test_outcome_that_cannot_be_stored_does_not_affect_the_others(processors, gate, start, monkeypatch):
    def encode(row):
        if "refused" in row["output"]:
            raise RuntimeError("The codec has no key.")
        return encode_payloads(row)

    returning = processors.register("worker.returning")(lambda job: gate.wait(15) and job.input)
    monkeypatch.setattr(deferred, "encode_payloads", encode)
    enqueued = [returning.enqueue(text) for text in ("one", "refused", "two")]
    for other in return_and_stop(start(slots=3), gate, *enqueued):
        other.result()
    stored = DeferredWrite.objects.filter(kind="outcome").values_list("job_id", flat=True)
    until(lambda: set(stored.all()) == {enqueued[0].id, enqueued[2].id}, what=stored.all)


# Delayed outcomes are retried for a limited share of the time


def test_delayed_outcomes_are_retried_in_the_order_of_their_due_times_for_a_limited_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(end_writer, "time", clock)
    delayed, tried = DelayedEnds(lambda *reported: None), []

    def write(outcome):
        tried.append(outcome.job.id)
        clock.now += MAX_RETRY_SECONDS * 0.4
        delayed.add(outcome)

    for number in range(5):
        delayed.add(SimpleNamespace(job=SimpleNamespace(id=number, key=(number, 1), type_name="shop.ship")))
        clock.now += 0.001
    clock.now += 1
    delayed.retry(write)
    assert tried == [0, 1, 2]
    delayed.retry(write)
    assert tried == [0, 1, 2, 3, 4, 0]


def test_delayed_write_of_the_last_outcome_wakes_the_claim_loop(processors, make_worker, monkeypatch):
    """The claim loop polls once a minute, and has already found that the outcome is still to be written."""
    others, tries = [], []
    add = DelayedEnds.add

    @processors.register("worker.locked")
    def locked(job):
        others.append(holding(lambda store: store.attempts.lock(job.id)))
        return "done"

    def add_and_release(self, outcome, error=""):
        add(self, outcome, error)
        tries.append(outcome)
        if len(tries) == 7:  # they take longer than the pause before the worker's second query
            others.pop().result()

    monkeypatch.setattr(DelayedEnds, "add", add_and_release)
    chain = locked.enqueue()
    make_worker().run_until_idle(timeout=30)
    assert chain.refresh().output == "done"
