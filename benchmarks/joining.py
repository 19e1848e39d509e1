"""Fan-in: one job that waits for many chains, and many jobs that wait for a few chains each."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

from django.db import transaction

from benchmarks.bare import BATCH, timed_on
from benchmarks.cells import Cell, Figures, Target
from benchmarks.crowd import idle_workers
from benchmarks.database import connect, empty, settle
from benchmarks.project.jobs import join, value
from benchmarks.statements import (
    CLOSE_LINKS,
    FINISH_MANY,
    FREE,
    INSERT_BLOCKED,
    INSERT_LINKS,
    INSERT_MANY,
    LOCK_WAITING,
    Claim,
)
from benchmarks.times import milliseconds_until_marked
from benchmarks.workers import SLOTS, worker_command
from django_jobchains import chains
from django_jobchains.db.ids import new_id

WIDTH = 1_000
JOINS = 1_000
BLOCKERS_OF_EACH = 3


def cells(*, is_quick: bool) -> Iterator[Cell]:
    samples = 2 if is_quick else 7
    yield Cell(
        "fan-in",
        f"from the commit of {WIDTH:,} chains to the start of the job that waits for them, {samples} samples",
        {"ours": partial(_ours, samples), "psycopg loop": partial(_bare, samples)},
    )
    times = 1 if is_quick else 5
    jobs = times * JOINS * (BLOCKERS_OF_EACH + 1)
    yield Cell(
        "blockers",
        f"transactions that enqueue {JOINS:,} chains and the {BLOCKERS_OF_EACH} chains that each of them waits for",
        {
            name: partial(_enqueue, jobs, run, times)
            for name, run in (("ours", _our_blockers), ("psycopg unnest", _bare_blockers))
        },
        (Target("jobs/s", at_least=5_000),),
    )


# A job that waits for many chains


def _ours(samples: int) -> Figures:
    _clear()
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        with idle_workers(worker_command([value.name, join.name], "default", SLOTS), times):
            _warm_up(times)
            return {"p50 ms": median(milliseconds_until_marked(_enqueue_fan_in, times) for _ in range(samples))}


def _warm_up(times: Path) -> None:
    """Wait until the worker has started, which the first sample would otherwise measure."""
    milliseconds_until_marked(_enqueue_fan_in, times)


def _enqueue_fan_in() -> float:
    committed = []
    with transaction.atomic():
        transaction.on_commit(lambda: committed.append(time.time()))
        blockers = chains.enqueue_many([value.item({"i": number}) for number in range(WIDTH)])
        join.enqueue(None, blockers=blockers)
    return committed[0]


def _bare(samples: int) -> Figures:
    _clear()
    with connect() as bare:
        claims = Claim(value.name, BATCH), Claim(join.name, 1)
        return {"p50 ms": median([_bare_fan_in(bare, *claims) for _ in range(samples + 1)][1:])}


def _bare_fan_in(bare: Any, claim: Claim, claim_join: Claim) -> float:
    blockers, dependent = _ids(WIDTH), new_id()
    with bare.transaction():
        _insert(bare, INSERT_MANY, value.name, blockers)
        _insert(bare, INSERT_BLOCKED, join.name, [dependent])
        bare.execute(INSERT_LINKS, [[dependent] * WIDTH, list(range(WIDTH)), blockers])
    committed = time.time()
    while rows := claim(bare):
        ended = [row[0] for row in rows]
        with bare.transaction():
            bare.execute(FINISH_MANY, ["1", ended]).fetchall()
            waiting = [job_id for (job_id,) in bare.execute(LOCK_WAITING, [ended])]
            bare.execute(CLOSE_LINKS, [ended])
            bare.execute(FREE, [waiting])
    ((id_, *_),) = claim_join(bare)
    started = time.time()
    bare.execute(FINISH_MANY, ["1", [id_]]).fetchall()
    return (started - committed) * 1000


# Many jobs that wait for a few chains each


def _enqueue(jobs: int, run: Callable[[int], None], times: int) -> Figures:
    _clear()
    run(1)  # connects and prepares
    return timed_on("default", jobs, "job", partial(run, times))


def _our_blockers(times: int) -> None:
    for _ in range(times):
        with transaction.atomic():
            blockers = chains.enqueue_many([value.item({"i": n}) for n in range(JOINS * BLOCKERS_OF_EACH)])
            chains.enqueue_many([join.item(None, blockers=own) for own in _shares(blockers)])


def _bare_blockers(times: int) -> None:
    with connect() as bare:
        for _ in range(times):
            blockers, dependents = _ids(JOINS * BLOCKERS_OF_EACH), _ids(JOINS)
            job_ids = [id_ for id_ in dependents for _ in range(BLOCKERS_OF_EACH)]
            with bare.transaction():
                _insert(bare, INSERT_MANY, value.name, blockers)
                _insert(bare, INSERT_BLOCKED, join.name, dependents)
                bare.execute(INSERT_LINKS, [job_ids, list(range(BLOCKERS_OF_EACH)) * JOINS, blockers])


def _shares(blockers: Sequence[Any]) -> list[Sequence[Any]]:
    return [blockers[start : start + BLOCKERS_OF_EACH] for start in range(0, len(blockers), BLOCKERS_OF_EACH)]


def _insert(bare: Any, statement: str, name: str, ids: list[UUID]) -> None:
    count = len(ids)
    bare.execute(statement, [ids, ids, [0] * count, [name] * count, ['{"i": 1}'] * count]).fetchall()


def _ids(count: int) -> list[UUID]:
    return [new_id() for _ in range(count)]


def _clear() -> None:
    empty()
    settle()
