"""When a worker queries for jobs: in time, and not more often than necessary."""

import threading
import time
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, RescheduleJob, RunningJob
from tests.support.statements import Statements, statements_of_others
from tests.support.waiting import until, until_completed

#: The longest wait without a poll, whose interval is a minute.
SOON = 15.0
#: How many statements an idle or full worker may send per second to renew leases, reap and listen.
MAX_IDLE_STATEMENTS = 40


@pytest.fixture
def quick(processors):
    return processors.register("worker.quick")(lambda job: None)


def completed() -> int:
    return Job.objects.with_status("completed").count()


def count_for_a_second(statements: Statements) -> int:
    """Return the number of statements in a second, without the reads of memory by SQLite's listener."""
    before = len(statements) - statements.count("data_version")
    threading.Event().wait(1)
    return len(statements) - statements.count("data_version") - before


@pytest.mark.parametrize("delay", [0.05, 0.7])
def test_idle_worker_starts_a_scheduled_job_when_it_is_due(quick, start_worker, delay):
    start_worker()
    chain = quick.enqueue(delay=delay)
    until_completed(chain, delay + SOON)
    assert chain.current_job.last_attempt_at is not None
    assert chain.current_job.last_attempt_at >= chain.current_job.run_at


@pytest.mark.slow
@pytest.mark.parametrize("error", [RescheduleJob(delay=0), RescheduleJob(delay=0.3), ValueError("backs off")], ids=repr)
def test_job_that_does_not_complete_runs_again_when_it_is_due(processors, start_worker, error):
    """This holds even if the worker queried during the attempt, and found no due time to wait for."""

    @processors.register("worker.again")
    def again(job: RunningJob[None]) -> None:
        job.signal.wait(0.7)
        if job.attempt < 3:
            raise error

    start_worker()
    chain = again.enqueue()
    until_completed(chain, 3 * (0.7 + 0.3) + SOON)


@pytest.mark.slow
def test_continuation_starts_at_once(processors, start_worker):
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


def test_idle_worker_is_quiet(quick, start_worker):
    with statements_of_others() as statements:
        start_worker(slots=10)
        quick.enqueue()
        quick.enqueue(delay=3600)
        until(lambda: completed() == 1)
        until(lambda: count_for_a_second(statements) < MAX_IDLE_STATEMENTS / 4)


def test_full_worker_with_a_backlog_is_quiet(processors, start_worker):
    gate = threading.Event()
    block: JobType[Any, Any] = processors.register("worker.block")(lambda job: gate.wait(30))
    chains.enqueue_many([block.item() for _ in range(50)])
    with statements_of_others() as statements:
        start_worker(slots=3)
        until(lambda: Job.objects.with_status("running").count() == 3)
        try:
            until(lambda: count_for_a_second(statements) < MAX_IDLE_STATEMENTS)
        finally:
            gate.set()


def test_full_worker_takes_the_next_job_when_a_slot_is_free(processors, start_worker):
    @processors.register("worker.short")
    def short(job: RunningJob[None]) -> None:
        job.signal.wait(0.05)

    chains.enqueue_many([short.item() for _ in range(40)])
    started = time.monotonic()
    start_worker(slots=4)
    until(lambda: completed() == 40)
    assert time.monotonic() - started < 10 * 0.05 + SOON


def test_slot_that_becomes_free_takes_the_next_job(processors, start_worker):
    gate = threading.Event()
    block: JobType[Any, Any] = processors.register("worker.block")(lambda job: gate.wait(30))
    worker = start_worker(slots=1)
    chains.enqueue_many([block.item() for _ in range(2)])
    until(lambda: Job.objects.with_status("running").count() == 1)
    until(lambda: worker.components.context.wake.needs_slots and not worker.components.context.wake.will_query_soon)
    gate.set()
    until(lambda: completed() == 2, SOON)


def test_slot_that_becomes_free_causes_no_query_if_others_were_free(processors, start_worker):
    gate = threading.Event()
    block: JobType[Any, Any] = processors.register("worker.block")(lambda job: gate.wait(30))
    worker = start_worker(slots=2)
    block.enqueue()
    until(lambda: worker.components.slots.running == 1 and not worker.components.context.wake.needs_slots)
    gate.set()
    until(lambda: completed() == 1)
    until(lambda: not worker.components.context.wake.needs_slots)


@pytest.mark.parametrize("is_committed_by_attempt", [True, False])
def test_continuation_needs_no_notifier(processors, start_worker, monkeypatch, is_committed_by_attempt):
    monkeypatch.setattr("django_jobchains.worker.job_ends.publish", lambda *args: None)
    monkeypatch.setattr("django_jobchains.notifications.sqlite.POLL_SECONDS", 60)
    gate = threading.Event()

    @processors.register("worker.step")
    def step(job: RunningJob[int]) -> Any:
        gate.wait(30)
        if is_committed_by_attempt:
            with job.complete():
                return job.continue_with("worker.step", 0) if job.input else None
        return job.continue_with("worker.step", 0) if job.input else None

    chain = step.enqueue(1)
    worker = start_worker()
    wake = worker.components.context.wake
    until(lambda: worker.components.slots.running == 1 and not (wake.needs_slots or wake.will_query_soon))
    gate.set()
    until_completed(chain, SOON)


def test_statements_per_job_do_not_depend_on_idle_slots(quick, start_worker):
    with statements_of_others() as statements:
        start_worker(slots=50)
        until(lambda: count_for_a_second(statements) < MAX_IDLE_STATEMENTS / 4)
        before = statements.count("UPDATE")
        quick.enqueue()
        until(lambda: completed() == 1)
        count_for_a_second(statements)
        assert statements.count("UPDATE") - before <= 10
        assert statements.connections <= 10


def test_many_jobs_need_few_statements_each(quick, make_worker):
    chains.enqueue_many([quick.item() for _ in range(1_000)])
    with statements_of_others() as statements:
        make_worker(slots=10).run_until_idle()
    assert completed() == 1_000
    assert len(statements) - statements.count("data_version") < 700


@pytest.mark.postgresql
def test_locked_due_job_does_not_cause_constant_queries(quick, start_worker):
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
    assert locked.wait(30)
    with statements_of_others() as statements:
        start_worker()
        until(lambda: chain.current_job.run_at < timezone.now())
        try:
            until(lambda: count_for_a_second(statements) < MAX_IDLE_STATEMENTS)
        finally:
            release.set()
            thread.join()
    until_completed(chain, SOON)
