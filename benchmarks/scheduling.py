"""Schedules: how long after their ticks chains are committed, and what schedules that are not due cost a drain."""

import time
from collections.abc import Iterator, Sequence
from functools import partial

from django.db import connection

from benchmarks.cells import Cell, Figures, Target
from benchmarks.crowd import crowd
from benchmarks.database import empty, fill, settle
from benchmarks.machine import cpu_seconds
from benchmarks.seen import percentiles
from benchmarks.server_cost import server_cost
from benchmarks.workers import LONGEST_SECONDS, MANAGE, SLOTS, WorkerFailed, drain, worker_command
from django_jobchains.models import Job, WorkerPresence
from django_jobchains.notifications import EVERY, job_scheduled, publish_after_commit

TYPE = "bench.value"
MAINTENANCE = (*MANAGE, "run_jobworker", "--maintenance-only")
WITHOUT = "without schedules"
#: The time from the creation of the schedules until their first tick.
AHEAD_SECONDS = 3.0
#: How often the committed chains are counted, which is what the delays are too long by.
COUNT_SECONDS = 0.02
#: Half of the schedules have an interval, and the others one of 120 cron expressions.
INSERT = """
    INSERT INTO django_jobchains_schedule (name, type_name, input, cron, every_seconds, timezone, overlap, on_missed,
        max_catch_up, source, created_at, anchor_at, next_tick_at)
    SELECT 'schedule ' || n, %s, jsonb_build_object('i', n),
        CASE n %% 2 WHEN 0 THEN n %% 60 || ' ' || n %% 24 || ' * * *' END, CASE n %% 2 WHEN 1 THEN 3600 END, 'UTC',
        'allow', 'run_once', 1, 'admin', now(), tick.at - interval '1 hour', tick.at
    FROM generate_series(0, %s - 1) AS n CROSS JOIN LATERAL (SELECT to_timestamp(%s + n * %s::float)) AS tick(at)
"""


def cells(*, is_quick: bool) -> Iterator[Cell]:
    count, seconds = (500, 2) if is_quick else (10_000, 20)
    for name, when, spread in (
        ("at-once", "all due at the same time", 0),
        ("spread", f"due over {seconds} s", seconds),
    ):
        yield Cell(
            f"schedules-{name}",
            f"from the ticks of {count:,} schedules, {when}, to the commits of their chains, one idle worker",
            {"ours": partial(_ticks, worker_command([TYPE], "default", SLOTS), count, spread)},
            (Target("p99 ms", at_most=1_000),),
            ways={"a worker for maintenance only": partial(_ticks, MAINTENANCE, count, spread)},
        )
    jobs = 2_000 if is_quick else 20_000
    yield Cell(
        "schedules-not-due",
        f"drain of jobs that return a value, {SLOTS} slots, with {count:,} schedules that are due tomorrow",
        {"ours": partial(_drain, jobs, count), WITHOUT: partial(_drain, jobs, 0)},
        (Target("CPU µs/job", at_most=1.1, of_floor=WITHOUT),),
    )


def _ticks(command: Sequence[str], count: int, spread: float) -> Figures:
    empty()
    settle()
    with crowd(command, 1, WorkerPresence.objects.count, {}) as (process,), server_cost(count, "tick") as cost:
        before = cpu_seconds(process) or 0.0
        first, gap = time.time() + AHEAD_SECONDS, spread / count
        _add_schedules(count, first, gap)
        publish_after_commit("default", [job_scheduled(EVERY)])
        delays = _delays(count, first, gap)
        spent = (cpu_seconds(process) or 0.0) - before
    return {**percentiles(delays), "CPU µs/tick": spent / count * 1e6, **cost}


def _add_schedules(count: int, first: float, gap: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [TYPE, count, first, gap])
        cursor.execute("ANALYZE django_jobchains_schedule")


def _delays(count: int, first: float, gap: float) -> list[float]:
    """Return the milliseconds from each tick until its chain was seen. Chains are committed in the ticks' order."""
    delays: list[float] = []
    while len(delays) < count:
        if time.time() > first + count * gap + LONGEST_SECONDS:
            raise WorkerFailed(f"Only {len(delays):,} of {count:,} schedules have fired.")
        time.sleep(COUNT_SECONDS)
        committed = Job.objects.count()
        now = time.time()
        delays += [(now - first - number * gap) * 1_000 for number in range(len(delays), committed)]
    return delays


def _drain(jobs: int, schedules: int) -> Figures:
    fill(TYPE, jobs)
    _add_schedules(schedules, time.time() + 86_400, 0)
    return drain(TYPE, jobs)
