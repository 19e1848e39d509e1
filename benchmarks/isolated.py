"""Throughput of workers whose handlers run in child processes, compared with threads and other pools of processes."""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from benchmarks.cells import Cell, Figures, Row, Target
from benchmarks.database import fill
from benchmarks.project.burning import burn
from benchmarks.workers import SLOTS, drain

CHILDREN = 4
THREADS = f"{SLOTS} threads of the worker"
EXECUTOR = "ProcessPoolExecutor"
PREFORK = "celery prefork with Redis"
PREFORK_BUSY = "celery prefork with Redis, 10 ms"
#: How many calls a ``ProcessPoolExecutor`` may hold, so that it is not measured with a queue of all calls.
IN_FLIGHT = 100


def cells(*, is_quick: bool) -> Iterator[Cell]:
    values, busy = (500, 50) if is_quick else (10_000, 500)
    yield Cell(
        "isolated",
        f"{values:,} jobs that return a value, one worker process with {CHILDREN} children and {SLOTS} slots",
        {
            "ours": _filled(_drain_in_children, "bench.value", values, CHILDREN),
            THREADS: _filled(_drain_in_threads, "bench.value", values),
            f"{EXECUTOR}, without a database": partial(_calls, len, "value", values, CHILDREN),
        },
        (Target("jobs/s", at_least=0.6, of_floor=THREADS), Target("jobs/s", at_least=1, of_floor=PREFORK)),
        row=Row(f"drain in {CHILDREN} child processes"),
    )
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Cell(
        "isolated-cpu",
        f"{busy:,} jobs that use a CPU for 10 ms, one worker process with a child for each of {cpus} CPUs",
        {
            "ours": _filled(_drain_in_children, "bench.burn", busy, cpus),
            THREADS: _filled(_drain_in_threads, "bench.burn", busy),
            f"{EXECUTOR}, without a database": partial(_calls, burn, 0.01, busy, cpus),
        },
        (Target("jobs/s", at_least=1.2, of_floor=THREADS), Target("jobs/s", at_least=0.8, of_floor=PREFORK_BUSY)),
        row=Row("handlers that use a CPU for 10 ms, in child processes"),
    )


def _filled(run: Callable[..., Figures], type_name: str, jobs: int, *arguments: int) -> Callable[[], Figures]:
    def fill_and_run() -> Figures:
        fill(type_name, jobs)
        return {"jobs/s": run(type_name, jobs, *arguments)["jobs/s"]}  # the CPU time of children is not known

    return fill_and_run


def _drain_in_threads(type_name: str, jobs: int) -> Figures:
    return drain(type_name, jobs, environment={"BENCH_FIRST": "ended"})


def _drain_in_children(type_name: str, jobs: int, children: int) -> Figures:
    """Measure from the end of the first attempt, because a child starts for it."""
    isolation = json.dumps({"level": "process", "max_workers": children, "strict": True})
    return drain(type_name, jobs, environment={"BENCH_FIRST": "ended", "BENCH_ISOLATION": isolation})


def _calls(function: Callable[..., object], argument: object, calls: int, children: int) -> Figures:
    with ProcessPoolExecutor(children, mp_context=get_context("forkserver")) as executor:
        list(executor.map(function, [argument] * children * 4))
        started = time.perf_counter()
        waiting: list[Future[object]] = []
        for _ in range(calls):
            if len(waiting) == IN_FLIGHT:
                waiting.pop(0).result()
            waiting.append(executor.submit(function, argument))
        for future in waiting:
            future.result()
        return {"jobs/s": calls / (time.perf_counter() - started)}
