"""Floors: bare statements without a queue.

A drain runs in a separate process (``workers.bare_drain``). Its time starts when it has connected and ends with its
last commit.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import UUID

from benchmarks import sqlite_statements as on_sqlite
from benchmarks.cells import Figures
from benchmarks.database import connect, finish
from benchmarks.project import marks
from benchmarks.project.jobs import STEPS
from benchmarks.server_cost import server_cost
from benchmarks.statements import (
    DEQUEUE_RECORD,
    EFFECT,
    FINISH_MANY,
    FINISH_ONE,
    FINISH_RECORD,
    INSERT_MANY,
    LOCK,
    Claim,
)
from benchmarks.times import timed
from django_jobchains.db.ids import new_id
from django_jobchains.store import get_store

BATCH = 50
#: The largest batch of our worker's claims and ends.
LARGE = 200
#: About the number of jobs that our worker claims at once while handlers take milliseconds.
AHEAD = 100


def timed_on(using: str, jobs: int, unit: str, run: Callable[[], object]) -> Figures:
    """Return the rate, the CPU time of this process and what the server spends, for ``run``."""
    with server_cost(jobs, unit, using) as spent:
        figures = timed(jobs, unit, run)
    return {**figures, **spent}


def drain_in_batches(type_name: str, threads: int, batch: int = BATCH) -> None:
    """Claim a batch and finish it, in one loop."""
    claim = Claim(type_name, batch)
    with connect() as bare:
        marks.started()
        while rows := claim(bare):
            bare.execute(FINISH_MANY, ["1", [row[0] for row in rows]]).fetchall()


def drain_with_store(type_name: str, threads: int, batch: int) -> None:
    """Claim and finish with the package's own store, in one loop without handlers. It fences its writes by leases."""
    store = get_store()
    marks.started()
    while jobs := store.jobs.claim("loop", batch, {type_name: 60.0}):
        finish(jobs)


def drain_with_effects(type_name: str, threads: int, write: Callable[[Any, UUID], None]) -> None:
    """Share claims of 100 between threads, and write the effect and the end of each job in a separate transaction."""
    claim = Claim(type_name, AHEAD)
    claimed: deque[UUID] = deque()
    claiming = threading.Lock()

    def take(bare: Any) -> UUID | None:
        with claiming:
            if not claimed:
                claimed.extend(row[0] for row in claim(bare))
            return claimed.popleft() if claimed else None

    def work(bare: Any) -> None:
        while job_id := take(bare):
            write(bare, job_id)

    _in_threads(threads, work)


def _in_threads(threads: int, work: Callable[[Any], None]) -> None:
    """Run ``work`` in several threads, each with its own connection."""
    with ExitStack() as stack:
        workers = [threading.Thread(target=work, args=[stack.enter_context(connect())]) for _ in range(threads)]
        marks.started()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def _write(bare: Any, job_id: UUID) -> None:
    """Write the effect and the end of a job in five round trips."""
    with bare.transaction():
        bare.execute(LOCK, [job_id]).fetchone()
        bare.execute(EFFECT, [job_id, 1])
        bare.execute(FINISH_ONE, ["1", job_id]).fetchone()


def _write_pipelined(bare: Any, job_id: UUID) -> None:
    """Use three round trips: the lock and the result of the handler's statement arrive before the rest is sent."""
    with bare.pipeline() as pipeline:
        bare.execute("BEGIN")
        bare.execute(LOCK, [job_id]).fetchone()
        bare.execute(EFFECT, [job_id, 1])
        pipeline.sync()
        bare.execute(FINISH_ONE, ["1", job_id])
        bare.execute("COMMIT")


def drain_records(type_name: str, threads: int) -> None:
    """Dequeue records one by one and complete each, in several threads with a connection each."""

    def work(bare: Any) -> None:
        while row := bare.execute(DEQUEUE_RECORD).fetchone():
            bare.execute(FINISH_RECORD, row).fetchone()

    _in_threads(threads, work)


def drain_chains(type_name: str, threads: int) -> None:
    """Claim 50, then finish them and insert their next steps in one transaction, in one loop."""
    claim = Claim(type_name, BATCH)
    with connect() as bare:
        marks.started()
        while rows := claim(bare):
            with bare.transaction():
                bare.execute(FINISH_MANY, ["1", [row[0] for row in rows]]).fetchall()
                _insert_next(bare, [(row[1], row[2] + 1) for row in rows if row[2] + 1 < STEPS], type_name)


def _insert_next(bare: Any, steps: list[tuple[UUID, int]], type_name: str) -> None:
    if steps:
        ids = [new_id() for _ in steps]
        names = [type_name] * len(steps)
        inputs = [f'{{"i": {index + 1}}}' for _, index in steps]
        params = [ids, [chain_id for chain_id, _ in steps], [index for _, index in steps], names, inputs]
        bare.execute(INSERT_MANY, params).fetchall()


def drain_sqlite(type_name: str, threads: int) -> None:
    """Claim 50 and finish 50, in one loop."""
    with closing(on_sqlite.connect()) as bare:
        marks.started()
        while rows := bare.execute(on_sqlite.CLAIM, [type_name, BATCH]).fetchall():
            bare.execute("BEGIN IMMEDIATE")
            bare.executemany(on_sqlite.FINISH, [row[:1] for row in rows])
            bare.execute("COMMIT")


def drain_sqlite_with_effects(type_name: str, threads: int) -> None:
    """Claim 100 and write the effect and the end of each in a separate transaction, in one loop."""
    with closing(on_sqlite.connect()) as bare:
        marks.started()
        while rows := bare.execute(on_sqlite.CLAIM, [type_name, AHEAD]).fetchall():
            for job_id, *_ in rows:
                bare.execute("BEGIN IMMEDIATE")
                bare.execute(on_sqlite.EFFECT, [job_id])
                bare.execute(on_sqlite.FINISH, [job_id])
                bare.execute("COMMIT")


#: The drains by name.
DRAINS: dict[str, Callable[[str, int], None]] = {
    "batches": drain_in_batches,
    f"batches-{LARGE}": partial(drain_in_batches, batch=LARGE),
    f"store-{BATCH}": partial(drain_with_store, batch=BATCH),
    f"store-{LARGE}": partial(drain_with_store, batch=LARGE),
    "records": drain_records,
    "effects": partial(drain_with_effects, write=_write),
    "pipelined-effects": partial(drain_with_effects, write=_write_pipelined),
    "chains": drain_chains,
    "sqlite-batches": drain_sqlite,
    "sqlite-effects": drain_sqlite_with_effects,
}


def drain(kind: str, type_name: str, threads: int) -> None:
    """Run a drain in this process, which is measured. ``kind`` is one of ``DRAINS``."""
    DRAINS[kind](type_name, threads)
    marks.drained()
