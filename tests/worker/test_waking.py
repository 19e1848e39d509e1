"""When a worker looks for work: in time, and no more often than there is reason to."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, RescheduleJob, RunningJob
from tests.worker.fixtures import StartWorker
from tests.worker.statements import Statements, statements_of_others
from tests.worker.waiting import until, until_completed

#: Far below the poll interval of a minute.
SOON = 3.0
#: What an idle or full worker may say in a second: renewals, reaping, the listener's looks.
QUIET = 40


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("worker.quick")(lambda job: None)


def completed() -> int:
    return Job.objects.with_status("completed").count()


def count_for_a_second(statements: Statements) -> int:
    """Statements but for the looks of SQLite's listener, which reads a number of its memory."""
    before = len(statements) - statements.count("data_version")
    threading.Event().wait(1)
    return len(statements) - statements.count("data_version") - before


@pytest.mark.parametrize("delay", [0.05, 0.7])
def test_an_idle_worker_starts_a_scheduled_job_when_it_is_due(
    quick: JobType[Any, Any], start_worker: StartWorker, delay: float
) -> None:
    start_worker()
    chain = quick.enqueue(delay=delay)
    until_completed(chain, delay + SOON)
    assert chain.current_job.last_attempt_at is not None
    assert chain.current_job.last_attempt_at >= chain.current_job.run_at


def test_a_job_scheduled_before_the_start_runs_when_it_is_due(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    soon = timezone.now() + timedelta(seconds=0.7)
    chain = quick.enqueue(run_at=soon)
    quick.enqueue(delay=3600)
    start_worker()
    until_completed(chain, SOON)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_a_job_that_reschedules_itself_runs_again_when_it_is_due(
    processors: Processors, start_worker: StartWorker, delay: float
) -> None:
    """Also when the worker looked while the attempt ran, and found nothing to wait for."""

    @processors.register("worker.again")
    def again(job: RunningJob[None]) -> None:
        job.signal.wait(0.7)
        if job.attempt < 3:
            raise RescheduleJob(delay=delay)

    start_worker()
    chain = again.enqueue()
    until_completed(chain, 3 * (0.7 + delay) + SOON)


@pytest.mark.slow
def test_a_job_that_failed_runs_again_when_its_backoff_ends(processors: Processors, start_worker: StartWorker) -> None:
    @processors.register("worker.error")
    def error(job: RunningJob[None]) -> None:
        job.signal.wait(0.7)
        if job.attempt < 3:
            raise ValueError("not yet")

    start_worker()
    chain = error.enqueue()
    until_completed(chain, 3 * 0.7 + SOON)


@pytest.mark.slow
def test_a_continuation_starts_at_once(processors: Processors, start_worker: StartWorker) -> None:
    @processors.register("worker.first")
    def first(job: RunningJob[str]) -> Any:
        job.signal.wait(0.7)
        if job.input == "staged":
            return job.continue_with("worker.first", "") if job.input else None
        with job.complete():
            return job.continue_with("worker.first", "staged") if job.input else None

    start_worker()
    chain = first.enqueue("complete")
    until(lambda: chain.refresh().status == "completed" and chain.jobs.count() == 3, 3 * 0.7 + SOON)


def test_an_idle_worker_is_quiet(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    with statements_of_others() as statements:
        start_worker(slots=10)
        quick.enqueue()
        quick.enqueue(delay=3600)
        until(lambda: completed() == 1)
        until(lambda: count_for_a_second(statements) < QUIET / 4)


def test_a_full_worker_with_a_backlog_is_quiet(processors: Processors, start_worker: StartWorker) -> None:
    gate = threading.Event()
    block: JobType[Any, Any] = processors.register("worker.block")(lambda job: gate.wait(30))
    chains.enqueue_many([block.item() for _ in range(50)])
    with statements_of_others() as statements:
        start_worker(slots=3)
        until(lambda: Job.objects.with_status("running").count() == 3)
        try:
            until(lambda: count_for_a_second(statements) < QUIET)
        finally:
            gate.set()


def test_a_full_worker_takes_the_next_job_when_a_slot_is_free(
    processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("worker.short")
    def short(job: RunningJob[None]) -> None:
        job.signal.wait(0.05)

    chains.enqueue_many([short.item() for _ in range(40)])
    started = time.monotonic()
    start_worker(slots=4)
    until(lambda: completed() == 40)
    assert time.monotonic() - started < 10 * 0.05 + SOON


def test_a_job_costs_few_statements_however_many_slots_idle(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    with statements_of_others() as statements:
        start_worker(slots=50)
        until(lambda: count_for_a_second(statements) < QUIET / 4)
        before = statements.count("UPDATE")
        quick.enqueue()
        until(lambda: completed() == 1)
        count_for_a_second(statements)
        assert statements.count("UPDATE") - before <= 10
        assert statements.connections <= 10


def test_a_job_costs_few_statements_however_many_jobs_there_are(
    quick: JobType[Any, Any], make_worker: StartWorker
) -> None:
    chains.enqueue_many([quick.item() for _ in range(1_000)])
    with statements_of_others() as statements:
        make_worker(slots=10).run_until_idle()
    assert completed() == 1_000
    assert len(statements) - statements.count("data_version") < 700


@pytest.mark.postgresql
def test_a_due_job_that_somebody_has_locked_is_no_reason_to_ask_all_the_time(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    locked, release = threading.Event(), threading.Event()
    chain = quick.enqueue(delay=0.3)

    def hold() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=chain.id)
            locked.set()
            release.wait(30)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(10)
    with statements_of_others() as statements:
        start_worker()
        threading.Event().wait(0.5)
        try:
            assert count_for_a_second(statements) < QUIET
        finally:
            release.set()
            thread.join()
    until_completed(chain, SOON)
