"""Starts many processes gradually, waits until they are ready, and stops them together."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workers import LONGEST_SECONDS, POLL_SECONDS, ROOT, WorkerFailed, own_environment

#: The number of processes that start at a time: the imports of each take a second of CPU.
AT_ONCE = 2 * (os.cpu_count() or 1)
STOP_SECONDS = 30


@contextmanager
def crowd(
    command: Sequence[str], number: int, ready: Callable[[], int], environment: dict[str, str]
) -> Iterator[list[int]]:
    """Run the processes with extra environment variables, and yield their ids.

    ``ready`` returns how many of them wait for work.
    """
    with tempfile.TemporaryFile() as output:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            while len(processes) < number:
                more = range(min(AT_ONCE, number - len(processes)))
                processes += [_start(command, {**own_environment(), **environment}, output.fileno()) for _ in more]
                _wait(processes, ready)
            yield [process.pid for process in processes]
            _check(processes)
        except WorkerFailed as error:
            output.seek(0)
            raise WorkerFailed(f"{error}\n{output.read().decode()[-2000:]}") from error
        finally:
            _stop(processes)


@contextmanager
def waiting(command: Sequence[str], number: int, environment: dict[str, str]) -> Iterator[None]:
    """Run processes that report that they are ready with ``report_ready``."""
    with tempfile.TemporaryDirectory() as folder:

        def ready() -> int:
            return sum(1 for _ in Path(folder).iterdir())

        with crowd(command, number, ready, {**environment, "BENCH_READY": folder}):
            yield


@contextmanager
def idle_workers(command: Sequence[str], times: Path, number: int = 1) -> Iterator[list[int]]:
    """Run processes whose handlers append their times to a file, and yield their ids. The first job waits for them."""
    with crowd(command, number, lambda: number, {"BENCH_TIMES": str(times)}) as processes:
        yield processes


def report_ready() -> None:
    """Report that this process waits for work."""
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
