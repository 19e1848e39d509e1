"""Which attempts workers count, and when they store the counts."""

import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.models import AttemptCount, Job
from django_jobchains.monitoring import TypeRuns, throughput
from django_jobchains.processors import Batch, JobType, RunningJob
from django_jobchains.store.stats import TypeTally
from django_jobchains.telemetry.events import AttemptEnded
from django_jobchains.worker import attempt_counter
from django_jobchains.worker.attempt_counter import AttemptCounter
from tests.support.clocks import Clock
from tests.support.jobs import SHIP, running_job
from tests.support.statements import statements_of_others
from tests.support.throughput import put_clock, tally
from tests.support.waiting import stays, until, until_completed

#: Counts that are not stored when a worker stops are lost.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("patient_stop")]

SELDOM = {"HEARTBEAT_SECONDS": 60, "REAP_SECONDS": 0.1}
OFTEN = {"HEARTBEAT_SECONDS": 0.05, "REAP_SECONDS": 0.1}


@pytest.fixture(autouse=True)
def _stores_counts_only_when_it_stops(settings, store):
    settings.JOBCHAINS = SELDOM
    put_clock(store, minute=30, second=30)
    yield
    store.db.ahead_seconds = 0


def counted():
    return {kind.name: (kind.completed, kind.failed) for kind in throughput().types}


def of_type(name):
    return next(kind for kind in throughput().types if kind.name == name)


@pytest.fixture
def quick(processors):
    return processors.register("throughput.quick")(lambda job: None)


# What is counted


def test_a_stopping_worker_stores_the_counts_of_all_its_attempts(processors, start_worker, events):
    @processors.register("throughput.plain")
    def plain(job: RunningJob[int]) -> None:
        if job.input % 3 == 0 and job.attempt == 1:
            raise ValueError("once more")

    @processors.register("throughput.atomic", mode="atomic")
    def atomic(job: RunningJob[int]) -> None:
        time.sleep(0.002)

    @processors.register("throughput.broken", max_attempts=2)
    def broken(job: RunningJob[int]) -> None:
        raise ValueError("no")

    @processors.register("throughput.together", batch_limit=4)
    def together(batch: Batch[int]) -> None:
        for job in batch:
            job.finish(None)

    @processors.register("throughput.async")
    async def on_loop(job: RunningJob[int]) -> None:
        pass

    for kind in (plain, atomic, broken, together, on_loop):
        for number in range(6):
            kind.enqueue(number)
    worker = start_worker()
    until(lambda: not Job.objects.exclude(status__in=["completed", "failed"]).exists())
    worker.stop()
    assert counted() == {
        "throughput.plain": (6, 2),
        "throughput.atomic": (6, 0),
        "throughput.broken": (0, 12),
        "throughput.together": (6, 0),
        "throughput.async": (6, 0),
    }
    assert len(events.of(AttemptEnded)) == sum(sum(pair) for pair in counted().values())


def test_the_duration_of_attempts_is_stored(processors, make_worker):
    kind: JobType[Any, Any] = processors.register("throughput.naps")(lambda job: time.sleep(job.input))
    for seconds in (0.05, 0.35):
        kind.enqueue(seconds)
    make_worker(slots=1).run_until_idle()
    found = of_type("throughput.naps")
    assert found.longest_seconds >= 0.35
    assert 0.2 <= found.mean_seconds < found.longest_seconds


def test_a_crash_is_counted_when_the_lease_has_expired(quick, start_worker):
    chain = quick.enqueue(delay=3_600)
    long_ago = timezone.now() - timedelta(days=1)
    Job.objects.filter(pk=chain.id).update(
        status="running", attempt=1, lease_number=1, leased_by="dead", leased_until=long_ago, last_attempt_at=long_ago
    )
    worker = start_worker()
    until(lambda: Job.objects.get(pk=chain.id).crashes == 1)
    worker.stop()
    assert counted()["throughput.quick"][1] == 1


def test_attempts_that_are_handed_back_or_cancelled_are_not_counted(processors, start_worker, events):
    started = threading.Semaphore(0)

    @processors.register("throughput.waits")
    def waits(job: RunningJob[None]) -> None:
        started.release()
        job.signal.wait(30)
        job.signal.raise_if_aborted()

    worker = start_worker(slots=2)
    cancelled, _ = waits.enqueue(), waits.enqueue()
    assert started.acquire(timeout=15)
    assert started.acquire(timeout=15)
    chains.cancel(cancelled.id)
    until(lambda: cancelled.refresh().status == "cancelled")
    worker.stop(timeout=0)
    assert sorted(event.ending for event in events.of(AttemptEnded)) == ["cancelled", "handed_back"]
    assert counted() == {}


# When counts are stored


def test_counts_are_stored_at_each_heartbeat(quick, start_worker, settings):
    settings.JOBCHAINS = OFTEN
    start_worker()
    quick.enqueue()
    until(lambda: counted() == {"throughput.quick": (1, 0)})
    quick.enqueue()
    until(lambda: counted() == {"throughput.quick": (2, 0)})


def test_an_idle_worker_stores_nothing_and_deletes_old_rows_once_per_heartbeat(quick, start_worker):
    table = AttemptCount._meta.db_table
    with statements_of_others() as statements:
        start_worker()
        until(lambda: statements.count(f'DELETE FROM "{table}"'))
        assert stays(lambda: statements.count(f'DELETE FROM "{table}"') == 1, 0.5)
        assert statements.count(f'INSERT INTO "{table}"') == 0


