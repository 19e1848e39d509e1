"""procrastinate: coroutine handlers in its worker, and jobs deferred with its synchronous connector."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks import times
from benchmarks.peers.catalogue import SLOTS, STEPS
from benchmarks.peers.programs.clients import Client
from benchmarks.peers.programs.places import URL

app = App(connector=PsycopgConnector(conninfo=URL))


@app.task(name="value")
async def value() -> None:
    times.append()


@app.task(name="step")
async def step(number: int) -> None:
    if number < STEPS:
        await step.defer_async(number=number + 1)
    else:
        times.append()


def prepare() -> None:
    async def apply() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(apply())


def worker() -> None:
    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=SLOTS)

    asyncio.run(run())


@contextmanager
def client() -> Iterator[Client]:
    with app.replace_connector(SyncPsycopgConnector(conninfo=URL)) as of_client, of_client.open():
        yield Client(
            enqueue=value.defer,
            enqueue_many=lambda count: value.batch_defer(*[{}] * count),
            start_chain=lambda: step.defer(number=1),
        )
