"""Which attempts workers count, and when they tell it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.attempts import Ending, Outcome
from django_jobchains.models import AttemptCount, Job
from django_jobchains.processors import Batch, JobType, Processors, RunningJob
from django_jobchains.store import Store, TypeTally
from django_jobchains.telemetry.events import AttemptEnded
from django_jobchains.throughput import TypeRuns, throughput
from django_jobchains.worker import tally as tallies
from django_jobchains.worker.tally import AttemptTally
from tests.store.jobs import SHIP, running_job
from tests.throughput.telling import put_clock
from tests.throughput.telling import tally as told
from tests.worker.fixtures import Events, StartWorker
from tests.worker.statements import statements_of_others
from tests.worker.waiting import stays, until, until_completed

SELDOM = {"HEARTBEAT_SECONDS": 60, "REAP_SECONDS": 0.1}
OFTEN = {"HEARTBEAT_SECONDS": 0.05, "REAP_SECONDS": 0.1}


@pytest.fixture(autouse=True)
def _tells_at_its_end_alone(settings: Any, store: Store) -> Iterator[None]:
    settings.JOBCHAINS = SELDOM
    put_clock(store, minute=30, second=30)
    yield
    store.ahead_seconds = 0


def counted() -> dict[str, tuple[int, int]]:
    return {kind.name: (kind.completed, kind.failed) for kind in throughput().types}


def of_type(name: str) -> TypeRuns:
    return next(kind for kind in throughput().types if kind.name == name)


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("throughput.quick")(lambda job: None)


# What counts


def test_after_its_end_all_that_a_worker_ended_is_told(
    processors: Processors, start_worker: StartWorker, events: Events
) -> None:
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


def test_it_is_told_how_long_attempts_took(processors: Processors, make_worker: StartWorker) -> None:
    kind: JobType[Any, Any] = processors.register("throughput.naps")(lambda job: time.sleep(job.input))
    for seconds in (0.05, 0.35):
        kind.enqueue(seconds)
    make_worker(slots=1).run_until_idle()
    found = of_type("throughput.naps")
    assert 0.35 <= found.longest_seconds < 1
    assert 0.2 <= found.mean_seconds < 0.6


def test_a_crash_counts_when_its_lease_ran_out(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    chain = quick.enqueue(delay=3_600)
    long_ago = timezone.now() - timedelta(days=1)
    Job.objects.filter(pk=chain.id).update(
        status="running", attempt=1, lease_number=1, leased_by="dead", leased_until=long_ago, last_attempt_at=long_ago
    )
    worker = start_worker()
    until(lambda: Job.objects.get(pk=chain.id).crashes == 1)
    worker.stop()
    assert counted()["throughput.quick"][1] == 1


def test_what_is_handed_back_or_cancelled_does_not_count(
    processors: Processors, start_worker: StartWorker, events: Events
) -> None:
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


# When it is told


def test_it_is_told_about_once_per_heartbeat(
    quick: JobType[Any, Any], start_worker: StartWorker, settings: Any
) -> None:
    settings.JOBCHAINS = OFTEN
    start_worker()
    quick.enqueue()
    until(lambda: counted() == {"throughput.quick": (1, 0)})
    quick.enqueue()
    until(lambda: counted() == {"throughput.quick": (2, 0)})


def test_an_idle_worker_tells_nothing_and_looks_once_per_heartbeat_for_old_rows(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    table = AttemptCount._meta.db_table
    with statements_of_others() as statements:
        start_worker()
        until(lambda: statements.count(f'DELETE FROM "{table}"'))
        assert stays(lambda: statements.count(f'DELETE FROM "{table}"') == 1, 0.5)
        assert statements.count(f'INSERT INTO "{table}"') == 0


@pytest.mark.parametrize("pruned", [{}, {"PRUNE_SECONDS": None}])
def test_workers_delete_old_counts_also_where_chains_are_not_pruned(
    store: Store, quick: JobType[Any, Any], start_worker: StartWorker, settings: Any, pruned: dict[str, Any]
) -> None:
    settings.JOBCHAINS = {**SELDOM, **pruned}
    store.add_counts([told(SHIP, age_seconds=9 * 86_400)])
    start_worker()
    until(lambda: not AttemptCount.objects.exists())


def test_what_could_not_be_told_is_kept_for_the_next_time_and_the_worker_says_so_once(
    quick: JobType[Any, Any],
    start_worker: StartWorker,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.JOBCHAINS = OFTEN
    failures: list[object] = []

    def fail(*args: object) -> None:
        failures.append(args)
        raise OperationalError("away")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "django_jobchains"):
        patch.setattr("django_jobchains.store.attempt_counts.AttemptCounts.add_counts", fail)
        worker = start_worker()
        until_completed(quick.enqueue())
        until(lambda: len(failures) > 2)
        until_completed(quick.enqueue())
        assert worker.parts.tally.is_failing
    until(lambda: counted() == {"throughput.quick": (2, 0)})
    until(lambda: not worker.parts.tally.is_failing)
    said = [record.getMessage() for record in caplog.records if "could not tell" in record.getMessage()]
    assert len(said) == 1
    assert worker.id in said[0]


def test_without_its_table_a_worker_works(quick: JobType[Any, Any], start_worker: StartWorker, settings: Any) -> None:
    settings.JOBCHAINS = OFTEN
    with _renamed_table():
        worker = start_worker()
        until_completed(quick.enqueue())
        until(lambda: worker.parts.tally.is_failing)
        assert stays(lambda: not worker.failed and worker.parts.heartbeat.last_success_at, 0.3)
        until_completed(quick.enqueue())
        worker.stop()


class _renamed_table:  # noqa: N801 - a context manager
    def __enter__(self) -> None:
        self._rename(AttemptCount._meta.db_table, "elsewhere")

    def __exit__(self, *error: object) -> None:
        self._rename("elsewhere", AttemptCount._meta.db_table)

    def _rename(self, old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


# What is kept until it is told


class Watch:
    """The worker's own clock, as the test sets it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(tallies, "time", watch)
    return watch


