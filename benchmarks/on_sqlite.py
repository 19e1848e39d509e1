"""Throughput and enqueueing on SQLite, with a file on a real disk."""

from collections.abc import Callable, Iterator
from functools import partial

from django.db import connections

from benchmarks.bare import timed_on
from benchmarks.cells import Cell, Figures, Row, Target
from benchmarks.database import empty, fill, settle
from benchmarks.project.jobs import value
from benchmarks.sqlite_statements import INSERT, connect
from benchmarks.workers import bare_drain, burst, check_ended, drain, figures
from django_jobchains import chains
from django_jobchains.db.ids import new_id

IN_ONE_CALL = 1_000
PROCESSES = 4
LOCKED = "“database is locked”"
WRITER = "SQLite's one writer"


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 2_000 if is_quick else 10_000
    yield Cell(
        "sqlite-drain",
        f"SQLite: {jobs:,} jobs that return a value, one worker process",
        {
            "ours": partial(_after_fill, "bench.value", jobs, partial(drain, "bench.value", jobs, "sqlite")),
            "sqlite3 loop": partial(
                _after_fill, "bench.value", jobs, partial(bare_drain, "sqlite-batches", "bench.value", jobs)
            ),
        },
        (Target("jobs/s", at_least=0.4, of_floor="sqlite3 loop"),),
        row=Row("SQLite: drain, one process", idle_limit=WRITER),
    )
    jobs = 1_000 if is_quick else 4_000
    yield _processes("", "batches", f"{jobs:,} jobs that return a value", "bench.value", jobs)
    yield _processes("-effect", "effects", f"{jobs:,} jobs that write one row in complete()", "bench.insert", jobs)
    yield from _enqueueing(is_quick)


def _processes(suffix: str, floor: str, what: str, type_name: str, jobs: int) -> Cell:
    bare = partial(bare_drain, f"sqlite-{floor}", type_name, jobs, processes=PROCESSES)
    return Cell(
        f"sqlite-{PROCESSES}-processes{suffix}",
        f"SQLite: {what}, {PROCESSES} worker processes",
        {
            "ours": partial(_after_fill, type_name, jobs, partial(_drain_together, type_name, jobs)),
            "sqlite3 loops": partial(_after_fill, type_name, jobs, bare),
        },
        (Target(LOCKED, at_most=0),),
        row=None if suffix else Row(f"SQLite: drain, {PROCESSES} processes", processes=PROCESSES, idle_limit=WRITER),
    )


def _drain_together(type_name: str, jobs: int) -> Figures:
    marks = burst(type_name, "sqlite", processes=PROCESSES)
    check_ended(marks, jobs)
    return {**figures(marks, jobs), LOCKED: sum(each["locked"] for each in marks)}


def _enqueueing(is_quick: bool) -> Iterator[Cell]:
    times = 300 if is_quick else 2_000
    yield Cell(
        "sqlite-enqueue",
        f"SQLite: {times:,} jobs, each in its own transaction",
        {"ours": partial(_run, times, _enqueue, times), "sqlite3": partial(_run, times, _insert, times)},
    )
    times = 5 if is_quick else 20
    yield Cell(
        "sqlite-enqueue-many",
        f"SQLite: {times} calls of enqueue_many with {IN_ONE_CALL:,} jobs",
        {
            "ours": partial(_run, times * IN_ONE_CALL, _enqueue_many, times),
            "sqlite3 executemany": partial(_run, times * IN_ONE_CALL, _insert_many, times),
        },
    )


def _after_fill(type_name: str, jobs: int, run: Callable[[], Figures]) -> Figures:
    fill(type_name, jobs, "sqlite")
    connections["sqlite"].close()
    return run()


def _run(jobs: int, run: Callable[[int], None], times: int) -> Figures:
    empty("sqlite")
    settle("sqlite")
    run(1)
    return timed_on("sqlite", jobs, "job", partial(run, times))


def _enqueue(times: int) -> None:
    for number in range(times):
        value.enqueue({"i": number}, using="sqlite")


def _enqueue_many(times: int) -> None:
    for _ in range(times):
        chains.enqueue_many([value.item({"i": number}) for number in range(IN_ONE_CALL)], using="sqlite")


def _insert(times: int) -> None:
    connection = connect()
    for _ in range(times):
        connection.execute(INSERT, [new_id().hex] * 2)
    connection.close()


def _insert_many(times: int) -> None:
    connection = connect()
    for _ in range(times):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, [[new_id().hex] * 2 for _ in range(IN_ONE_CALL)])
        connection.execute("COMMIT")
    connection.close()
