"""The memory of a worker after many jobs, and whether it grows."""

from collections.abc import Iterator
from functools import partial

from benchmarks.cells import Cell, Figures, Target
from benchmarks.database import fill
from benchmarks.draining import after
from benchmarks.workers import SLOTS, bare_command, burst, check_ended, together

MEBIBYTE = 1024**2


def cells(*, is_quick: bool) -> Iterator[Cell]:
    early, late = (2_000, 10_000) if is_quick else (20_000, 100_000)
    name = f"MB after {late:,} jobs"
    yield Cell(
        "memory",
        f"resident memory of a worker process after {early:,} and {late:,} jobs that return a value, {SLOTS} slots",
        {
            "ours": after(partial(fill, "bench.value", late), partial(_ours, early, late)),
            "one psycopg connection in the same project": partial(_bare, late),
        },
        (Target(name, at_most=80), Target("% grown", at_most=5)),
    )


def _ours(early: int, late: int) -> Figures:
    marks = burst("bench.value", BENCH_MEMORY_EACH=str(early))
    check_ended(marks, late)
    first, last = (marks[0]["memory"][str(jobs)] for jobs in (early, late))
    return {
        f"MB after {early:,} jobs": first / MEBIBYTE,
        f"MB after {late:,} jobs": last / MEBIBYTE,
        "% grown": (last / first - 1) * 100,
    }


def _bare(late: int) -> Figures:
    """Measure a process that has set up Django and claims nothing."""
    (marks,) = together([bare_command("batches", "bench.nothing")])
    return {f"MB after {late:,} jobs": marks["memory"]["0"] / MEBIBYTE}
