"""Celery with Redis as its broker, without results, with handlers in threads or processes and its own chains.

Everything that it writes to Redis has a prefix, because the database may contain other data.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery, chain
from redis import Redis

from benchmarks import times
from benchmarks.peers.catalogue import REDIS, SLOTS, STEPS
from benchmarks.peers.programs.clients import Client
from benchmarks.peers.programs.places import DATABASE
from benchmarks.project.burning import burn

POOL = os.environ.get("BENCH_POOL", "threads")
CONCURRENCY = os.environ.get("BENCH_CONCURRENCY", str(SLOTS))
#: For how long each handler uses a CPU.
BURN_SECONDS = float(os.environ.get("BENCH_BURN", "0"))
PREFIX = f"{DATABASE}:"

app = Celery("bench", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": PREFIX},
)


@app.task(name="value")
def value() -> None:
    times.append()
    if BURN_SECONDS:
        burn(BURN_SECONDS)


@app.task(name="step")
def step() -> None:
    """Run one of the steps before the last one."""


def prepare() -> None:
    with Redis.from_url(REDIS) as redis:
        for key in redis.scan_iter(f"{PREFIX}*"):
            redis.delete(key)


def worker() -> None:
    app.worker_main(["worker", "--pool", POOL, "--concurrency", CONCURRENCY, "--loglevel", "ERROR"])


@contextmanager
def client() -> Iterator[Client]:
    yield Client(
        enqueue=value.apply_async,
        start_chain=lambda: chain(*[step.si() for _ in range(STEPS - 1)], value.si()).apply_async(),
    )
