"""What the figures were measured on."""

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
        "pgbench": "yes" if shutil.which("pgbench") else "not found: its floors are left out",
        "CPUs": str(os.cpu_count()),
    }


def load() -> float:
    """Processes that wanted to run, on average over the last minute."""
    return os.getloadavg()[0]


def ticks() -> list[int]:
    """Linux: time of all CPUs by kind since the start; empty elsewhere."""
    stat = Path("/proc/stat")
    return [int(number) for number in stat.read_text().split("\n", 1)[0].split()[1:9]] if stat.exists() else []


def steal_share(before: list[int]) -> float:
    """Share of the time since ``before`` that the host gave to others."""
    spent = [now - then for now, then in zip(ticks(), before, strict=True)]
    return spent[7] / (sum(spent) or 1) if spent else 0.0


def server_cpu_seconds() -> float | None:
    """Linux, PostgreSQL on this machine: CPU time of all its connections that were closed so far."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    ours = _stat(backend)
    postmaster = _stat(int(ours[PARENT])) if ours and "postgres" in ours[0] else []
    return sum(map(int, postmaster[OF_CHILDREN])) / os.sysconf("SC_CLK_TCK") if postmaster else None


def cpu_seconds(process: int) -> float | None:
    """Linux: CPU time of a process on this machine."""
    file = Path(f"/proc/{process}/schedstat")
    return int(file.read_text().split()[0]) / 1e9 if file.exists() else None


def _stat(process: int) -> list[str]:
    """The name of a process and the fields after it, as ``man proc_pid_stat`` counts them from its second."""
    file = Path(f"/proc/{process}/stat")
    if not file.exists():
        return []
    name, _, fields = file.read_text().partition("(")[2].rpartition(")")
    return [name, *fields.split()]


def file_system(path: Path) -> str:
    """Linux: the type of the file system a path lies on."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    return next((kinds[str(part)] for part in (path, *path.parents) if str(part) in kinds), "unknown")
