"""When the handlers of this process began and when their results were committed, for the process that measures.

What is measured may be several processes: they wait for each other before their work, and each leaves a summary.
"""

import atexit
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobchains.telemetry import add_sink
from django_jobchains.telemetry.events import AttemptEnded, Event
from django_jobchains.worker.memory import resident_bytes

SAMPLE_SECONDS = 0.1
BARRIER_SECONDS = 60
POLL_SECONDS = 0.001
#: Jobs between two looks at the memory.
MEMORY_EACH = int(os.environ.get("BENCH_MEMORY_EACH", "0"))

_first: dict[str, float] = {}
_last: dict[str, float] = {}
_ended = 0
_counting = threading.Lock()
_memory: dict[int, int] = {}
_errors: list[str] = []
_locked = 0
_threads: dict[str, float] = {}


def meet() -> None:
    """Returns when all ``BENCH_PROCESSES`` are here, which know each other by a file in the folder ``BENCH_MARKS``."""
    processes = int(os.environ.get("BENCH_PROCESSES", "1"))
    folder = _marks() / "here"
    folder.mkdir(exist_ok=True)
    Path(folder, str(os.getpid())).touch()
    deadline = time.monotonic() + BARRIER_SECONDS
    while sum(1 for _ in folder.iterdir()) < processes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Fewer than {processes} processes came.")
        time.sleep(POLL_SECONDS)


def started() -> None:
    """The first line of a handler in a throughput cell: remembers the process's first one."""
    if not _first:
        _first.update(_now())


def watch() -> None:
    """Leaves a summary in the folder ``BENCH_MARKS`` when the process ends."""
    add_sink(_on_event)
    atexit.register(_write)
    connection_created.connect(_on_connection)
    if "BENCH_THREADS" in os.environ:
        threading.Thread(target=_sample, name="samples", daemon=True).start()


def drained() -> None:
    """The end of a process of bare statements, which reports no events."""
    _last["time"] = time.time()
    _memory[0] = resident_bytes()


def _write() -> None:
    last = {**_last, "cpu": time.process_time()}
    counted = {"ended": _ended, "errors": _errors, "locked": _locked, "memory": _memory, "threads": _threads}
    summary = {"first": _first, "last": last, **counted}
    Path(_marks(), f"{os.getpid()}.json").write_text(json.dumps(summary))


def _on_event(event: Event) -> None:
    """The worker reports an attempt's end after the commit of its outcome."""
    global _ended
    if isinstance(event, AttemptEnded):
        if event.error:
            _errors.append(event.error)
            return
        with _counting:
            _ended += 1
            _last["time"] = time.time()
            if MEMORY_EACH and _ended % MEMORY_EACH == 0:
                _memory[_ended] = resident_bytes()


def _now() -> dict[str, float]:
    return {"time": time.time(), "cpu": time.process_time()}


def _marks() -> Path:
    return Path(os.environ["BENCH_MARKS"])


def _on_connection(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.vendor == "sqlite":
        connection.execute_wrappers.append(_count_locked)


def _count_locked(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    """Counts them where they happen: the store tries some of them again."""
    global _locked
    try:
        return execute(sql, params, many, context)
    except OperationalError as error:
        if "database is locked" in str(error):
            with _counting:
                _locked += 1
        raise


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
