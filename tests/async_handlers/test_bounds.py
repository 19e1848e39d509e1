"""What async handlers cost stays flat: places, threads, memory, and what is kept after an attempt."""

import asyncio
import gc
import threading
import tracemalloc
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.async_attempts import AsyncAttempt
from django_jobchains.models import Job
from django_jobchains.processors import Processors, RunningJob
from tests.async_handlers.effects import write
from tests.attempts.work import Work, committed
from tests.shop.models import Effect
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import stays, until

pytestmark = committed


def test_no_more_attempts_run_at_once_than_there_are_places(processors: Processors, start_worker: StartWorker) -> None:
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


def test_plain_and_async_handlers_do_not_wait_for_each_other(processors: Processors, start_worker: StartWorker) -> None:
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


def test_nothing_of_an_attempt_is_kept(once: Processors, work: Work) -> None:
    @once.register("forgotten")
    async def forgotten(job: RunningJob[int]) -> None:
        await asyncio.gather(asyncio.sleep(0), Effect.objects.acount())
        await job.signal.async_wait(0)
        await job.acomplete(write(job, "completed"))
        if job.input % 2:
            raise ValueError("no luck")

    chains.enqueue_many([forgotten.item(number) for number in range(20)])
    work()
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is AsyncAttempt] == []


@pytest.mark.slow
def test_memory_stays_flat_over_thousands_of_jobs(once: Processors, work: Work) -> None:
    """Some warm it up; each further five hundred leave next to nothing."""

    @once.register("small")
    async def small(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0)

    def used_after_five_hundred() -> int:
        chains.enqueue_many([small.item(number) for number in range(500)])
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    used_after_five_hundred()
    tracemalloc.start()
    try:
        sizes = [used_after_five_hundred() for _ in range(4)]
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[1] < 100_000, sizes
