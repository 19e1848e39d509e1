"""A worker runs hundreds of async handlers at once on one event loop."""

import asyncio
import threading
from typing import Any

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.waiting import until, until_completed

pytestmark = committed


class Barrier:
    """Lets handlers wait until the given number of them has arrived, and counts them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.inside = self.peak = 0
        self._full: asyncio.Event | None = None

    async def wait(self) -> None:
        self._full = self._full or asyncio.Event()
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        if self.inside == self.size:
            self._full.set()
        await self._full.wait()
        self.inside -= 1


def test_five_hundred_handlers_run_at_once_on_few_threads(processors, start_worker):
    barrier = Barrier(500)
    threads: list[int] = []

    @processors.register("async.waits")
    async def waits(job: RunningJob[int]) -> int:
        await barrier.wait()
        threads.append(threading.active_count())
        return job.input

    chains.enqueue_many([waits.item(number) for number in range(500)])
    before = threading.active_count()
    start_worker()
    until(lambda: Job.objects.with_status("completed").count() == 500, 30)
    assert barrier.peak == 500
    assert max(threads) - before < 15
    assert sorted(Job.objects.values_list("output", flat=True)) == list(range(500))


def test_chain_may_have_async_and_plain_handlers(processors, start_worker):
    @processors.register("async.last")
    def last(job: RunningJob[int]) -> int:
        return job.input + 1

    @processors.register("async.middle")
    async def middle(job: RunningJob[int]) -> Any:
        await asyncio.sleep(0)
        return job.continue_with(last, job.input + 1)

    @processors.register("async.first")
    async def first(job: RunningJob[int]) -> Any:
        def write() -> None:
            Effect.objects.create(job_id=job.id, label="first")

        await job.acomplete(write)
        return job.continue_with(middle, job.input + 1)

    start_worker()
    chain = first.enqueue(1)
    until_completed(chain)
    assert chain.output == 4
    assert Effect.objects.count() == 1
