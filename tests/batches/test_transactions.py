"""A batch has one transaction, which commits the writes and the outcomes of all jobs, or nothing."""

import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Batch, RunningJob
from tests.shop.models import Effect
from tests.support.attempts import on_own_connection
from tests.support.waiting import until, until_completed
from tests.support.workers import time_out


def write_effect(job: RunningJob[Any], label: str) -> None:
    Effect.objects.create(job_id=job.id, label=label)


def written_by(label: str) -> set[Any]:
    return set(Effect.objects.filter(label=label).values_list("job_id", flat=True))


def statuses(enqueued: list[Chain]) -> list[str]:
    return [chain.refresh().status for chain in enqueued]


def test_effects_and_outcomes_commit_together(processors, make_worker):
    @processors.register("batches.next")
    def following(job: RunningJob[None]) -> str:
        return "end"

    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        with jobs.complete():
            for job in jobs:
                write_effect(job, "written")
            jobs[0].continue_with(following)
            jobs[1].finish("second")

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert [chain.refresh().output for chain in enqueued] == ["end", "second", None]
    assert written_by("written") == {chain.id for chain in enqueued}


@pytest.mark.parametrize("where", ["inside", "after", "database"])
def test_error_rolls_back_the_whole_batch(processors, make_worker, where):
    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        first = jobs[0].attempt == 1
        with jobs.complete():
            for job in jobs:
                write_effect(job, "written")
                job.finish("done")
            if first and where == "inside":
                raise ValueError(where)
            if first and where == "database":
                Job.objects.create(id=jobs[0].id, chain_id=jobs[0].id, chain_index=0, run_at=jobs[0].run_at)
        if first and where == "after":
            raise ValueError(where)

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert statuses(enqueued) == ["completed"] * 3
    assert {chain.jobs.get().attempt for chain in enqueued} == {2}
    assert Effect.objects.count() == 3
    assert FailedAttempt.objects.count() == 3


def test_job_that_fails_in_a_savepoint_does_not_affect_the_others(processors, make_worker):
    @processors.register("batches.savepoints", batch_limit=5)
    def savepoints(jobs: Batch[int]) -> None:
        with jobs.complete():
            for job in jobs:
                try:
                    with transaction.atomic():
                        write_effect(job, "written")
                        if job.input == 1:
                            raise IntegrityError("bad")
                except IntegrityError as error:
                    job.fail(str(error))

    enqueued = chains.enqueue_many([savepoints.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert statuses(enqueued) == ["completed", "failed", "completed"]
    assert written_by("written") == {enqueued[0].id, enqueued[2].id}


def test_lost_lease_rolls_back_the_batch_and_hands_back_the_other_jobs(processors, make_worker, store):
    """The other jobs lose no attempt."""

    def take_over(job_id: Any) -> None:
        Job.objects.filter(pk=job_id).update(lease_number=1000, attempt=2, leased_by="another worker")

    @processors.register("batches.write", batch_limit=5)
    def write(jobs: Batch[int]) -> None:
        if len(jobs) == 3:
            on_own_connection(take_over, jobs[1].id)
        with jobs.complete():
            for job in jobs:
                write_effect(job, "written")

    enqueued = chains.enqueue_many([write.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert statuses(enqueued) == ["completed", "running", "completed"]
    assert [chain.jobs.get().attempt for chain in enqueued] == [1, 2, 1]
    assert written_by("written") == {enqueued[0].id, enqueued[2].id}
    assert Effect.objects.count() == 2
    assert not FailedAttempt.objects.exists()


def test_lost_lease_without_a_transaction_affects_only_its_own_job(processors, make_worker):
    def take_over(job_id: Any) -> None:
        Job.objects.filter(pk=job_id).update(lease_number=1000, leased_by="another worker")

    @processors.register("batches.quick", batch_limit=5)
    def quick(jobs: Batch[int]) -> None:
        take_over(jobs[1].id)

    enqueued = chains.enqueue_many([quick.item(number) for number in range(3)])
    make_worker().run_until_idle()
    assert statuses(enqueued) == ["completed", "running", "completed"]
    assert Job.objects.get(pk=enqueued[1].id).lease_number == 1000


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def checks_signals(processors):
    """A type whose handler raises as soon as one of its jobs, or the whole batch, should stop."""

    @processors.register("batches.checks_signals", batch_limit=5)
    def checks_signals(jobs: Batch[Any]) -> None:
        for job in jobs:
            write_effect(job, "started")
        while jobs[0].attempt == 1 and len(jobs) == 3:
            for job in jobs:
                job.signal.raise_if_aborted()
            jobs.signal.wait(0.02)
            jobs.signal.raise_if_aborted()

    return checks_signals


def test_cancelling_one_job_costs_the_others_no_attempt(checks_signals, start_worker):
    enqueued = chains.enqueue_many([checks_signals.item() for _ in range(3)])
    start_worker()
    until(lambda: len(written_by("started")) == 3)
    chains.cancel(enqueued[1])
    until_completed(enqueued[0])
    until_completed(enqueued[2])
    assert statuses(enqueued) == ["completed", "cancelled", "completed"]
    assert [chain.jobs.get().attempt for chain in enqueued] == [1, 1, 1]


@pytest.mark.usefixtures("patient_stop")
def test_stopping_worker_hands_back_the_whole_batch(checks_signals, start_worker):
    enqueued = chains.enqueue_many([checks_signals.item() for _ in range(3)])
    worker = start_worker()
    until(lambda: len(written_by("started")) == 3)
    worker.stop(timeout=0)
    assert {(job.status, job.attempt) for job in Job.objects.all()} == {("pending", 0)}
    assert len(enqueued) == 3


def test_batch_has_one_time_limit(processors, start_worker):
    @processors.register("batches.slow", batch_limit=5, timeout=0.5)
    def slow(jobs: Batch[Any]) -> None:
        if jobs[0].attempt == 1:
            jobs.signal.wait(30)
            assert {job.signal.reason for job in jobs} == {"timed_out"}
            jobs.signal.raise_if_aborted()

    enqueued = chains.enqueue_many([slow.item() for _ in range(3)])
    start_worker()
    for chain in enqueued:
        until_completed(chain)
    assert [chain.jobs.get().attempt for chain in enqueued] == [2, 2, 2]


def test_jobs_of_an_unresponsive_batch_are_retried(processors, start_worker, gate, settings, events):
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.2}

    @processors.register("batches.unresponsive", batch_limit=5)
    def unresponsive(jobs: Batch[Any]) -> None:
        if jobs[0].attempt == 1:
            gate.wait(30)
            with jobs.complete():
                write_effect(jobs[0], "late")

    enqueued = chains.enqueue_many([unresponsive.item() for _ in range(3)])
    worker = start_worker(slots=1)
    time_out(worker)
    for chain in enqueued:
        until_completed(chain)
    gate.set()
    until(lambda: not worker.components.slots.stuck)
    assert not written_by("late")
    assert [chain.jobs.get().attempt for chain in enqueued] == [2, 2, 2]


def test_number_of_statements_does_not_depend_on_the_batch(processors, make_worker):
    counts: list[int] = []

    @processors.register("batches.counted", batch_limit=100)
    def counted(jobs: Batch[Any]) -> None:
        with CaptureQueriesContext(connection) as queries, jobs.complete():
            pass
        counts.append(len(queries))

    for many in (1, 100):
        chains.enqueue_many([counted.item() for _ in range(many)])
        make_worker(slots=1).run_until_idle()
    assert len(set(counts)) == 1
