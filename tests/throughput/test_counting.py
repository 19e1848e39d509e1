"""Which attempts workers count, and when they store the counts."""

import logging
import time

import pytest
from django.db import OperationalError

from django_jobchains import chains
from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.models import AttemptCount, Job
from django_jobchains.monitoring import TypeRuns, overview, throughput
from django_jobchains.monitoring.throughput import hourly_totals, sum_totals
from django_jobchains.processors import Batch
from django_jobchains.telemetry.events import AttemptEnded
from django_jobchains.worker import attempt_counter
from django_jobchains.worker.attempt_counter import AttemptCounter
from tests.support.clocks import Clock
from tests.support.databases import without_table
from tests.support.jobs import SHIP, running_job
from tests.support.statements import statements_of_others
from tests.support.throughput import put_clock, tally
from tests.support.waiting import stays, until, until_completed
from tests.worker.test_reaping import create_orphaned

#: Counts that are not stored when a worker stops are lost.
pytestmark = pytest.mark.usefixtures("patient_stop")

TABLE = AttemptCount._meta.db_table


@pytest.fixture(autouse=True)
def _stores_counts_only_when_it_stops(settings, store, transactional_db):
    settings.JOBCHAINS = {"HEARTBEAT_SECONDS": 60, "REAP_SECONDS": 0.1}
    put_clock(store, minute=30, second=30)


@pytest.fixture
def _stores_counts_often(settings):
    settings.JOBCHAINS = {"HEARTBEAT_SECONDS": 0.05, "REAP_SECONDS": 0.1}


often = pytest.mark.usefixtures("_stores_counts_often")


def counted():
    return {kind.name: (kind.completed, kind.failed, kind.jobs_failed) for kind in throughput().types}


def away(*args):
    raise OperationalError("away")


# What is counted


def test_a_stopping_worker_stores_the_counts_of_all_its_attempts(processors, start_worker, events):
    @processors.register("throughput.plain")
    def plain(job):
        if job.input % 3 == 0 and job.attempt == 1:
            raise ValueError("once more")

    @processors.register("throughput.broken", max_attempts=2)
    def broken(job):
        raise ValueError("no")

    @processors.register("throughput.together", batch_limit=4)
    def together(batch: Batch[int]):
        for job in batch:
            job.finish(None)

    @processors.register("throughput.async")
    async def on_loop(job):
        pass

    atomic = processors.register("throughput.atomic", mode="atomic")(lambda job: time.sleep(0.002))
    for kind in (plain, atomic, broken, together, on_loop):
        chains.enqueue_many([kind.item(number) for number in range(6)])
    crashed = processors.register("throughput.crashed")(lambda job: None)
    create_orphaned(crashed)
    worker = start_worker()
    until(lambda: not Job.objects.exclude(status__in=["completed", "failed"]).exists())
    worker.stop()
    assert counted() == {
        "throughput.plain": (6, 2, 0),
        "throughput.atomic": (6, 0, 0),
        "throughput.broken": (0, 12, 6),
        "throughput.together": (6, 0, 0),
        "throughput.async": (6, 0, 0),
        "throughput.crashed": (1, 1, 0),
    }
    assert len(events.of(AttemptEnded)) == sum(done + failed for done, failed, _ in counted().values()) - 1
    hours, _ = hourly_totals("default", 24, queue="default")
    totals = sum_totals(hours)
    assert (totals.completed, totals.failed, totals.jobs_failed) == (25, 15, 6)


def test_a_job_that_crashes_too_often_is_a_failed_job(processors, start_worker, settings):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "MAX_CRASHES": 1}
    create_orphaned(processors.register("throughput.crashed")(lambda job: None))
    worker = start_worker()
    until(lambda: Job.objects.filter(status="failed").exists())
    worker.stop()
    assert counted() == {"throughput.crashed": (0, 1, 1)}


def test_the_duration_of_attempts_is_stored(processors, make_worker):
    kind = processors.register("throughput.naps")(lambda job: time.sleep(job.input))
    for seconds in (0.05, 0.35):
        kind.enqueue(seconds)
    make_worker(slots=1).run_until_idle()
    [found] = throughput().types
    assert found.longest_seconds >= 0.35
    assert 0.2 <= found.mean_seconds < found.longest_seconds


def test_an_attempt_lasts_from_its_claim_until_its_outcome_is_stored(counter, store, clock):
    """As on the page of the job: the handler is only a part of it."""
    job = running_job(store)
    outcome = Outcome(job, OutcomeKind.COMPLETED, seconds=0.5, is_written=True)
    claimed_at = clock.now
    clock.forward(3.0)
    counter.ended([outcome], [claimed_at])
    counter.step()
    [found] = throughput().types
    assert found.longest_seconds == pytest.approx(3.0)
    assert counter.average_seconds[job.type_name] == 0.5


def test_attempts_that_are_handed_back_or_cancelled_are_not_counted(processors, start_worker, events):
    @processors.register("throughput.waits")
    def waits(job):
        job.signal.wait(30)
        job.signal.raise_if_aborted()

    worker = start_worker(slots=2)
    cancelled, _ = waits.enqueue(), waits.enqueue()
    until(lambda: worker.running == 2)
    chains.cancel(cancelled.id)
    until(lambda: cancelled.refresh().status == "cancelled")
    worker.stop(timeout=0)
    assert sorted(event.ending for event in events.of(AttemptEnded)) == ["cancelled", "handed_back"]
    assert counted() == {}
    assert not overview().failing


