"""The cost of OpenTelemetry: with one of a hundred traces recorded, compared with no instrumentation."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from benchmarks.bare import timed_on
from benchmarks.cells import Cell, Figures, Row, Run, Target
from benchmarks.database import empty, fill, settle
from benchmarks.draining import after
from benchmarks.project.jobs import value
from benchmarks.project.tracing import instrumented
from benchmarks.workers import drain
from django_jobchains import chains

OFF = "uninstrumented"
IN_ONE_CALL = 1_000


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 2_000 if is_quick else 20_000
    prepare = partial(fill, value.name, jobs)
    yield Cell(
        "otel-drain",
        f"{jobs:,} jobs that return a value, 1 worker process, 10 slots, with OpenTelemetry",
        {
            "ours": after(prepare, partial(drain, value.name, jobs, environment={"BENCH_OTEL": "1"})),
            OFF: after(prepare, partial(drain, value.name, jobs)),
        },
        (Target("jobs/s", at_least=0.85, of_floor=OFF),),
        row=Row("drain with OpenTelemetry, 1 % sampled"),
    )
    count = 500 if is_quick else 3_000
    yield _enqueueing("otel-enqueue", f"{count:,} jobs, each in its own transaction", count, _one_by_one)
    calls = 5 if is_quick else 20
    title = f"{calls} calls of enqueue_many with {IN_ONE_CALL:,} jobs"
    yield _enqueueing("otel-enqueue-many", title, calls * IN_ONE_CALL, _together)


def _enqueueing(name: str, title: str, jobs: int, run: Callable[[int], None]) -> Cell:
    contestants: dict[str, Run] = {
        "ours": partial(_enqueue, jobs, run, instrumented),
        OFF: partial(_enqueue, jobs, run, nullcontext),
    }
    targets = (Target("jobs/s", at_least=0.9, of_floor=OFF),)
    return Cell(name, f"{title}, one client, with OpenTelemetry", contestants, targets)


def _enqueue(jobs: int, run: Callable[[int], None], context: Callable[[], AbstractContextManager[None]]) -> Figures:
    empty()
    settle()
    with context():
        run(IN_ONE_CALL)  # connects and prepares
        return timed_on("default", jobs, "job", partial(run, jobs))


def _one_by_one(jobs: int) -> None:
    for number in range(jobs):
        value.enqueue({"i": number})


def _together(jobs: int) -> None:
    for _ in range(jobs // IN_ONE_CALL):
        chains.enqueue_many([value.item({"i": number}) for number in range(IN_ONE_CALL)])
