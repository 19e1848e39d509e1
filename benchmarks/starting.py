"""The time from the end of Django's own set-up in a worker process to the first handler."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from benchmarks.cells import Cell, Figures, Row, Target
from benchmarks.database import fill
from benchmarks.workers import Marks, bare_command, burst, together

TYPE = "bench.value"
METRIC = "ms to the first handler"


def cells(*, is_quick: bool) -> Iterator[Cell]:
    starts = 1 if is_quick else 5
    yield Cell(
        "start",
        f"from the end of Django's set-up to the first handler, one due job, median of {starts} starts",
        {
            "ours": partial(_starts, starts, lambda: burst(TYPE)),
            "psycopg loop": partial(_starts, starts, lambda: together([bare_command("batches", TYPE)])),
        },
        (Target(METRIC, at_most=500),),
        row=Row("start of a worker: from Django's set-up to the first handler, ms", METRIC),
    )


def _starts(count: int, start: Callable[[], list[Marks]]) -> Figures:
    return {METRIC: median(_milliseconds(start) for _ in range(count))}


def _milliseconds(start: Callable[[], list[Marks]]) -> float:
    fill(TYPE, 1)
    (marks,) = start()
    milliseconds: float = (marks["first"]["time"] - marks["set_up"]) * 1_000
    return milliseconds
