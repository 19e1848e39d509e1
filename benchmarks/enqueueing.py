"""The cost of enqueueing one job in each transaction, and a thousand jobs in each call."""

from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import connection

from benchmarks.bare import timed_on
from benchmarks.cells import Cell, Figures, Row, Target
from benchmarks.database import connect, empty, settle
from benchmarks.project.jobs import value
from benchmarks.statements import COLUMNS, INSERT_MANY, INSERT_ONE, JOB
from django_jobchains import chains
from django_jobchains.db.ids import new_id

IN_ONE_CALL = 1_000
JOBS = "jobs"
INPUT = '{"i": 1}'
NAME = value.name


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 500 if is_quick else 3_000
    yield Cell(
        "enqueue",
        f"{jobs:,} jobs, each in its own transaction, one client",
        {
            name: partial(_run, jobs, run, jobs)
            for name, run in (("ours", _ours), ("Django cursor", _django), ("psycopg", _psycopg))
        },
        (Target("jobs/s", at_least=0.9, of_floor="Django cursor"),),
        row=Row("enqueue one job in each transaction"),
    )
    yield Cell(
        "enqueue-task",
        f"{jobs:,} tasks of Django's framework, each in its own transaction, one client",
        {name: partial(_run, jobs, run, jobs) for name, run in (("ours", _tasks), (JOBS, _ours))},
        (Target("jobs/s", at_least=0.91, of_floor=JOBS), Target("CPU µs/job", at_most=1.1, of_floor=JOBS)),
        prepare=lambda: setattr(settings, "TASKS", settings.BACKENDS),
        row=Row("enqueue a task of Django's framework"),
    )
    calls = 5 if is_quick else 20
    yield Cell(
        "enqueue-many",
        f"{calls} calls of enqueue_many with {IN_ONE_CALL:,} jobs, one client",
        {
            name: partial(_run, calls * IN_ONE_CALL, run, calls)
            for name, run in (("ours", _ours_many), ("psycopg unnest", _unnest), ("psycopg COPY", _copy))
        },
        (
            Target("jobs/s", at_least=0.95, of_floor="psycopg unnest"),
            Target("jobs/s", at_least=1, of_floor="pgqueuer"),
        ),
        row=Row(f"enqueue_many with {IN_ONE_CALL:,} jobs"),
    )


def _run(jobs: int, run: Callable[[int], None], times: int) -> Figures:
    empty()
    settle()
    run(1)  # connects and prepares
    return timed_on("default", jobs, "job", partial(run, times))


def _ours(times: int) -> None:
    for number in range(times):
        value.enqueue({"i": number})


def _tasks(times: int) -> None:
    from benchmarks.project import tasks

    for number in range(times):
        tasks.value.enqueue(number)


def _django(times: int) -> None:
    for _ in range(times):
        with connection.cursor() as cursor:
            cursor.execute(INSERT_ONE, _one())
            cursor.fetchone()


def _psycopg(times: int) -> None:
    with connect() as bare:
        for _ in range(times):
            bare.execute(INSERT_ONE, _one()).fetchone()


def _one() -> list[UUID | str | int]:
    id_ = new_id()
    return [id_, id_, 0, NAME, NAME, INPUT]


def _ours_many(times: int) -> None:
    for _ in range(times):
        chains.enqueue_many([value.item({"i": number}) for number in range(IN_ONE_CALL)])


def _unnest(times: int) -> None:
    with connect() as bare:
        for _ in range(times):
            ids = [new_id() for _ in range(IN_ONE_CALL)]
            params = [ids, ids, [0] * IN_ONE_CALL, [NAME] * IN_ONE_CALL, [INPUT] * IN_ONE_CALL]
            bare.execute(INSERT_MANY, params).fetchall()


def _copy(times: int) -> None:
    with connect() as bare:
        for _ in range(times):
            with bare.cursor() as cursor, cursor.copy(f"COPY {JOB} ({COLUMNS}) FROM STDIN") as copy:
                for _ in range(IN_ONE_CALL):
                    id_ = new_id()
                    row = (id_, id_, 0, NAME, NAME, "default", 0, "pending", "now", 0, 0, 0, INPUT, "now")
                    copy.write_row(row)
