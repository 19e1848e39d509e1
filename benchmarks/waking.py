"""Latency with an idle worker: from the commit of an enqueue to the first line of the (last) handler."""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from django.db import transaction

from benchmarks.bare_signals import SENDERS
from benchmarks.cells import Cell, Figures, Row, Target
from benchmarks.crowd import idle_workers
from benchmarks.database import connect, empty, settle
from benchmarks.machine import cpu_seconds
from benchmarks.project.jobs import STEPS
from benchmarks.seen import JITTER_SECONDS, percentiles
from benchmarks.server_cost import server_cost
from benchmarks.statements import INSERT_ONE
from benchmarks.times import WARM_UP, sampled
from benchmarks.workers import SLOTS, bare_worker_command, worker_command
from django_jobchains import chains
from django_jobchains.db.ids import new_id

BARE = "bare LISTEN"

#: Enqueues one job and returns the time immediately after its commit.
Enqueue = Callable[[], float]


def cells(*, is_quick: bool) -> Iterator[Cell]:
    samples = 40 if is_quick else 120
    yield Cell(
        "wake-up",
        f"from the commit of the enqueue to the first line of the handler, idle worker process, {samples} samples",
        {name: partial(run, "bench.wake", samples) for name, run in (("ours", _ours), (BARE, _bare))},
        (Target("p50 ms", at_most=1.8, of_floor=BARE), Target("p95 ms", at_most=1.8, of_floor=BARE)),
        max_rounds=2,
        row=Row("wake-up of an idle worker, p50", "p50 ms", idle_limit="round trips"),
    )
    yield Cell(
        "chain-latency",
        f"from the commit of the enqueue to the first line of the handler of step {STEPS}, {samples} samples",
        {name: partial(run, "bench.timed_step", samples) for name, run in (("ours", _ours), (BARE, _bare))},
        (Target("p50 ms", at_most=1.4, of_floor=BARE),),
        max_rounds=2,
        row=Row(f"{STEPS} steps end to end, p50", "p50 ms", idle_limit="round trips"),
    )


def _ours(type_name: str, samples: int) -> Figures:
    return _measure(worker_command([type_name], "default", SLOTS), partial(enqueue, type_name), samples)


def _bare(type_name: str, samples: int) -> Figures:
    with connect() as bare, SENDERS["listen"](bare) as send:
        return _measure(bare_worker_command(type_name), partial(bare_enqueue, bare, send, type_name), samples)


def enqueue(type_name: str, using: str = "default") -> float:
    times = []
    with transaction.atomic(using):
        transaction.on_commit(lambda: times.append(time.time()), using)  # runs before the wake-up is sent
        chains.enqueue(type_name, {"i": 1}, using=using)
    return times[0]


def bare_enqueue(bare: "psycopg.Connection[Any]", send: Callable[[], object], type_name: str) -> float:
    id_ = new_id()
    bare.execute(INSERT_ONE, [id_, id_, 0, type_name, type_name, '{"i": 1}']).fetchone()
    committed = time.time()
    send()
    return committed


def _measure(worker: list[str], enqueue: Enqueue, samples: int) -> Figures:
    empty()
    settle()
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        with idle_workers(worker, times) as (process,):
            sampled(enqueue, times, WARM_UP, JITTER_SECONDS)
            with server_cost(samples) as cost:
                before = cpu_seconds(process) or 0.0
                milliseconds = sampled(enqueue, times, samples, JITTER_SECONDS)
                spent = (cpu_seconds(process) or 0.0) - before
    return {**percentiles(milliseconds), "CPU µs/job": spent / samples * 1e6, **cost}