# When counts are stored


@often
def test_counts_are_stored_at_each_heartbeat(quick, start_worker):
    start_worker()
    for count in (1, 2):
        quick.enqueue()
        until(lambda count=count: counted() == {"worker.quick": (count, 0, 0)})


def test_an_idle_worker_stores_nothing_and_deletes_old_rows_once_per_heartbeat(store, quick, start_worker, settings):
    """Chains need not be pruned."""
    settings.JOBCHAINS = {**settings.JOBCHAINS, "PRUNE_SECONDS": None}
    store.stats.add_counts([tally(SHIP, age_seconds=9 * 86_400)])
    with statements_of_others() as statements:
        start_worker()
        until(lambda: not AttemptCount.objects.exists())
        assert stays(lambda: statements.count(f'DELETE FROM "{TABLE}"') == 1, 0.5)
        assert statements.count(f'INSERT INTO "{TABLE}"') == 0


@often
def test_counts_that_could_not_be_stored_are_kept_and_one_warning_is_logged(quick, start_worker, monkeypatch, caplog):
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "django_jobchains"):
        patch.setattr("django_jobchains.store.stats.Stats.add_counts", away)
        worker = start_worker()
        failures = worker.components.context.counter.failures
        for _ in range(2):
            until_completed(quick.enqueue())
            until(lambda: failures.is_failing)
    until(lambda: counted() == {"worker.quick": (2, 0, 0)})
    until(lambda: not failures.is_failing)
    logged = [record.getMessage() for record in caplog.records]
    [warning] = [message for message in logged if "could not store its attempt counts" in message]
    assert worker.id in warning


@often
def test_a_worker_runs_jobs_without_its_table(quick, start_worker):
    with without_table(TABLE):
        worker = start_worker()
        until_completed(quick.enqueue())
        until(lambda: worker.components.context.counter.failures.is_failing)
        assert stays(lambda: not worker.failed and worker.components.heartbeat.last_success_at, 0.3)
        until_completed(quick.enqueue())
        worker.stop()


# What is kept until it is stored


@pytest.fixture
def clock(monkeypatch):
    """A clock that replaces the clock of the worker."""
    clock = Clock()
    monkeypatch.setattr(attempt_counter, "time", clock)
    return clock


@pytest.fixture
def counter(store):
    return AttemptCounter(store, worker="w", seconds=60)


@pytest.fixture
def ended(store, counter):
    """Return a function that counts ended attempts of these types and this duration."""
    job = running_job(store)

    def ended(*types, seconds=0.0):
        for name in types:
            outcome = Outcome(job._replace(type_name=name), OutcomeKind.COMPLETED, seconds=seconds, is_written=True)
            counter.ended([outcome], [None])

    return ended


@pytest.mark.parametrize(("after", "back"), [(0.0, 1), (20.0, 1), (40.0, 2), (100.0, 3)])
def test_an_attempt_is_counted_in_the_minute_of_its_end_however_late_it_is_stored(counter, ended, clock, after, back):
    ended(SHIP)
    clock.forward(after)
    counter.step()
    assert [part.completed for part in throughput().minutes][-back] == 1


def test_the_stored_time_of_an_attempt_is_exact_to_half_a_slice(counter, ended, clock, monkeypatch):
    stored = []
    monkeypatch.setattr("django_jobchains.store.stats.Stats.add_counts", lambda self, more: stored.extend(more))
    for place in range(50):
        clock.now = 1_000 + place / 2.3
        ended(f"{clock.now}")
    clock.forward(0.1)
    now = clock.now
    counter.step()
    assert len(stored) == 50
    errors = [abs(float(part.type_name) - (now - part.age_seconds)) for part in stored]
    assert max(errors) <= attempt_counter.SLICE_SECONDS / 2


def test_counts_are_added_to_those_that_could_not_be_stored(counter, ended, monkeypatch):
    ended(SHIP, seconds=1.0)

    def fail(*args):
        ended(SHIP, SHIP, seconds=4.0)
        away()

    with monkeypatch.context() as patch:
        patch.setattr("django_jobchains.store.stats.Stats.add_counts", fail)
        counter.step()
    for _ in range(2):
        counter.step()
        assert throughput().types == (TypeRuns(SHIP, 3, 0, 0, 3.0, 4.0),)


def test_if_too_many_counts_cannot_be_stored_the_oldest_are_dropped(counter, ended, monkeypatch):
    monkeypatch.setattr(attempt_counter, "MAX_KEPT_SUMS", 3)
    ended("a", "b", "c", "a", "d", "e")
    counter.step()
    assert set(counted()) == {"c", "d", "e"}


def test_a_long_attempt_outweighs_many_short_ones_in_the_average(counter, ended):
    ended(*[SHIP] * 100, seconds=0.002)
    assert counter.average_seconds[SHIP] == pytest.approx(0.002)
    ended(SHIP, seconds=30.0)
    ended(*[SHIP] * 10, seconds=0.002)
    assert 1 < counter.average_seconds[SHIP] < 30
