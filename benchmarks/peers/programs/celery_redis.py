"""Celery with Redis as its broker and no results, handlers in threads; its own chains.

Everything it writes to Redis has a prefix: that database may hold what belongs to somebody else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery, chain
from redis import Redis

from benchmarks import times
from benchmarks.peers.catalogue import REDIS, SLOTS, STEPS
from benchmarks.peers.programs.clients import Client
from benchmarks.peers.programs.places import DATABASE

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


@app.task(name="step")
def step() -> None:
    """One of the steps before the last."""


def prepare() -> None:
    with Redis.from_url(REDIS) as redis:
        for key in redis.scan_iter(f"{PREFIX}*"):
            redis.delete(key)


def worker() -> None:
    app.worker_main(["worker", "--pool", "threads", "--concurrency", str(SLOTS), "--loglevel", "ERROR"])


@contextmanager
def client() -> Iterator[Client]:
    yield Client(
        enqueue=value.apply_async,
        start_chain=lambda: chain(*[step.si() for _ in range(STEPS - 1)], value.si()).apply_async(),
    )
