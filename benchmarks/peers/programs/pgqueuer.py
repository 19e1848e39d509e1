"""pgqueuer: coroutine handlers, one asyncpg connection, uvloop. A chain is a handler that enqueues the next step."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks import times
from benchmarks.peers.catalogue import STEPS
from benchmarks.peers.programs.clients import Client
from benchmarks.peers.programs.places import URL


def prepare() -> None:
    async def install() -> None:
        connection = await asyncpg.connect(URL)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    asyncio.run(install())


def worker() -> None:
    uvloop.run(_run())


async def _run() -> None:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queuer.entrypoint("value")
    async def value(job: Job) -> None:
        times.append()

    @queuer.entrypoint("step")
    async def step(job: Job) -> None:
        number = int(job.payload or b"")
        if number < STEPS:
            await queuer.queries.enqueue("step", str(number + 1).encode())
        else:
            times.append()

    await queuer.run(**_limits())


def _limits() -> dict[str, Any]:
    """Return the limits. pgqueuer requires the limit of concurrent jobs to be at least two batches."""
    at_most = int(os.environ.get("BENCH_PEER_AT_MOST", "0"))
    return {"batch_size": at_most // 2, "max_concurrent_tasks": at_most} if at_most else {}


@contextmanager
def client() -> Iterator[Client]:
    loop = uvloop.new_event_loop()

    wait = loop.run_until_complete
    connection = wait(asyncpg.connect(URL))
    queries = Queries(AsyncpgDriver(connection))

    async def enqueue_each(count: int) -> None:
        for _ in range(count):
            await queries.enqueue("value", None)

    yield Client(
        enqueue_each=lambda count: wait(enqueue_each(count)),
        enqueue=lambda: wait(queries.enqueue("value", None)),
        enqueue_many=lambda count: wait(queries.enqueue(["value"] * count, [None] * count, [0] * count)),
        start_chain=lambda: wait(queries.enqueue("step", b"1")),
    )
    wait(connection.close())
    loop.close()
