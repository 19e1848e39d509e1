"""Records when the handlers of this process started and when their results were committed.

Several processes may be measured at once: they wait for each other before their work, and each writes a summary.
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

from django_jobchains.children.limits import resident_bytes
from django_jobchains.db.connections import ignoring_own_statements
from django_jobchains.store.sqlite import SQLiteDatabase
from django_jobchains.telemetry import add_sink
from django_jobchains.telemetry.events import AttemptEnded, Event

SAMPLE_SECONDS = 0.1
BARRIER_SECONDS = 60
POLL_SECONDS = 0.001
#: The number of jobs between two samples of the memory; 0 for none.
MEMORY_EACH = int(os.environ.get("BENCH_MEMORY_EACH", "0"))

#: Whether the measurement begins with the end of the first attempt: handlers in child processes mark nothing here.
BEGINS_WITH_END = os.environ.get("BENCH_FIRST") == "ended"

_first: dict[str, float] = {}
_last: dict[str, float] = {}
_ended = 0
_counting = threading.Lock()
_memory: dict[int, int] = {}
_errors: list[str] = []
_locked = 0
_threads: dict[str, float] = {}


def meet() -> None:
    """Wait until all ``BENCH_PROCESSES`` have created a file in the folder ``BENCH_MARKS``."""
    processes = int(os.environ.get("BENCH_PROCESSES", "1"))
    folder = _marks() / "here"
    folder.mkdir(exist_ok=True)
    Path(folder, str(os.getpid())).touch()
    deadline = time.monotonic() + BARRIER_SECONDS
    while sum(1 for _ in folder.iterdir()) < processes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Fewer than {processes} processes have started.")
        time.sleep(POLL_SECONDS)


def started() -> None:
    """Record the start of the process's first handler. This is a handler's first line in a throughput cell."""
    if not _first and not BEGINS_WITH_END:
        _first.update(_now())


def watch() -> None:
    """Write a summary to the folder ``BENCH_MARKS`` when the process ends."""
    add_sink(_on_event)
    atexit.register(_write)
    connection_created.connect(_on_connection)
    # The store does not use Django's cursor, unless a wrapper asks for it.
    ignoring_own_statements.add(_count_locked)
    fetch = SQLiteDatabase.fetch
    SQLiteDatabase.fetch = lambda *args: _count_locked(fetch, *args)  # type: ignore[method-assign]
    if "BENCH_THREADS" in os.environ:
        threading.Thread(target=_sample, name="samples", daemon=True).start()


def drained() -> None:
    """Record the end of a process with bare statements, which reports no events."""
    _last["time"] = time.time()
    _memory[0] = resident_bytes()


def _write() -> None:
    last = {**_last, "cpu": time.process_time()}
    counted = {"ended": _ended, "errors": _errors, "locked": _locked, "memory": _memory, "threads": _threads}
    set_up = float(os.environ["BENCH_SET_UP"])
    summary = {"set_up": set_up, "first": _first, "last": last, **counted}
    Path(_marks(), f"{os.getpid()}.json").write_text(json.dumps(summary))


def _on_event(event: Event) -> None:
    """Record the end of an attempt, which the worker reports after the commit of its outcome."""
    global _ended
    if isinstance(event, AttemptEnded):
        if event.error:
            _errors.append(event.error)
            return
        with _counting:
            if not _first:
                _first.update(_now())
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


def _count_locked(execute: Callable[..., Any], *args: Any) -> Any:
    """Count "database is locked" where it happens, because the store retries some of these statements."""
    global _locked
    try:
        return execute(*args)
    except OperationalError as error:
        if "database is locked" in str(error):
            with _counting:
                _locked += 1
        raise


def _sample() -> None:
    """Sample the CPU seconds of each thread on Linux."""
    tick = os.sysconf("SC_CLK_TCK")
    while True:
        for thread in threading.enumerate():
            stat = Path(f"/proc/self/task/{thread.native_id}/stat")
            if stat.exists():
                fields = stat.read_text().rpartition(")")[2].split()
                _threads[thread.name] = (int(fields[11]) + int(fields[12])) / tick
        time.sleep(SAMPLE_SECONDS)
