"""Throughput of a worker with records, also with many other records that are finished or not ready."""

from collections.abc import Iterator
from functools import partial

from benchmarks.cells import Cell, Row, Target
from benchmarks.database import add_records, checkpoint, empty_records, vacuum
from benchmarks.draining import THREADS, after
from benchmarks.project.models import Import
from benchmarks.workers import SLOTS, bare_drain, drain


def cells(*, is_quick: bool) -> Iterator[Cell]:
    count = 1_000 if is_quick else 10_000
    finished, waiting = (10_000, 1_000) if is_quick else (1_000_000, 100_000)
    what = f"{count:,} records whose handler returns, one worker process, {SLOTS} slots"
    targets = (Target("records/s", at_least=1_500), Target("records/s", at_least=0.6, of_floor=THREADS))
    yield _cell("records", what, count, 0, 0, targets, Row("records whose handler returns", "records/s"))
    more = f"the same records, with {finished:,} completed records and {waiting:,} with a later process_after"
    yield _cell("records-backlog", more, count, finished, waiting, targets)


def _cell(
    name: str, title: str, count: int, finished: int, waiting: int, targets: tuple[Target, ...], row: Row | None = None
) -> Cell:
    prepare = partial(fill, count)
    runs = {
        "ours": partial(drain, "bench.record", count, unit="record"),
        THREADS: partial(bare_drain, "records", "bench.record", count, threads=SLOTS, unit="record"),
    }
    return Cell(
        name,
        title,
        {name: after(prepare, run) for name, run in runs.items()},
        targets,
        prepare=partial(_begin, finished, waiting),
        row=row,
    )


def fill(count: int) -> None:
    """Make these records the only ones that are ready, then vacuum the table."""
    Import.objects.filter(state="queued", process_after=None).delete()
    checkpoint()
    add_records(count)
    vacuum()


def _begin(finished: int, waiting: int) -> None:
    empty_records()
    add_records(finished, "completed")
    add_records(waiting, "queued", "now() + interval '1 day'")
