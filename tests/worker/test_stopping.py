"""Stopping costs no job an attempt: what is not finished goes back at once."""

import threading
import time
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.store import ClaimedJob, Store
from django_jobchains.telemetry.events import AttemptEnded, WorkerStopped
from tests.shop.models import Effect
from tests.worker.fixtures import Events, StartWorker
from tests.worker.waiting import until

#: What stopping may take beyond its timeout.
LAST_WORDS = 3.0


@pytest.fixture
def gate() -> Any:
    """Lets handlers that wait for it go on, at the latest at the end of the test."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def waiting(processors: Processors, gate: threading.Event) -> JobType[Any, Any]:
    """Runs until the gate opens, whatever its signal says."""

    @processors.register("worker.waiting")
    def waiting(job: RunningJob[Any]) -> str:
        Effect.objects.create(job_id=job.id, label="started")
        gate.wait(30)
        return "done"

    return waiting


@pytest.fixture
def heeding(processors: Processors) -> JobType[Any, Any]:
    @processors.register("worker.heeding")
    def heeding(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="started")
        job.signal.wait(30)
        Effect.objects.create(job_id=job.id, label=str(job.signal.reason))
        job.signal.raise_if_aborted()

    return heeding


def facts() -> list[tuple[Any, ...]]:
    return list(Job.objects.order_by("pk").values_list("status", "attempt", "run_at", "leased_by", "last_error"))


def has_started() -> bool:
    return Effect.objects.filter(label="started").exists()


def test_running_handlers_may_end(waiting: JobType[Any, Any], start_worker: StartWorker, gate: threading.Event) -> None:
    worker = start_worker()
    chain = waiting.enqueue()
    until(has_started)
    threading.Timer(0.3, gate.set).start()
    assert worker.stop() == 0
    assert chain.refresh().output == "done"


def test_nothing_is_claimed_while_stopping(
    waiting: JobType[Any, Any], start_worker: StartWorker, gate: threading.Event
) -> None:
    worker = start_worker(slots=2)
    waiting.enqueue()
    until(has_started)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: not any("claims" in thread.name for thread in threading.enumerate()))
    late = waiting.enqueue()
    gate.set()
    stopping.join()
    assert (late.refresh().status, late.current_job.lease_number) == ("pending", 0)


def test_a_handler_that_heeds_its_signal_is_handed_back(
    heeding: JobType[Any, Any], start_worker: StartWorker, events: Events
) -> None:
    heeding.enqueue()
    before = facts()
    worker = start_worker()
    until(has_started)
    started = time.monotonic()
    assert worker.stop(timeout=0.2) == 0
    assert time.monotonic() - started < 0.2 + LAST_WORDS
    assert facts() == before
    assert Effect.objects.filter(label="worker_stopping").exists()
    assert [event.ending for event in events.of(AttemptEnded)] == ["handed_back"]
    assert not FailedAttempt.objects.exists()


def test_an_attempt_used_before_still_counts_after_a_hand_back(
    heeding: JobType[Any, Any], start_worker: StartWorker
) -> None:
    job = heeding.enqueue().current_job
    Job.objects.filter(pk=job.pk).update(attempt=3, lease_number=3)
    worker = start_worker()
    until(has_started)
    worker.stop(timeout=0)
    job.refresh_from_db()
    assert (job.status, job.attempt) == ("pending", 3)
    # Maybe once more: a claim that was under way takes it again, and hands it back.
    assert job.lease_number in (4, 5)


def test_a_handler_that_does_not_hear_is_handed_back_in_time(
    waiting: JobType[Any, Any], start_worker: StartWorker, events: Events
) -> None:
    waiting.enqueue()
    before = facts()
    worker = start_worker()
    until(has_started)
    started = time.monotonic()
    assert worker.stop(timeout=0.2) == 1
    assert time.monotonic() - started < 0.2 + LAST_WORDS
    assert facts() == before
    assert [event.abandoned for event in events.of(WorkerStopped)] == [1]


def test_a_handler_that_ends_after_the_stop_writes_nothing(
    processors: Processors, start_worker: StartWorker, gate: threading.Event
) -> None:
    ended: list[BaseException] = []

    @processors.register("worker.late")
    def late(job: RunningJob[None]) -> None:
        Effect.objects.create(job_id=job.id, label="started")
        gate.wait(30)
        try:
            with job.complete():
                Effect.objects.create(job_id=job.id, label="written")
        except BaseException as error:
            ended.append(error)
            raise

    worker = start_worker()
    chain = late.enqueue()
    until(has_started)
    worker.stop(timeout=0)
    gate.set()
    until(lambda: ended)
    assert isinstance(ended[0], LeaseLost)
    assert chain.refresh().status == "pending"
    assert not Effect.objects.filter(label="written").exists()
    until(lambda: not any("slot" in thread.name for thread in threading.enumerate()))


def test_jobs_claimed_ahead_are_handed_back(
    waiting: JobType[Any, Any], processors: Processors, start_worker: StartWorker
) -> None:
    quick: JobType[Any, Any] = processors.register("worker.quick")(lambda job: None)
    first = [quick.item(priority=2) for _ in range(300)]  # enough to show that they are short, however busy the machine
    chains.enqueue_many([*first, waiting.item(priority=1), *(quick.item() for _ in range(20))])
    before = dict(Job.objects.values_list("id", "run_at"))
    worker = start_worker(slots=1)
    until(
        has_started
    )  # by now some were claimed ahead of their slot; they would go back by themselves half a second later
    assert worker.stop(timeout=0) == 1
    left = Job.objects.exclude(status="completed")
    assert left.count() == 21
    assert {(job.status, job.attempt, job.leased_by) for job in left} == {("pending", 0, None)}
    assert all(job.run_at == before[job.id] for job in left)


def test_jobs_claimed_ahead_of_a_long_one_go_to_another_worker(
    waiting: JobType[Any, Any], processors: Processors, start_worker: StartWorker
) -> None:
    quick: JobType[Any, Any] = processors.register("worker.quick")(lambda job: None)
    first = [quick.item(priority=2) for _ in range(40)]
    chains.enqueue_many([*first, waiting.item(priority=1), *(quick.item() for _ in range(20))])
    start_worker(slots=1, poll_seconds=0.2)
    until(has_started)
    start_worker(slots=1, poll_seconds=0.2)
    until(lambda: Job.objects.with_status("completed").count() == 60)
    assert set(Job.objects.with_status("completed").values_list("attempt", flat=True)) == {1}


def test_an_idle_worker_stops_at_once(waiting: JobType[Any, Any], start_worker: StartWorker) -> None:
    worker = start_worker()
    started = time.monotonic()
    assert worker.stop(timeout=30) == 0
    assert time.monotonic() - started < LAST_WORDS


def test_a_claim_that_comes_back_after_the_end_is_handed_back(
    waiting: JobType[Any, Any], make_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    worker, is_claiming = make_worker(), threading.Event()
    claim = type(worker.store).claim

    def late(store: Store, *args: Any) -> list[ClaimedJob]:
        is_claiming.set()
        gate.wait(30)
        return claim(store, *args)

    monkeypatch.setattr(type(worker.store), "claim", late)
    waiting.enqueue()
    worker.start()
    assert is_claiming.wait(15)
    worker.stop(timeout=0)
    gate.set()
    until(lambda: not any("claims" in thread.name for thread in threading.enumerate()))
    assert [(status, attempt) for status, attempt, *_ in facts()] == [("pending", 0)]