@pytest.mark.parametrize("pruned", [{}, {"PRUNE_SECONDS": None}])
def test_workers_delete_old_counts_even_if_chains_are_not_pruned(store, quick, start_worker, settings, pruned):
    settings.JOBCHAINS = {**SELDOM, **pruned}
    store.stats.add_counts([tally(SHIP, age_seconds=9 * 86_400)])
    start_worker()
    until(lambda: not AttemptCount.objects.exists())


def test_counts_that_could_not_be_stored_are_kept_and_one_warning_is_logged(
    quick, start_worker, settings, monkeypatch, caplog
):
    settings.JOBCHAINS = OFTEN
    failures: list[object] = []

    def fail(*args: object) -> None:
        failures.append(args)
        raise OperationalError("away")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "django_jobchains"):
        patch.setattr("django_jobchains.store.stats.Stats.add_counts", fail)
        worker = start_worker()
        until_completed(quick.enqueue())
        until(lambda: len(failures) > 2)
        until_completed(quick.enqueue())
        assert worker.components.context.counter.failures.is_failing
    until(lambda: counted() == {"throughput.quick": (2, 0)})
    until(lambda: not worker.components.context.counter.failures.is_failing)
    warnings = [
        record.getMessage() for record in caplog.records if "could not store its attempt counts" in record.getMessage()
    ]
    assert len(warnings) == 1
    assert worker.id in warnings[0]


def test_a_worker_runs_jobs_without_its_table(quick, start_worker, settings):
    settings.JOBCHAINS = OFTEN
    with _renamed_table():
        worker = start_worker()
        until_completed(quick.enqueue())
        until(lambda: worker.components.context.counter.failures.is_failing)
        assert stays(lambda: not worker.failed and worker.components.heartbeat.last_success_at, 0.3)
        until_completed(quick.enqueue())
        worker.stop()


class _renamed_table:  # noqa: N801 - a context manager
    def __enter__(self):
        self._rename(AttemptCount._meta.db_table, "elsewhere")

    def __exit__(self, *error):
        self._rename("elsewhere", AttemptCount._meta.db_table)

    def _rename(self, old, new):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


# What is kept until it is stored


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that replaces the clock of the worker."""
    clock = Clock()
    monkeypatch.setattr(attempt_counter, "time", clock)
    return clock


@pytest.fixture
def ended(store):
    """Return a function that counts ended attempts of these types and this duration."""
    job = running_job(store)

    def ended(counter: AttemptCounter, *types: str, seconds: float = 0.0) -> AttemptCounter:
        for name in types:
            counter.ended(Outcome(job._replace(type_name=name), OutcomeKind.COMPLETED, seconds=seconds))
        return counter

    return ended


@pytest.fixture
def counter(store):
    return AttemptCounter(store, worker="w", seconds=60)


@pytest.mark.parametrize(("after", "back"), [(0.0, 1), (20.0, 1), (40.0, 2), (100.0, 3)])
def test_an_attempt_is_counted_in_the_minute_of_its_end_however_late_it_is_stored(counter, ended, clock, after, back):
    ended(counter, SHIP)
    clock.forward(after)
    counter.step()
    assert [part.completed for part in throughput().minutes][-back] == 1


def test_the_stored_time_of_an_attempt_is_exact_to_half_a_slice(counter, ended, clock, monkeypatch):
    stored: list[TypeTally] = []
    monkeypatch.setattr("django_jobchains.store.stats.Stats.add_counts", lambda self, more: stored.extend(more))
    for place in range(50):
        clock.now = 1_000 + place / 2.3
        ended(counter, f"{clock.now}")
    clock.forward(0.1)
    now = clock.now
    counter.step()
    assert len(stored) == 50
    errors = [abs(float(part.type_name) - (now - part.age_seconds)) for part in stored]
    assert max(errors) <= attempt_counter.SLICE_SECONDS / 2


def test_counts_are_added_to_those_that_could_not_be_stored(store, counter, ended, monkeypatch):
    ended(counter, SHIP, seconds=1.0)

    def fail(*args: object) -> None:
        ended(counter, SHIP, SHIP, seconds=4.0)
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr("django_jobchains.store.stats.Stats.add_counts", fail)
        counter.step()
    counter.step()
    assert throughput().types == (TypeRuns(SHIP, 3, 0, 3.0, 4.0),)
    counter.step()
    assert throughput().last_hour.completed == 3


def test_if_too_many_counts_cannot_be_stored_the_oldest_are_dropped(counter, ended, monkeypatch):
    monkeypatch.setattr(attempt_counter, "MAX_KEPT_SUMS", 3)
    ended(counter, "a", "b", "c", "a", "d", "e")
    counter.step()
    assert set(counted()) == {"c", "d", "e"}


def test_a_long_attempt_outweighs_many_short_ones_in_the_average(counter, ended):
    ended(counter, *[SHIP] * 100, seconds=0.002)
    assert counter.average_seconds[SHIP] == pytest.approx(0.002)
    ended(counter, SHIP, seconds=30.0)
    ended(counter, *[SHIP] * 10, seconds=0.002)
    assert 1 < counter.average_seconds[SHIP] < 30
