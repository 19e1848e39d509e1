"""Objects of an attempt are freed when it ends."""

import asyncio
import gc
from weakref import ref

import pytest

from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.processors import Registry
from django_jobchains.testing import run_due_jobs
from django_jobchains.worker.end_writer import EndWriter
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.waiting import until

pytestmark = committed


@pytest.fixture
def _no_garbage_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage_collector")
@pytest.mark.parametrize("how", ["returns", "completes", "continues", "fails"])
def test_ended_attempt_is_freed_without_the_garbage_collector(processors, work, how):
    jobs = []

    @processors.register("freed")
    def freed(job):
        jobs.append(ref(job))
        if job.input == "fails":
            raise ValueError(how)
        if job.input == "completes":
            with job.complete():
                pass
        return job.continue_with(freed, "") if job.input == "continues" else None

    freed.enqueue(how)
    work()
    assert jobs
    assert [job() for job in jobs] == [None] * len(jobs)


@pytest.mark.usefixtures("_no_garbage_collector")
@pytest.mark.parametrize("how", ["returns", "fails"])
def test_outcome_that_is_not_written_yet_does_not_keep_its_attempt_alive(processors, monkeypatch, how):
    attempts, kept = [], []
    put = EndWriter.put

    @processors.register("waits")
    def waits(job):
        attempts.append(ref(job._attempt))
        if job.input == "fails":
            raise ValueError(how)

    def record_and_put(outcome_writer, outcome):
        kept.extend(attempt() for attempt in attempts)
        put(outcome_writer, outcome)

    monkeypatch.setattr(EndWriter, "put", record_and_put)
    registry = Registry()
    registry.add(processors)
    monkeypatch.setattr("django_jobchains.testing.runner.get_registry", lambda: registry)
    waits.enqueue(how)
    run_due_jobs()
    assert kept == [None]


def attempts_in_memory():
    gc.collect()
    return {found for found in gc.get_objects() if type(found) is JobAttempt}


def test_attempt_of_an_async_handler_is_freed_when_it_ends(processors, work):
    before = attempts_in_memory()

    @processors.register("freed")
    async def freed(job):
        await asyncio.gather(asyncio.sleep(0), Effect.objects.acount())
        await job.signal.async_wait(0)
        await job.acomplete(lambda: None)
        if job.input % 2:
            raise ValueError("no luck")

    for number in range(20):
        freed.enqueue(number)
    work()
    until(lambda: attempts_in_memory() <= before)
