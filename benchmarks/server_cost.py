"""What a PostgreSQL server on this machine spends on a piece of work: CPU time and write-ahead log."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import Figures
from benchmarks.database import connect
from benchmarks.machine import cpu_seconds

#: The time in which the server notices that clients have disconnected.
SETTLE_SECONDS = 0.2
#: Fields of ``/proc/PID/stat`` after the name.
PARENT = 2
OF_CHILDREN = slice(14, 16)


class Spent(NamedTuple):
    cpu_seconds: float | None
    wal_bytes: int


@contextmanager
def server_cost(jobs: int, unit: str = "job", using: str = "default", bare: Any = None) -> Iterator[Figures]:
    """Yield figures that are filled in when the block ends. On SQLite there are none.

    ``bare`` is a connection to the database where the work is done, which must be used for nothing else meanwhile. CPU
    time is only known on Linux. Work in other databases of the server is counted, too, when its sessions end.
    """
    figures: Figures = {}
    if using == "sqlite":
        yield figures
        return
    with connect() if bare is None else nullcontext(bare) as own:
        before = _spent(own)
        yield figures
        time.sleep(SETTLE_SECONDS)
        after = _spent(own)
        if before.cpu_seconds is not None and after.cpu_seconds is not None:
            figures[f"server CPU µs/{unit}"] = (after.cpu_seconds - before.cpu_seconds) / jobs * 1e6
        figures[f"WAL bytes/{unit}"] = (after.wal_bytes - before.wal_bytes) / jobs


def _spent(bare: Any) -> Spent:
    """Return the CPU time of all closed sessions of the server and of this database's open ones, and the log's end."""
    own, sessions, wal_bytes = bare.execute(
        "SELECT pg_backend_pid(), array_remove(array_agg(pid), pg_backend_pid()), "
        "(pg_current_wal_insert_lsn() - '0/0')::bigint FROM pg_stat_activity WHERE datname = current_database()"
    ).fetchone()
    stat = _stat(own)
    if not stat or "postgres" not in stat[0]:
        return Spent(None, wal_bytes)
    open_seconds = sum(cpu_seconds(process) or 0.0 for process in sessions)
    closed_ticks = sum(map(int, _stat(int(stat[PARENT]))[OF_CHILDREN]))
    return Spent(open_seconds + closed_ticks / os.sysconf("SC_CLK_TCK"), wal_bytes)


def _stat(process: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the second one on, which is the name: see ``man proc_pid_stat``."""
    file = Path(f"/proc/{process}/stat")
    if not file.exists():
        return []
    name, _, fields = file.read_text().partition("(")[2].rpartition(")")
    return [name, *fields.split()]
