"""The worker process that is measured, ``run_jobworker`` as anybody starts it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 10
LONGEST_SECONDS = 600


class WorkerFailed(Exception):
    """The worker did not do what is measured."""


def drain(type_name: str, jobs: int, using: str = "default", **how: Any) -> dict[str, float]:
    """Runs what is due in a worker of its own. The time goes from the first handler's start to the last commit."""
    marks = burst(type_name, using, **how)
    if marks["ended"] != jobs:
        raise WorkerFailed(f"{marks['ended']:,} of {jobs:,} jobs ended.")
    seconds = marks["last"]["time"] - marks["first"]["time"]
    cpu_seconds = marks["last"]["cpu"] - marks["first"]["cpu"]
    return {"jobs/s": jobs / seconds, "CPU µs/job": cpu_seconds / jobs * 1e6}


def burst(
    type_name: str, using: str = "default", *, prefix: tuple[str, ...] = (), slots: int = SLOTS, **environment: str
) -> dict[str, Any]:
    """The marks of a worker that runs until nothing is due; ``prefix`` is a command to run it under."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder, "marks.json")
        command = [*prefix, *_command(type_name, using, slots), "--burst"]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**_environment(), "BENCH_MARKS": str(marks), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=LONGEST_SECONDS)
        except BaseException:
            process.kill()
            raise
        if process.returncode:
            raise WorkerFailed(output)
        summary: dict[str, Any] = json.loads(marks.read_text())
        return summary


@contextmanager
def _waiting(command: list[str], times: Path) -> Iterator[None]:
    """A process whose handlers append their times to a file; stopped at the end."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**_environment(), "BENCH_TIMES": str(times)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def waiting_worker(type_name: str, times: Path) -> AbstractContextManager[None]:
    return _waiting(_command(type_name, "default", SLOTS), times)


def bare_worker(type_name: str, times: Path) -> AbstractContextManager[None]:
    return _waiting([*_MANAGE, "run_bare_worker", type_name], times)


_MANAGE = (sys.executable, "-m", "benchmarks.project")


def _command(type_name: str, using: str, slots: int) -> list[str]:
    return [*_MANAGE, "run_jobworker", "--database", using, "--slots", str(slots), "--type", type_name]


def _environment() -> dict[str, str]:
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings"}
