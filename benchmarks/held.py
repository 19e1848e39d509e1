"""The cost of a transaction that is held open while jobs run, such as a long report or a forgotten session.

Until it ends, dead index entries cannot be removed, and each claim walks over the entries of all jobs claimed before.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median

from benchmarks.cells import Cell, Figures
from benchmarks.database import connect, empty, finish, new_jobs, settle
from django_jobchains.store import get_store

TYPE = "bench.value"
BATCH = 50
JOBS_PER_SECOND = 500


def cells(*, is_quick: bool) -> Iterator[Cell]:
    seconds = 5 if is_quick else 300
    run = partial(_come_and_go, seconds)
    yield Cell(
        "held",
        f"cost with an open REPEATABLE READ transaction, {seconds} s at {JOBS_PER_SECOND} jobs a second: µs a job",
        {"ours": lambda: run(_reading()), "without it": lambda: run(nullcontext())},
        is_extra=True,
        max_rounds=1,
    )


@contextmanager
def _reading() -> Iterator[None]:
    with connect() as bare:
        bare.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        bare.execute("SELECT 1")
        yield
        bare.execute("COMMIT")


def _come_and_go(seconds: int, held: AbstractContextManager[None]) -> Figures:
    """Return the medians of the last tenth of the calls."""
    store = get_store()
    empty()
    settle()
    claims, finishes = [], []
    with held:
        begun = time.monotonic()
        for number in range(seconds * JOBS_PER_SECOND // BATCH):
            time.sleep(max(0.0, begun + number * BATCH / JOBS_PER_SECOND - time.monotonic()))
            store.jobs.create(new_jobs(TYPE, BATCH))
            start = time.perf_counter()
            jobs = store.jobs.claim("bench", BATCH, {TYPE: 60})
            claimed = time.perf_counter()
            finish(jobs)
            finishes.append((time.perf_counter() - claimed) / BATCH * 1e6)
            claims.append((claimed - start) / BATCH * 1e6)
        late = time.monotonic() - begun - seconds
    last = len(claims) // 10
    figures = {f"claim {BATCH}": median(claims[-last:]), f"finish {BATCH}": median(finishes[-last:])}
    return {**figures, "seconds late": late}
