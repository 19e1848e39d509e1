"""What is timed on the enqueueing side, in the same way for each system."""

import os
import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

IN_ONE_CALL = 1_000
GAP_SECONDS = 0.05
WARM_UP = 3
LONGEST_SECONDS = 30


@dataclass(frozen=True)
class Client:
    """``enqueue`` returns after its commit. ``start_chain`` starts five steps, of which the last marks the time."""

    enqueue: Callable[[], object]
    start_chain: Callable[[], object]
    enqueue_many: Callable[[int], object] | None = None


def enqueue(client: Client, count: str) -> dict[str, float]:
    return _timed(client.enqueue, int(count), 1)


def enqueue_many(client: Client, calls: str) -> dict[str, float]:
    return _timed(lambda: _in_one_call(client, IN_ONE_CALL), int(calls), IN_ONE_CALL)


def fill(client: Client, count: str) -> None:
    """Untimed, so in whatever way is there."""
    left = int(count)
    while left:
        now = min(left, IN_ONE_CALL)
        _in_one_call(client, now)
        left -= now


def _in_one_call(client: Client, count: int) -> None:
    if client.enqueue_many:
        client.enqueue_many(count)
        return
    for _ in range(count):
        client.enqueue()


def _timed(run: Callable[[], object], times: int, jobs_each: int) -> dict[str, float]:
    run()  # connects, prepares
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        run()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    jobs = times * jobs_each
    return {"jobs/s": jobs / seconds, "CPU µs/job": cpu_seconds / jobs * 1e6}


def wake_up(client: Client, samples: str, gap_seconds: str) -> list[float]:
    return _milliseconds(client.enqueue, int(samples), float(gap_seconds))


def chain_latency(client: Client, samples: str, gap_seconds: str) -> list[float]:
    return _milliseconds(client.start_chain, int(samples), float(gap_seconds))


def _milliseconds(start: Callable[[], object], samples: int, gap_seconds: float) -> list[float]:
    times = Path(os.environ["BENCH_TIMES"])
    return [_sample(start, times, gap_seconds) for _ in range(WARM_UP + samples)][WARM_UP:]


def _sample(start: Callable[[], object], times: Path, gap_seconds: float) -> float:
    time.sleep(GAP_SECONDS + random.random() * gap_seconds)
    size = times.stat().st_size
    start()
    committed = time.time()
    deadline = time.monotonic() + LONGEST_SECONDS
    while times.stat().st_size < size + 8:
        if time.monotonic() > deadline:
            raise TimeoutError("No handler ran.")
        time.sleep(0.0005)
    handled: float = struct.unpack("<d", times.read_bytes()[size : size + 8])[0]
    return (handled - committed) * 1000


COMMANDS: dict[str, Callable[..., object]] = {
    "enqueue": enqueue,
    "enqueue-many": enqueue_many,
    "fill": fill,
    "wake-up": wake_up,
    "chain-latency": chain_latency,
}
