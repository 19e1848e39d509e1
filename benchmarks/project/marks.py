"""When the handlers of this process began and when their results were committed, for the process that measures."""

import atexit
import json
import os
import struct
import threading
import time
from pathlib import Path

from django_jobchains.telemetry import add_sink
from django_jobchains.telemetry.events import AttemptEnded, Event

SAMPLE_SECONDS = 0.1

_first: dict[str, float] = {}
_last = 0.0
_ended = 0
_threads: dict[str, float] = {}
_file: int | None = None


def started() -> None:
    """The first line of a handler in a throughput cell: remembers the process's first one."""
    if not _first:
        _first.update(time=time.time(), cpu=time.process_time())


def append() -> None:
    """The first line of a handler in a latency cell: the time of each goes to the file ``BENCH_TIMES``."""
    now = time.time()
    global _file
    if _file is None:
        _file = os.open(os.environ["BENCH_TIMES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, struct.pack("<d", now))


def watch() -> None:
    """Leaves a summary in the file ``BENCH_MARKS`` when the process ends."""
    add_sink(_on_event)
    atexit.register(_write)
    if "BENCH_THREADS" in os.environ:
        threading.Thread(target=_sample, name="samples", daemon=True).start()


def _on_event(event: Event) -> None:
    """The worker reports an attempt's end after the commit of its outcome."""
    global _ended, _last
    if isinstance(event, AttemptEnded):
        _ended += 1
        _last = time.time()


def _write() -> None:
    last = {"time": _last, "cpu": time.process_time()}
    summary = {"first": _first, "last": last, "ended": _ended, "threads": _threads}
    Path(os.environ["BENCH_MARKS"]).write_text(json.dumps(summary))


def _sample() -> None:
    """CPU seconds by thread, from Linux's books."""
    tick = os.sysconf("SC_CLK_TCK")
    while True:
        for thread in threading.enumerate():
            stat = Path(f"/proc/self/task/{thread.native_id}/stat")
            if stat.exists():
                fields = stat.read_text().rpartition(")")[2].split()
                _threads[thread.name] = (int(fields[11]) + int(fields[12])) / tick
        time.sleep(SAMPLE_SECONDS)
