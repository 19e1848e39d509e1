"""Throughput of one worker process, handlers that return a value or write a row in ``complete()``, and whole chains."""

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks import bare, pgbench
from benchmarks.cells import Cell, Figures, Target
from benchmarks.database import add, add_backlog, fill
from benchmarks.project.jobs import STEPS
from benchmarks.workers import SLOTS, drain


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 2_000 if is_quick else 10_000
    finished, pending = (100_000, 10_000) if is_quick else (1_000_000, 100_000)
    yield Cell(
        "drain",
        f"{jobs:,} jobs that return a value, one worker process, otherwise empty table",
        _values(jobs, partial(fill, "bench.value", jobs)),
    )
    yield Cell(
        "drain-backlog",
        f"the same with {finished:,} finished jobs and {pending:,} pending ones of 50 other types in the table",
        _values(jobs, partial(add, "bench.value", jobs)),
        prepare=partial(add_backlog, finished, pending),
    )
    jobs = 1_000 if is_quick else 4_000
    for name, how in (("insert", "with a cursor"), ("create", "with the ORM")):
        yield Cell(
            f"effect-{name}",
            f"{jobs:,} jobs that write one row {how} in complete(), {SLOTS} slots",
            _effects(f"bench.{name}", jobs),
            (Target("jobs/s", at_least=0.5, of_floor="psycopg threads"),),
        )
    chains = 200 if is_quick else 1_000
    yield Cell(
        "chains",
        f"{chains:,} chains of {STEPS} steps that return a value, one worker process",
        {
            "ours": _after(partial(fill, "bench.step", chains), partial(_steps, chains)),
            "psycopg loop": _after(
                partial(fill, "bench.step", chains), partial(bare.drain_chains, "bench.step", chains)
            ),
        },
    )


def _values(jobs: int, prepare: Callable[[], object]) -> dict[str, Callable[[], Figures]]:
    runs: dict[str, Callable[[], Figures]] = {
        "ours": partial(drain, "bench.value", jobs),
        "psycopg loop": partial(bare.drain_in_batches, "bench.value", jobs),
    }
    if pgbench.is_here():
        runs["pgbench"] = partial(pgbench.drain_in_batches, "bench.value", jobs)
    return {name: _after(prepare, run) for name, run in runs.items()}


def _effects(type_name: str, jobs: int) -> dict[str, Callable[[], Figures]]:
    runs: dict[str, Callable[[], Figures]] = {
        "ours": partial(drain, type_name, jobs),
        "psycopg threads": partial(bare.drain_with_effects, type_name, jobs, SLOTS),
    }
    if pgbench.is_here():
        runs["pgbench"] = partial(pgbench.drain_with_effects, type_name, jobs)
    return {name: _after(partial(fill, type_name, jobs), run) for name, run in runs.items()}


def _steps(chains: int) -> Figures:
    figures = drain("bench.step", chains * STEPS)
    return {metric.replace("job", "step"): value for metric, value in figures.items()}


def _after(prepare: Callable[[], object], run: Callable[[], Figures]) -> Callable[[], Figures]:
    def prepared() -> Figures:
        prepare()
        return run()

    return prepared
