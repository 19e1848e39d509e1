"""Many processes that are started gently, wait, and are stopped together."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workers import LONGEST_SECONDS, POLL_SECONDS, ROOT, WorkerFailed, own_environment

#: Processes that start at a time: what they import takes a second of a CPU each.
AT_ONCE = 2 * (os.cpu_count() or 1)
STOP_SECONDS = 30


@contextmanager
def crowd(command: Sequence[str], number: int, ready: Callable[[], int], told: dict[str, str]) -> Iterator[None]:
    """``ready`` says how many of them wait for work. ``told``: by their environment."""
    with tempfile.TemporaryFile() as output:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            while len(processes) < number:
                more = range(min(AT_ONCE, number - len(processes)))
                processes += [_start(command, {**own_environment(), **told}, output.fileno()) for _ in more]
                _wait(processes, ready)
            yield
            _check(processes)
        except WorkerFailed as error:
            output.seek(0)
            raise WorkerFailed(f"{error}\n{output.read().decode()[-2000:]}") from error
        finally:
            _stop(processes)


@contextmanager
def waiting(command: Sequence[str], number: int, told: dict[str, str]) -> Iterator[None]:
    """Of those that say themselves that they are ready, see ``say_ready``."""
    with tempfile.TemporaryDirectory() as folder:

        def ready() -> int:
            return sum(1 for _ in Path(folder).iterdir())

        with crowd(command, number, ready, {**told, "BENCH_READY": folder}):
            yield


def say_ready() -> None:
    """Of a process that begins to wait for work."""
    if "BENCH_READY" in os.environ:
        Path(os.environ["BENCH_READY"], str(os.getpid())).touch()


def _start(command: Sequence[str], own: dict[str, str], output: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, cwd=ROOT, env=own, stdout=output, stderr=subprocess.STDOUT)


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", ready: Callable[[], int]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while ready() < len(processes):
        _check(processes)
        if time.monotonic() > deadline:
            raise WorkerFailed(f"{ready()} of {len(processes)} processes are ready after {LONGEST_SECONDS} seconds.")
        time.sleep(POLL_SECONDS)


def _check(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    if ended := [process.returncode for process in processes if process.poll() is not None]:
        raise WorkerFailed(f"{len(ended)} of {len(processes)} processes ended, with {set(ended)}.")


def _stop(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
