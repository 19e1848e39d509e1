"""The resources of async handlers are limited: slots, threads, memory, and objects kept after an attempt."""

import asyncio
import gc
import threading
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from tests.async_handlers.effects import write
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.waiting import stays, until

pytestmark = committed


def test_at_most_as_many_attempts_run_at_once_as_there_are_slots(processors, start_worker):
    gate, inside = threading.Event(), []

    @processors.register("async.held")
    async def held(job: RunningJob[int]) -> None:
        inside.append(job.id)
        await asyncio.to_thread(gate.wait, 15)

    chains.enqueue_many([held.item(number) for number in range(9)])
    worker = start_worker(async_slots=3)
    until(lambda: len(inside) == 3)
    assert stays(lambda: len(inside) == 3 and Job.objects.with_status("running").count() == 3, 0.2)
    assert worker.running == 3
    gate.set()
    until(lambda: Job.objects.with_status("completed").count() == 9)


def test_plain_and_async_handlers_do_not_wait_for_each_other(processors, start_worker):
    gate = threading.Event()

    @processors.register("plain")
    def plain(job: RunningJob[int]) -> None:
        assert gate.wait(15)

    @processors.register("async.opens")
    async def opens(job: RunningJob[int]) -> None:
        gate.set()

    plain.enqueue(1)
    plain.enqueue(2)
    start_worker(slots=2, async_slots=1)
    until(lambda: Job.objects.with_status("running").count() == 2)
    opens.enqueue(3)
    until(lambda: Job.objects.with_status("completed").count() == 3)


def attempts_in_memory() -> set[JobAttempt]:
    gc.collect()
    return {found for found in gc.get_objects() if type(found) is JobAttempt}


def test_attempt_is_freed_when_it_ends(once, work):
    before = attempts_in_memory()

    @once.register("freed")
    async def freed(job: RunningJob[int]) -> None:
        await asyncio.gather(asyncio.sleep(0), Effect.objects.acount())
        await job.signal.async_wait(0)
        await job.acomplete(write(job, "completed"))
        if job.input % 2:
            raise ValueError("no luck")

    chains.enqueue_many([freed.item(number) for number in range(20)])
    work()
    until(lambda: attempts_in_memory() <= before)


@pytest.mark.slow
def test_thousands_of_jobs_leak_no_memory(once, work):
    """Run rounds of 500 jobs, the first of which warms up caches."""

    @once.register("small")
    async def small(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0)

    def used_after_five_hundred() -> int:
        chains.enqueue_many([small.item(number) for number in range(500)])
        work()
        gc.collect()
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*/psycopg/_queries.py")])
        return sum(trace.size for trace in traces.traces)

    tracemalloc.start()
    try:
        sizes = [used_after_five_hundred() for _ in range(5)]
    finally:
        tracemalloc.stop()
    # A leak adds to every round. Threads of a stopped worker that end late, and log records, add to one of them.
    # psycopg caches up to 128 statements, and prepares more of them the longer the rounds take.
    assert min(after - before for before, after in pairwise(sizes)) < 50_000, sizes
