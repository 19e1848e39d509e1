"""Child pools: the start of a child process, and a call to a warm one, compared with the standard library."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median

from benchmarks.cells import Cell, Figures, Target
from django_jobchains.pools import ChildSession, ReusablePool, TransientPool

ECHO = "benchmarks.pools:echo"
CALL = "µs for a call"
START = "ms for a start"


def echo(payload: object) -> object:
    return payload


def cells(*, is_quick: bool) -> Iterator[Cell]:
    calls, starts = (100, 3) if is_quick else (5_000, 40)
    yield Cell(
        "pools-call",
        f"a call to a warm child that returns its payload, median of {calls:,} calls",
        {
            "ours": partial(_calls_in_pool, calls),
            "a thread of ThreadPoolExecutor": partial(_calls_in_executor, ThreadPoolExecutor(1), calls),
            "ProcessPoolExecutor": partial(_calls_in_executor, _process_pool(), calls),
        },
        (Target(CALL, at_most=300), Target(CALL, at_most=1, of_floor="ProcessPoolExecutor")),
    )
    yield Cell(
        "pools-start",
        f"start of a child process that has set up Django, with one call, median of {starts} starts",
        {
            "ours": partial(_starts, starts, _use_transient),
            "forkserver of multiprocessing": partial(_starts, starts, partial(_use_process, "forkserver")),
            "a fresh interpreter": partial(_starts, min(starts, 10), _use_interpreter),
        },
        (Target(START, at_most=50), Target(START, at_most=0.2, of_floor="a fresh interpreter")),
    )


def _process_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("forkserver"))


def _calls_in_pool(count: int) -> Figures:
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        child.run(ECHO, 0)
        return {CALL: _median(count, lambda: child.run(ECHO, {"image": 7})) * 1e6}


def _calls_in_executor(executor: ThreadPoolExecutor | ProcessPoolExecutor, count: int) -> Figures:
    executor.submit(echo, 0).result()
    return {CALL: _median(count, lambda: executor.submit(echo, {"image": 7}).result()) * 1e6}


def _starts(count: int, use: Callable[[], object]) -> Figures:
    use()  # what is started once
    return {START: _median(count, use) * 1e3}


_transient_pool = TransientPool(strict=True)


def _use_transient() -> None:
    with ChildSession(_transient_pool) as child:
        child.run(ECHO, 0)


def set_up_django() -> None:
    import django

    django.setup()


def _use_process(method: str) -> None:
    process = get_context(method).Process(target=set_up_django)  # type: ignore[attr-defined]
    process.start()
    process.join()


def _use_interpreter() -> None:
    subprocess.run([sys.executable, "-c", "import django; django.setup()"], check=True)


def _median(count: int, call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return median(seconds)
