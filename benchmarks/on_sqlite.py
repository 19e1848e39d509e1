"""The same on SQLite: a file on a real disk."""

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial

from django.db import connections

from benchmarks.bare import BATCH, timed
from benchmarks.cells import Cell, Figures, Target
from benchmarks.database import empty, fill, settle
from benchmarks.project.jobs import value
from benchmarks.project.settings import DATABASES
from benchmarks.statements import COLUMNS, JOB
from benchmarks.workers import drain
from django_jobchains import chains
from django_jobchains.ids import new_id

IN_ONE_CALL = 1_000
NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
CLAIM = (
    f"UPDATE {JOB} SET status = 'running', attempt = attempt + 1, lease_number = lease_number + 1, "
    f"leased_by = 'bench', leased_until = strftime('%Y-%m-%d %H:%M:%f000', 'now', '60 seconds'), "
    f"last_attempt_at = {NOW} WHERE id IN (SELECT id FROM {JOB} WHERE status = 'pending' AND queue = 'default' "
    f"AND type_name = ? AND priority * -1 = 0 AND run_at <= {NOW} ORDER BY run_at, id LIMIT {BATCH}) "
    "RETURNING id, chain_id, input"
)
FINISH = (
    f"UPDATE {JOB} SET status = 'completed', output = '1', finished_at = {NOW}, completed_by = leased_by, "
    "leased_by = NULL, leased_until = NULL, last_error = NULL "
    "WHERE id = ? AND lease_number = 1 AND status || '' = 'running'"
)
INSERT = (
    f"INSERT INTO {JOB} ({COLUMNS}) VALUES (?, ?, 0, 'bench.value', 'bench.value', 'default', 0, 'pending', {NOW}, "
    f"""0, 0, 0, '{{"i": 1}}', {NOW})"""
)


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 2_000 if is_quick else 10_000
    yield Cell(
        "sqlite-drain",
        f"SQLite: {jobs:,} jobs that return a value, one worker process",
        {
            "ours": partial(_after_fill, jobs, partial(drain, "bench.value", jobs, "sqlite")),
            "sqlite3 loop": partial(_after_fill, jobs, partial(_drain, jobs)),
        },
        (Target("jobs/s", at_least=1_500),),
    )
    times = 300 if is_quick else 2_000
    yield Cell(
        "sqlite-enqueue",
        f"SQLite: {times:,} jobs, each in a transaction of its own",
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


def _after_fill(jobs: int, run: Callable[[], Figures]) -> Figures:
    fill("bench.value", jobs, "sqlite")
    connections["sqlite"].close()
    return run()


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASES["sqlite"]["NAME"], isolation_level=None, timeout=20)
    connection.executescript(DATABASES["sqlite"]["OPTIONS"]["init_command"])
    return connection


def _drain(jobs: int) -> Figures:
    connection = _connect()

    def run() -> None:
        while rows := connection.execute(CLAIM, ["bench.value"]).fetchall():
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(FINISH, [row[:1] for row in rows])
            connection.execute("COMMIT")

    figures = timed(jobs, "job", run)
    connection.close()
    return figures


def _run(jobs: int, run: Callable[[int], None], times: int) -> Figures:
    empty("sqlite")
    settle("sqlite")
    run(1)
    return timed(jobs, "job", partial(run, times))


def _enqueue(times: int) -> None:
    for number in range(times):
        value.enqueue({"i": number}, using="sqlite")


def _enqueue_many(times: int) -> None:
    for _ in range(times):
        chains.enqueue_many([value.item({"i": number}) for number in range(IN_ONE_CALL)], using="sqlite")


def _insert(times: int) -> None:
    connection = _connect()
    for _ in range(times):
        connection.execute(INSERT, [new_id().hex] * 2)
    connection.close()


def _insert_many(times: int) -> None:
    connection = _connect()
    for _ in range(times):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, [[new_id().hex] * 2 for _ in range(IN_ONE_CALL)])
        connection.execute("COMMIT")
    connection.close()
