"""Facts about the machine and the software that are measured."""

import os
import platform
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import django
import psycopg

import django_jobchains


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


def cpu_seconds(process: int) -> float | None:
    """Return the CPU time of a process on this machine, without threads that have ended; None unless on Linux."""
    spent = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        spent = [int(file.read_text().split()[0]) for file in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(spent) / 1e9 if spent else None


def file_system(path: Path) -> str:
    """Return the type of the file system that contains a path, on Linux."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    return next((kinds[str(part)] for part in (path, *path.parents) if str(part) in kinds), "unknown")