@pytest.fixture
def ended(store: Store) -> Callable[..., AttemptTally]:
    """A tally to which attempts of these types, and these seconds, have ended."""
    job = running_job(store)

    def ended(tally: AttemptTally, *types: str, seconds: float = 0.0) -> AttemptTally:
        for name in types:
            tally.ended(Outcome(job._replace(type_name=name), Ending.COMPLETED, seconds=seconds))
        return tally

    return ended


@pytest.fixture
def tally(store: Store) -> AttemptTally:
    return AttemptTally(store, worker="w", seconds=60)


@pytest.mark.parametrize(("after", "back"), [(0.0, 1), (20.0, 1), (40.0, 2), (100.0, 3)])
def test_an_attempt_counts_in_the_minute_it_ended_in_however_late_it_is_told(
    tally: AttemptTally, ended: Callable[..., AttemptTally], watch: Watch, after: float, back: int
) -> None:
    ended(tally, SHIP)
    watch.seconds += after
    tally.step()
    assert [part.completed for part in throughput().minutes][-back] == 1


def test_no_attempt_is_further_from_its_moment_than_half_a_slice(
    tally: AttemptTally, ended: Callable[..., AttemptTally], watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[TypeTally] = []
    monkeypatch.setattr(
        "django_jobchains.store.attempt_counts.AttemptCounts.add_counts", lambda self, more: said.extend(more)
    )
    for place in range(50):
        watch.seconds = 1_000 + place / 2.3
        ended(tally, f"{watch.seconds}")
    watch.seconds += 0.1
    now = watch.seconds
    tally.step()
    assert len(said) == 50
    assert max(abs(float(part.type_name) - (now - part.age_seconds)) for part in said) <= tallies.SLICE_SECONDS / 2


def test_what_was_counted_while_telling_failed_is_told_together_with_the_rest(
    store: Store, tally: AttemptTally, ended: Callable[..., AttemptTally], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(tally, SHIP, seconds=1.0)

    def fail(*args: object) -> None:
        ended(tally, SHIP, SHIP, seconds=4.0)
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr("django_jobchains.store.attempt_counts.AttemptCounts.add_counts", fail)
        tally.step()
    tally.step()
    assert throughput().types == (TypeRuns(SHIP, 3, 0, 3.0, 4.0),)
    tally.step()
    assert throughput().last_hour.completed == 3


def test_of_too_much_that_cannot_be_told_the_oldest_is_given_up(
    tally: AttemptTally, ended: Callable[..., AttemptTally], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "MOST_KEPT", 3)
    ended(tally, "a", "b", "c", "a", "d", "e")
    tally.step()
    assert set(counted()) == {"c", "d", "e"}
