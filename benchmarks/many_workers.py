"""``python -m benchmarks.many_workers [N …]``: what grows with the number of workers, and what does not.

Processes with ten slots each run on a new server: 2 and 20, or the numbers of the command line. Up to 200 workers are
simulated: each has its row and ten running jobs, and they send claims and heartbeats in turn. The
times of statements are the server's, so that they depend little on what else runs on the machine; rates do.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import django

from benchmarks.own_server import own_server

SLOTS = 10
TYPE = "bench.value"
#: Parts of the texts of statements.
CLAIM, HEARTBEAT = "run_at, id LIMIT%SKIP LOCKED", "workerpresence"
SIMULATED = (1, 10, 20, 50, 100, 200)
SERVER = (
    "-c max_connections=400 -c shared_preload_libraries=pg_stat_statements -c pg_stat_statements.track_utility=on "
    "-c pg_stat_statements.max=10000"
)
#: Longer than the interval of heartbeats and of the reaper.
IDLE_SECONDS = 40
SINGLE_JOBS = 40
DRAINED_JOBS = 100_000
#: How often each statement of a simulated worker is sent, in all workers together.
REPEATS = 400
WARM_UP = 6
#: The sessions of all simulated workers: the cost of many sessions is not that of the statements.
SESSIONS = 1


def main(numbers: list[int]) -> None:
    with own_server(SERVER) as url:
        os.environ["BENCH_DATABASE_URL"] = url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")
        django.setup()
        from benchmarks.database import connect, postgresql

        with postgresql(allow_unsafe=True), connect() as bare:
            bare.execute("CREATE EXTENSION pg_stat_statements")
            bare.execute("SET pg_stat_statements.track = 'none'")
            for number in numbers:
                report("processes", number, processes(bare, number))
            for number in SIMULATED:
                report("simulated", number, simulated(bare, number))


def report(kind: str, number: int, figures: dict[str, float]) -> None:
    rounded = {name: float(f"{value:.3g}") for name, value in figures.items()}
    sys.stdout.write(f"{number} {kind}, load {os.getloadavg()[0]:.1f}: {json.dumps(rounded)}\n")
    sys.stdout.flush()


def processes(bare: Any, number: int) -> dict[str, float]:
    """Measure real worker processes: idle, with single jobs, and with a backlog."""
    from benchmarks.crowd import crowd
    from benchmarks.database import empty
    from benchmarks.project.jobs import value
    from benchmarks.workers import worker_command
    from django_jobchains import chains
    from django_jobchains.models import Job, WorkerPresence

    def wait(seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while Job.objects.incomplete().exists():
            if time.monotonic() > deadline:
                raise TimeoutError("There are still incomplete jobs.")
            time.sleep(0.01)

    empty()
    WorkerPresence.objects.all().delete()
    with crowd(worker_command([TYPE], "default", SLOTS), number, WorkerPresence.objects.count, {}):
        time.sleep(IDLE_SECONDS / 4)
        figures = {
            "connections": count(bare, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        }
        with counted(bare) as statements:
            time.sleep(IDLE_SECONDS)
        figures["idle statements/s"] = statements() / IDLE_SECONDS
        for name, jobs, enqueue in (
            ("single", SINGLE_JOBS, partial(one_by_one, wait)),
            ("backlog", DRAINED_JOBS, chains.enqueue_many),
        ):
            items = [value.item({"i": index}) for index in range(jobs)]
            with counted(bare, CLAIM) as claims:
                began = time.monotonic()
                enqueue(items)
                wait()
                seconds = time.monotonic() - began
            figures[f"claims/job, {name}"] = claims() / jobs
            if name == "backlog":
                figures["jobs/s"] = jobs / seconds
    return figures


def one_by_one(wait: Callable[[], None], items: list[Any]) -> None:
    from django_jobchains import chains

    for item in items:
        chains.enqueue_many([item])
        wait()


def simulated(bare: Any, number: int) -> dict[str, float]:
    """Measure the statements of this many workers, each with a row and ten running jobs, over a few sessions."""
    from django.db import connections

    from benchmarks.database import fill
    from django_jobchains.models import WorkerPresence
    from django_jobchains.store import get_store
    from django_jobchains.store.workers import Beat

    WorkerPresence.objects.all().delete()
    fill(TYPE, number * (SLOTS + WARM_UP) + REPEATS * SLOTS)
    aliases = [f"session_{index}" for index in range(min(number, SESSIONS))]
    for alias in aliases:
        connections.databases[alias] = connections.databases["default"]
    try:
        stores = [get_store(aliases[index % len(aliases)]) for index in range(number)]
        beats = [
            Beat(f"worker-{index}", "host", 1, "1", SLOTS, 0, SLOTS, None, (TYPE,), False, 1.0, 10.0)
            for index in range(number)
        ]
        for store, beat in zip(stores, beats, strict=True):
            store.jobs.claim(beat.id, SLOTS, {TYPE: 60})
            store.workers.beat(beat)
        bare.execute("ANALYZE")
        # A new session plans a statement five times, and then keeps the plan.
        for store, beat in [*zip(stores, beats, strict=True)][:SESSIONS] * WARM_UP:
            store.jobs.claim(beat.id, 1, {TYPE: 60})
            store.workers.beat(beat)
            store.workers.present()
        claimed = 0
        with timed(bare, CLAIM) as claims, timed(bare, HEARTBEAT) as heartbeats:
            for turn in range(REPEATS):
                store, beat = stores[turn % number], beats[turn % number]
                claimed += len(store.jobs.claim(beat.id, SLOTS, {TYPE: 60}))
                store.workers.beat(beat)
                store.workers.present()
        return {
            "ms/claim of ten jobs": claims(),
            "jobs/claim": claimed / REPEATS,
            "ms/heartbeat": heartbeats() * 2,  # one statement writes the row, and one reads all rows
        }
    finally:
        for alias in aliases:
            connections[alias].close()
            del connections[alias], connections.databases[alias]


def count(bare: Any, sql: str) -> int:
    return int(bare.execute(sql).fetchone()[0] or 0)


@contextmanager
def counted(bare: Any, text: str = "") -> Iterator[Callable[[], int]]:
    """Count the statements that contain a text and are executed in the block."""
    sql = f"SELECT sum(calls)::bigint FROM pg_stat_statements WHERE query LIKE '%{text}%'"
    before = count(bare, sql)
    after: list[int] = []
    yield lambda: after[0] - before
    after.append(count(bare, sql))


@contextmanager
def timed(bare: Any, text: str) -> Iterator[Callable[[], float]]:
    """Measure the milliseconds that a statement with this text takes in the block, as the mean of all of them."""
    sql = f"SELECT sum(calls), sum(total_exec_time) FROM pg_stat_statements WHERE query LIKE '%{text}%'"
    calls, time_before = bare.execute(sql).fetchone()
    after: list[Any] = []
    yield lambda: float(after[1] - (time_before or 0)) / float(after[0] - (calls or 0))
    after.extend(bare.execute(sql).fetchone())


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]] or [2, 20])
