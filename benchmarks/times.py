"""The start times of handlers: each one appends eight bytes to the file ``BENCH_TIMES``, from any thread or process.

This module imports only the standard library, because a peer's environment may contain nothing else.
"""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

LONGEST_SECONDS = 30

_file: int | None = None


def append() -> None:
    """Record the time. This is the first line of a handler in a latency cell."""
    now = time.time()
    global _file
    if _file is None:
        _file = os.open(os.environ["BENCH_TIMES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, struct.pack("<d", now))


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
