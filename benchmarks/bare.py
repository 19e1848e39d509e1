"""Floors: bare statements, no queue around them.

A drain runs in a process of its own (``workers.bare_drain``). It connects first; its time goes from there to its last
commit.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import UUID

from benchmarks import sqlite_statements as on_sqlite
from benchmarks.cells import Figures
from benchmarks.database import connect
from benchmarks.project import marks
from benchmarks.project.jobs import STEPS
from benchmarks.statements import EFFECT, FINISH_MANY, FINISH_ONE, INSERT_MANY, LOCK, Claim
from django_jobchains.ids import new_id

BATCH = 50
#: A worker of ours claims about so many at once while handlers take milliseconds.
AHEAD = 100


def timed(jobs: int, unit: str, run: Callable[[], object]) -> Figures:
    """Of this process."""
    started, cpu = time.perf_counter(), time.process_time()
    run()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    return {f"{unit}s/s": jobs / seconds, f"CPU µs/{unit}": cpu_seconds / jobs * 1e6}


def drain_in_batches(type_name: str, threads: int) -> None:
    """One loop: claim 50, finish 50."""
    claim = Claim(type_name, BATCH)
    with connect() as bare:
        marks.started()
        while rows := claim(bare):
            bare.execute(FINISH_MANY, ["1", [row[0] for row in rows]]).fetchall()


def drain_with_effects(type_name: str, threads: int, write: Callable[[Any, UUID], None]) -> None:
    """Threads that share claims of 100, and write an effect and the end of each job in a transaction of its own."""
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

    with ExitStack() as stack:
        workers = [threading.Thread(target=work, args=[stack.enter_context(connect())]) for _ in range(threads)]
        marks.started()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def _write(bare: Any, job_id: UUID) -> None:
    """Five round trips."""
    with bare.transaction():
        bare.execute(LOCK, [job_id]).fetchone()
        bare.execute(EFFECT, [job_id, 1])
        bare.execute(FINISH_ONE, ["1", job_id]).fetchone()


def _write_pipelined(bare: Any, job_id: UUID) -> None:
    """Three: what the handler does has the lock, and its own result, before anything else is sent."""
    with bare.pipeline() as pipeline:
        bare.execute("BEGIN")
        bare.execute(LOCK, [job_id]).fetchone()
        bare.execute(EFFECT, [job_id, 1])
        pipeline.sync()
        bare.execute(FINISH_ONE, ["1", job_id])
        bare.execute("COMMIT")


def drain_chains(type_name: str, threads: int) -> None:
    """One loop: claim 50; finish them and insert their next steps in one transaction."""
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
    """One loop: claim 50, finish 50."""
    with closing(on_sqlite.connect()) as bare:
        marks.started()
        while rows := bare.execute(on_sqlite.CLAIM, [type_name, BATCH]).fetchall():
            bare.execute("BEGIN IMMEDIATE")
            bare.executemany(on_sqlite.FINISH, [row[:1] for row in rows])
            bare.execute("COMMIT")


def drain_sqlite_with_effects(type_name: str, threads: int) -> None:
    """One loop: claim 100, write an effect and the end of each in a transaction of its own."""
    with closing(on_sqlite.connect()) as bare:
        marks.started()
        while rows := bare.execute(on_sqlite.CLAIM, [type_name, AHEAD]).fetchall():
            for job_id, *_ in rows:
                bare.execute("BEGIN IMMEDIATE")
                bare.execute(on_sqlite.EFFECT, [job_id])
                bare.execute(on_sqlite.FINISH, [job_id])
                bare.execute("COMMIT")


#: By the name that ``run_bare_drain`` takes.
DRAINS: dict[str, Callable[[str, int], None]] = {
    "batches": drain_in_batches,
    "effects": partial(drain_with_effects, write=_write),
    "pipelined-effects": partial(drain_with_effects, write=_write_pipelined),
    "chains": drain_chains,
    "sqlite-batches": drain_sqlite,
    "sqlite-effects": drain_sqlite_with_effects,
}
