"""Facts about the machine and the software that are measured."""

import os
import platform
import shutil
import sqlite3
from pathlib import Path

import django
import psycopg
from django.db import connection

import django_jobchains

#: Fields of ``_stat``.
PARENT = 2
OF_CHILDREN = slice(14, 16)


def facts() -> dict[str, str]:
    return {
        "django_jobchains": django_jobchains.__version__,
        "Python": platform.python_version(),
        "Django": django.__version__,
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "SQLite": sqlite3.sqlite_version,
        "pgbench": "yes" if shutil.which("pgbench") else "not found: its floors are skipped",
        "CPUs": str(os.cpu_count()),
    }


def load() -> float:
    """Return the machine's load average over the last minute."""
    return os.getloadavg()[0]


def ticks() -> list[int]:
    """Return the time of all CPUs by kind since the boot, on Linux; an empty list on other systems."""
    stat = Path("/proc/stat")
    return [int(number) for number in stat.read_text().split("\n", 1)[0].split()[1:9]] if stat.exists() else []


def steal_share(before: list[int]) -> float:
    """Return the share of CPU time since ``before`` that the host gave to other virtual machines."""
    spent = [now - then for now, then in zip(ticks(), before, strict=True)]
    return spent[7] / (sum(spent) or 1) if spent else 0.0


def server_cpu_seconds() -> float | None:
    """Return the CPU time of all closed connections of a PostgreSQL server on this machine, on Linux."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    ours = _stat(backend)
    postmaster = _stat(int(ours[PARENT])) if ours and "postgres" in ours[0] else []
    return sum(map(int, postmaster[OF_CHILDREN])) / os.sysconf("SC_CLK_TCK") if postmaster else None


def cpu_seconds(process: int) -> float | None:
    """Return the CPU time of a process on this machine, on Linux."""
    file = Path(f"/proc/{process}/schedstat")
    return int(file.read_text().split()[0]) / 1e9 if file.exists() else None


def _stat(process: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the second one on, which is the name: see ``man proc_pid_stat``."""
    file = Path(f"/proc/{process}/stat")
    if not file.exists():
        return []
    name, _, fields = file.read_text().partition("(")[2].rpartition(")")
    return [name, *fields.split()]


def file_system(path: Path) -> str:
    """Return the type of the file system that contains a path, on Linux."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    return next((kinds[str(part)] for part in (path, *path.parents) if str(part) in kinds), "unknown")
