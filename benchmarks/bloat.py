"""The cost of claims and the size of the table after many jobs, with autovacuum and pruning.

Compares the storage parameters of the migrations with the server's own ones, and with a run without pruning.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from statistics import median

from django.db import connections

from benchmarks.cells import Cell, Figures, Target
from benchmarks.database import empty, finish, new_jobs, own_database
from django_jobchains.chains.pruning import Rule
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import Store, get_store
from django_jobchains.telemetry import Event, add_sink, remove_sink
from django_jobchains.telemetry.events import ChainsPruned
from django_jobchains.worker.caretakers import Pruner

TYPE = "bench.value"
BATCH = 50
#: The number of jobs that are created, claimed and finished before the next ones are created.
PORTION = 500
#: How long chains are kept, and the interval between rounds of pruning.
KEPT = timedelta(seconds=10)
PRUNE_SECONDS = 1.0
#: The number of portions whose claims are compared, in the table at the end and in an empty table right after it.
COMPARED = 40


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 50_000 if is_quick else 1_000_000
    server = "-c autovacuum_naptime=2s" if is_quick else ""
    run = partial(_run, jobs, server)
    yield Cell(
        "bloat",
        f"{jobs:,} jobs, created, claimed and finished {BATCH} at a time by one process, pruned {KEPT.seconds} s after "
        "their end by one pruner, with autovacuum on",
        {
            "ours": partial(run, is_set=True, prunes=True),
            "server's parameters": partial(run, is_set=False, prunes=True),
            "without pruning": partial(run, is_set=True, prunes=False),
            "without either": partial(run, is_set=False, prunes=False),
        },
        (
            Target("claim: end/empty", at_most=1.2),
            Target("overdue chains", at_most=0),
            Target("pruned/s of pruning time", at_least=5_000),
        ),
        is_extra=True,
        max_rounds=1,
    )


def _run(jobs: int, server: str, *, is_set: bool, prunes: bool) -> Figures:
    with own_database(server) as alias:
        if not is_set:
            _reset(alias)
        store = get_store(alias)
        with _pruning(store) if prunes else _nothing() as pruned:
            began = time.perf_counter()
            for _ in range(jobs // PORTION):
                _portion(store)
            seconds = time.perf_counter() - began
            late = _late(alias) if prunes else 0
        figures: Figures = {"overdue chains": late, "pruned/s of pruning time": pruned.rate} if prunes else {}
        return {"jobs/s": jobs / seconds, **figures, **_sizes(alias), **_claim_times(store)}


def _portion(store: Store) -> float:
    """Run the jobs and return the median of the claims, in µs a job."""
    store.jobs.create(new_jobs(TYPE, PORTION))
    times = []
    for _ in range(PORTION // BATCH):
        began = time.perf_counter()
        claimed = store.jobs.claim("bench", BATCH, {TYPE: 60})
        times.append((time.perf_counter() - began) / len(claimed) * 1e6)
        finish(claimed, store.using)
    return median(times)


def _claim_times(store: Store) -> Figures:
    """Measure claims in this table and in an empty one, in direct succession: the machine's load changes over time."""
    end = median(_portion(store) for _ in range(COMPARED))
    empty(store.using)
    fresh = median(_portion(store) for _ in range(COMPARED))
    return {"claim at the end, µs/job": end, "claim in an empty table": fresh, "claim: end/empty": end / fresh}


def _sizes(alias: str) -> Figures:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT pg_table_size(relid) / 1e6, pg_indexes_size(relid) / 1e6, autovacuum_count, n_live_tup, "
            "n_dead_tup, n_tup_hot_upd / greatest(n_tup_upd, 1)::float "
            "FROM pg_stat_user_tables WHERE relname = %s",
            [Job._meta.db_table],
        )
        values = map(float, cursor.fetchone())
    return dict(zip(("table, MB", "indexes, MB", "vacuums", "live rows", "dead rows", "HOT"), values, strict=True))


def _late(alias: str) -> int:
    """Return the number of chains that should have been pruned several rounds ago."""
    late = KEPT.total_seconds() * 1.1 + 5 * PRUNE_SECONDS
    with connections[alias].cursor() as cursor:
        cursor.execute(
            f"SELECT count(*) FROM {Job._meta.db_table} WHERE finished_at < now() - %s * interval '1 second'", [late]
        )
        count: int = cursor.fetchone()[0]
        return count


def _reset(alias: str) -> None:
    names = "autovacuum_vacuum_scale_factor, autovacuum_analyze_scale_factor, autovacuum_vacuum_cost_limit"
    with connections[alias].cursor() as cursor:
        for model in (Job, JobBlocker, FailedAttempt):
            cursor.execute(f"ALTER TABLE {model._meta.db_table} RESET ({names})")


@dataclass
class _Pruned:
    count: int = 0
    seconds: float = 0.0

    def __call__(self, event: Event) -> None:
        self.count += event.count if isinstance(event, ChainsPruned) else 0

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0


@contextmanager
def _pruning(store: Store) -> Iterator[_Pruned]:
    """Prune on a thread, as a worker does."""
    pruner = Pruner(store, [Rule("completed", KEPT, False, (TYPE,))], worker="bench", seconds=PRUNE_SECONDS)
    over = threading.Event()
    pruned = _Pruned()

    def prune() -> None:
        goes_on = True
        while not over.wait(pruner.rest_seconds if goes_on else PRUNE_SECONDS):
            began = time.perf_counter()
            goes_on = pruner.step()
            pruned.seconds += time.perf_counter() - began
        connections[store.using].close()

    thread = threading.Thread(target=prune, name="pruner")
    add_sink(pruned)
    thread.start()
    try:
        yield pruned
    finally:
        over.set()
        thread.join()
        remove_sink(pruned)


@contextmanager
def _nothing() -> Iterator[_Pruned]:
    yield _Pruned()
