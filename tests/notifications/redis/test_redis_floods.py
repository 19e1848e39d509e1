"""Anybody who may publish may write to a channel: it costs looks, and few of them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_jobchains.notifications import redis
from django_jobchains.processors import JobType, Processors
from tests.notifications.redis.server import RedisServer
from tests.shop.models import Effect
from tests.worker.fixtures import StartWorker
from tests.worker.statements import statements_of_others
from tests.worker.waiting import until, until_completed

pytestmark = pytest.mark.django_db(transaction=True)
UseRedis = Callable[..., None]


@pytest.fixture(autouse=True)
def _redis(redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    use_redis(redis_server.url)


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("worker.quick")(lambda job: None)


#: In a process of its own, so as not to keep the worker's threads from their work.
FLOOD = """
import sys, time
import redis

port, a_second, *texts = sys.argv[1:]
channels = ["django_jobchains." + kind for kind in ("job_scheduled", "chain_finished", "ownership_lost")]
number, started = 0, time.monotonic()
client = redis.Redis(port=int(port))
while True:
    pipeline = client.pipeline(transaction=False)
    for _ in range(100):
        number += 1
        pipeline.publish(channels[number % 3], texts[number // 3 % len(texts)].format(number))
    pipeline.execute()
    time.sleep(max(started + number / int(a_second) - time.monotonic(), 0))
"""


@contextmanager
def flooded(server: RedisServer, *texts: str, a_second: int = 10_000) -> Iterator[None]:
    """Each of these on every channel, until the end; ``{}`` is another number each time."""
    process = subprocess.Popen([sys.executable, "-c", FLOOD, str(server.port), str(a_second), *texts])
    try:
        with server.admin as admin:
            admin.config_resetstat()
            until(lambda: admin.info("commandstats").get("cmdstat_publish", {}).get("calls", 0) > 1_000)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("texts", "statements_a_second"),
    [
        (("junk {}", "", "::" + "x" * 300, "1:zz:worker.quick"), 30),
        (("::*", "::worker.quick", "1:{:x}:worker.quick", "::00000000-0000-4000-8000-{:012x}"), 300),
    ],
)
def test_a_flood_costs_few_statements_and_the_worker_works_on(
    quick: JobType[Any, Any],
    start_worker: StartWorker,
    redis_server: RedisServer,
    texts: tuple[str, ...],
    statements_a_second: int,
) -> None:
    with statements_of_others() as statements:
        worker = start_worker()
        until(lambda: worker.parts.listener and worker.parts.listener.is_alive)
        until(worker.parts.loop.idle.is_set)
        with flooded(redis_server, *texts):
            before, started, chains = len(statements), time.monotonic(), []
            while time.monotonic() - started < 1.5:
                chains.append(quick.enqueue())
                until_completed(chains[-1], 5)
                time.sleep(0.2)
            seconds = time.monotonic() - started
        assert len(chains) >= 3
        assert len(statements) - before < seconds * statements_a_second + 20 * len(chains)
        chain = quick.enqueue()
        until_completed(chain, 5)
    assert worker.parts.listener
    assert worker.parts.listener.is_alive


def test_a_forged_loss_of_ownership_ends_no_attempt(
    processors: Processors, start_worker: StartWorker, redis_server: RedisServer
) -> None:
    @processors.register("worker.long")
    def long(job: Any) -> str:
        Effect.objects.create(job_id=job.id, label="started")
        job.signal.wait(1)
        return "aborted" if job.signal.aborted else "done"

    start_worker()
    chain = long.enqueue()
    until(lambda: Effect.objects.filter(label="started").exists())
    with flooded(redis_server, f"::{chain.id}", "::*"):
        until_completed(chain, 10)
    assert chain.output == "done"
    assert chain.jobs.get().attempt == 1
