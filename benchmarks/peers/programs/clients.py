"""Times the enqueueing side in the same way for each system."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.times import WARM_UP, sampled, timed

IN_ONE_CALL = 1_000


@dataclass(frozen=True)
class Client:
    """How to enqueue jobs of a system.

    ``enqueue`` returns after its commit. ``start_chain`` starts five steps, the last of which records the time.
    ``enqueue_each`` is for systems whose calls are coroutines, where entering the event loop each time costs a tenth.
    """

    enqueue: Callable[[], object]
    start_chain: Callable[[], object]
    enqueue_many: Callable[[int], object] | None = None
    enqueue_each: Callable[[int], object] | None = None


def enqueue(client: Client, count: str) -> dict[str, float]:
    return _timed(partial(_one_by_one, client), int(count), 1)


def enqueue_many(client: Client, calls: str) -> dict[str, float]:
    def run(times: int) -> None:
        for _ in range(times):
            _in_one_call(client, IN_ONE_CALL)

    return _timed(run, int(calls), IN_ONE_CALL)


def fill(client: Client, count: str) -> None:
    """Enqueue jobs without timing, by the fastest available way."""
    for first in range(0, int(count), IN_ONE_CALL):
        _in_one_call(client, min(IN_ONE_CALL, int(count) - first))


def _in_one_call(client: Client, count: int) -> None:
    if client.enqueue_many:
        client.enqueue_many(count)
    else:
        _one_by_one(client, count)


def _one_by_one(client: Client, count: int) -> None:
    if client.enqueue_each:
        client.enqueue_each(count)
        return
    for _ in range(count):
        client.enqueue()


def _timed(run: Callable[[int], object], times: int, jobs_each: int) -> dict[str, float]:
    run(1)  # connects and prepares
    return timed(times * jobs_each, "job", partial(run, times))


def wake_up(client: Client, samples: str, gap_seconds: str) -> list[float]:
    return _milliseconds(client.enqueue, int(samples), float(gap_seconds))


def chain_latency(client: Client, samples: str, gap_seconds: str) -> list[float]:
    return _milliseconds(client.start_chain, int(samples), float(gap_seconds))


def _milliseconds(start: Callable[[], object], samples: int, gap_seconds: float) -> list[float]:
    def enqueue() -> float:
        start()
        return time.time()

    return sampled(enqueue, Path(os.environ["BENCH_TIMES"]), WARM_UP + samples, gap_seconds)[WARM_UP:]


COMMANDS: dict[str, Callable[..., object]] = {
    "enqueue": enqueue,
    "enqueue-many": enqueue_many,
    "fill": fill,
    "wake-up": wake_up,
    "chain-latency": chain_latency,
}
