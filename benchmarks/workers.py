"""Runs the measured worker processes, with the ordinary ``run_jobworker``, and the processes of the floors."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Figures
from benchmarks.server_cost import server_cost

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 10
LONGEST_SECONDS = 600
POLL_SECONDS = 0.05

#: The summary that a process wrote, see ``benchmarks.project.marks``.
Marks = dict[str, Any]


class WorkerFailed(Exception):
    """The worker did not do the measured work."""


def drain(
    type_name: str,
    jobs: int,
    using: str = "default",
    *,
    slots: int = SLOTS,
    processes: int = 1,
    unit: str = "job",
    environment: Mapping[str, str] | None = None,
) -> Figures:
    """Run the due jobs in separate workers. ``environment``: extra environment variables."""
    with server_cost(jobs, unit, using) as cost:
        marks = burst(type_name, using, slots=slots, processes=processes, **environment or {})
    check_ended(marks, jobs)
    return {**figures(marks, jobs, unit), **cost}


def check_ended(marks: Sequence[Marks], jobs: int) -> None:
    if (ended := sum(each["ended"] for each in marks)) != jobs:
        errors = [error for each in marks for error in each["errors"]]
        raise WorkerFailed(f"{ended:,} of {jobs:,} jobs ended. {len(errors)} errors: {errors[:3]}")


def bare_drain(
    kind: str, type_name: str, jobs: int, *, threads: int = 1, processes: int = 1, unit: str = "job"
) -> Figures:
    """Do the same work with bare statements in separate processes. ``kind`` is one of ``bare.DRAINS``."""
    with server_cost(jobs, unit, "sqlite" if kind.startswith("sqlite") else "default") as cost:
        marks = together([bare_command(kind, type_name, threads)] * processes)
    return {**figures(marks, jobs, unit), **cost}


def bare_command(kind: str, type_name: str, threads: int = 1) -> list[str]:
    return call_command("bare.drain", kind=kind, type_name=type_name, threads=threads)


def figures(marks: Sequence[Marks], jobs: int, unit: str = "job") -> Figures:
    """Return the rate from the first handler's start to the last commit of any process, and the CPU time of all."""
    busy = [each for each in marks if each["first"]]
    seconds = max(each["last"]["time"] for each in busy) - min(each["first"]["time"] for each in busy)
    cpu_seconds = sum(each["last"]["cpu"] - each["first"]["cpu"] for each in busy)
    return {f"{unit}s/s": jobs / seconds, f"CPU µs/{unit}": cpu_seconds / jobs * 1e6}


def burst(
    type_name: str,
    using: str = "default",
    *,
    prefix: Sequence[str] = (),
    slots: int = SLOTS,
    processes: int = 1,
    **environment: str,
) -> list[Marks]:
    """Run workers until nothing is due and return their marks. ``prefix`` is a command to run them under."""
    command = [*prefix, *worker_command([type_name], using, slots), "--burst"]
    return together([command] * processes, BENCH_USING=using, **environment)


def together(commands: Sequence[Sequence[str]], **environment: str) -> list[Marks]:
    """Run processes that begin their work at the same time, and return their marks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = {**own_environment(), "BENCH_MARKS": name, "BENCH_PROCESSES": str(len(commands)), **environment}
        processes = [_start(command, own, folder / f"output-{number}") for number, command in enumerate(commands)]
        try:
            failed = _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            raise WorkerFailed(Path(folder, f"output-{failed}").read_text())
        return [json.loads(file.read_text()) for file in folder.glob("*.json")]


def _start(command: Sequence[str], environment: dict[str, str], output: Path) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)


def _wait(processes: "Sequence[subprocess.Popen[bytes]]") -> int | None:
    """Wait until all have ended, or one has failed. Return its index: others may wait for it forever."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if failed := [number for number, code in enumerate(codes) if code]:
            return failed[0]
        if None not in codes:
            return None
        time.sleep(POLL_SECONDS)
    running = f"{codes.count(None)} of {len(codes)} processes"
    raise WorkerFailed(f"{running} are still running after {LONGEST_SECONDS} seconds.")


MANAGE = (sys.executable, "-m", "benchmarks.project")


def worker_command(type_names: Sequence[str], using: str, slots: int) -> list[str]:
    types = [part for name in type_names for part in ("--type", name)]
    return [*MANAGE, "run_jobworker", "--database", using, "--slots", str(slots), *types]


def bare_worker_command(type_name: str, signals: str = "listen") -> list[str]:
    return call_command("bare_worker.run", type_name=type_name, signals=signals)


def call_command(function: str, **arguments: object) -> list[str]:
    """Return the command of a process that calls a function of the benchmarks."""
    return [*MANAGE, "call", function, json.dumps(arguments)]


def own_environment() -> dict[str, str]:
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings"}
