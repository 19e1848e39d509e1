"""Bare wake-ups of the floors: how a signal is sent, and how a process waits for one."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

CHANNEL = "bench_floor"

Send = Callable[[], object]


@contextmanager
def _notify(bare: Any) -> Iterator[Send]:
    yield lambda: bare.execute(f"NOTIFY {CHANNEL}")


@contextmanager
def _redis_publish(bare: Any) -> Iterator[Send]:
    with _redis() as client:
        yield lambda: client.publish(CHANNEL, "1")


@contextmanager
def _nats_publish(bare: Any) -> Iterator[Send]:
    with asyncio.Runner() as runner:
        client = runner.run(_nats())

        async def send() -> None:
            await client.publish(CHANNEL, b"1")
            await client.flush()

        yield lambda: runner.run(send())
        runner.run(client.close())


def _listened(bare: Any) -> Iterator[None]:
    bare.execute(f"LISTEN {CHANNEL}")
    while True:
        yield
        for _ in bare.notifies(stop_after=1):
            pass


def _redis_subscribed(bare: Any) -> Iterator[None]:
    """Yield at the first message, which confirms the subscription, and at each signal."""
    with _redis() as client, client.pubsub() as pubsub:
        pubsub.subscribe(CHANNEL)
        for _ in pubsub.listen():
            yield


def _nats_subscribed(bare: Any) -> Iterator[None]:
    with asyncio.Runner() as runner:
        client = runner.run(_nats())
        subscription = runner.run(client.subscribe(CHANNEL))
        runner.run(client.flush())
        while True:
            yield
            runner.run(subscription.next_msg(timeout=None))


def _redis() -> Any:
    import redis

    return redis.Redis.from_url(os.environ["BENCH_REDIS"])


async def _nats() -> Any:
    import nats

    return await nats.connect(os.environ["BENCH_NATS"])


#: By name: a context manager that takes a bare PostgreSQL connection and yields a function that sends a signal.
SENDERS: dict[str, Callable[[Any], AbstractContextManager[Send]]] = {
    "listen": _notify,
    "redis": _redis_publish,
    "nats": _nats_publish,
}
#: By name: a generator that yields when it has subscribed, and at each signal.
WAITS: dict[str, Callable[[Any], Iterator[None]]] = {
    "listen": _listened,
    "redis": _redis_subscribed,
    "nats": _nats_subscribed,
}
