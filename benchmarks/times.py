"""The rates of calls, and the start times of handlers.

Each handler appends eight bytes to the file ``BENCH_TIMES``, from any thread or process.

This module imports only the standard library, because a peer's environment may contain nothing else.
"""

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

LONGEST_SECONDS = 30
#: The gap between two single jobs, to which a random part is added.
GAP_SECONDS = 0.05
#: The jobs before the first one that is measured: the worker may still be starting.
WARM_UP = 3

_file: int | None = None


def timed(jobs: int, unit: str, run: Callable[[], object]) -> dict[str, float]:
    """Return the rate and the CPU time of this process for ``run``."""
    started, cpu = time.perf_counter(), time.process_time()
    run()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return {f"{unit}s/s": jobs / seconds, f"CPU µs/{unit}": cpu_seconds / jobs * 1e6}


def append() -> None:
    """Record the time. This is the first line of a handler in a latency cell."""
    now = time.time()
    global _file
    if _file is None:
        _file = os.open(os.environ["BENCH_TIMES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, struct.pack("<d", now))


def sampled(enqueue: Callable[[], float], times: Path, samples: int, gap_seconds: float) -> list[float]:
    """Return the times of single jobs, as ``milliseconds_until_marked``, with a random gap before each."""
    found = []
    for _ in range(samples):
        time.sleep(GAP_SECONDS + random.random() * gap_seconds)
        found.append(milliseconds_until_marked(enqueue, times))
    return found


def milliseconds_until_marked(enqueue: Callable[[], float], times: Path) -> float:
    """Return the time from the commit of ``enqueue``, which returns its time, to the next time in the file."""
    size = times.stat().st_size
    committed = enqueue()
    deadline = time.monotonic() + LONGEST_SECONDS
    while times.stat().st_size < size + 8:
        if time.monotonic() > deadline:
            raise TimeoutError("No handler ran.")
        time.sleep(0.0005)
    handled: float = struct.unpack("<d", times.read_bytes()[size : size + 8])[0]
    return (handled - committed) * 1000
