"""Scale-out: the throughput and CPU cost of a growing number of worker processes on this machine."""

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.cells import Cell, Figures
from benchmarks.database import fill
from benchmarks.workers import bare_drain, drain

PROCESSES = (1, 2, 4, 8)
#: Eight processes with ten slots each would need more connections than a server allows by default.
SLOTS = 5


def cells(*, is_quick: bool) -> Iterator[Cell]:
    yield _cell("scale-out", "that return a value", "bench.value", "batches", 2_000 if is_quick else 20_000)
    yield _cell(
        "scale-out-effect", "that write one row in complete()", "bench.insert", "effects", 1_000 if is_quick else 6_000
    )


def _cell(name: str, what: str, type_name: str, floor: str, jobs: int) -> Cell:
    numbers = ", ".join(map(str, PROCESSES))
    return Cell(
        name,
        f"{jobs:,} jobs {what}, {numbers} worker processes with {SLOTS} slots each",
        {
            "ours": partial(_scale, type_name, jobs, partial(drain, type_name, jobs, slots=SLOTS)),
            "psycopg loops" if floor == "batches" else f"{SLOTS} psycopg threads in each process": partial(
                _scale, type_name, jobs, partial(bare_drain, floor, type_name, jobs, threads=SLOTS)
            ),
        },
    )


def _scale(type_name: str, jobs: int, run: Callable[..., Figures]) -> Figures:
    figures: Figures = {}
    for processes in PROCESSES:
        fill(type_name, jobs)
        figures |= {f"{metric}, {processes} at once": value for metric, value in run(processes=processes).items()}
    return figures
