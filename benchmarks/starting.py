"""The time from the end of Django's own set-up in a worker process to the first handler."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from django.db import connections

from benchmarks.cells import Cell, Figures, Row, Run, Target
from benchmarks.database import fill
from benchmarks.workers import Marks, bare_command, burst, together

TYPE = "bench.value"
METRIC = "ms to the first handler"
LIMIT = (Target(METRIC, at_most=500),)


def cells(*, is_quick: bool) -> Iterator[Cell]:
    starts = 1 if is_quick else 5
    what = f"from the end of Django's set-up to the first handler, one due job, median of {starts} starts"
    floor = {"psycopg loop": partial(_starts, starts, "default", lambda: together([bare_command("batches", TYPE)]))}
    row = Row("start of a worker: from Django's set-up to the first handler, ms", METRIC)
    ours: dict[str, Run] = {"ours": partial(_starts, starts, "default", partial(burst, TYPE))}
    yield Cell("start", what, {**ours, **floor}, LIMIT, row=row, max_rounds=1)
    ours = {"ours": partial(_starts, starts, "sqlite", partial(burst, TYPE, "sqlite"))}
    yield Cell("sqlite-start", f"SQLite: {what}", ours, LIMIT, max_rounds=1)


def _starts(count: int, using: str, start: Callable[[], list[Marks]]) -> Figures:
    return {METRIC: median(_milliseconds(using, start) for _ in range(count))}


def _milliseconds(using: str, start: Callable[[], list[Marks]]) -> float:
    fill(TYPE, 1, using)
    connections[using].close()
    (marks,) = start()
    milliseconds: float = (marks["first"]["time"] - marks["set_up"]) * 1_000
    return milliseconds
