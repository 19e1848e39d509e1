"""Limits across all workers: what they cost a drain, how many places are used, and how soon a free one is taken."""

import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.cells import Cell, Figures, Target
from benchmarks.crowd import idle_workers
from benchmarks.database import checkpoint, empty, fill, settle, vacuum
from benchmarks.project.jobs import BUSY_SECONDS, LIMIT
from benchmarks.seen import JITTER_SECONDS, percentiles
from benchmarks.times import WARM_UP, sampled
from benchmarks.waking import enqueue
from benchmarks.workers import LONGEST_SECONDS, SLOTS, WorkerFailed, drain, worker_command
from django_jobchains import chains
from django_jobchains.processors import get_registry

UNLIMITED = "without a limit"
KEYS = 20


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 1_000 if is_quick else 10_000
    for name, type_name, what in (
        ("keys", "bench.limited_keys", f"{KEYS} keys with free places"),
        ("saturated", "bench.limited", f"one limit of {LIMIT}, which is always reached"),
    ):
        yield Cell(
            f"limits-drain-{name}",
            f"drain of jobs that return a value, {SLOTS} slots, {what}",
            {"ours": partial(_drain, type_name, jobs), UNLIMITED: partial(_unlimited, jobs)},
            (Target("jobs/s", at_least=0.5, of_floor=UNLIMITED),),
        )
    jobs = 400 if is_quick else 2_000
    for processes in (1, 2):
        yield Cell(
            f"limits-use-{processes}",
            f"handlers of {BUSY_SECONDS * 1_000:.0f} ms, a limit of {LIMIT}, {processes} worker processes with "
            f"{2 * SLOTS} slots: the share of the places that is used",
            {"ours": partial(_use, jobs, processes)},
            (Target("used places, %", at_least=90),),
        )
    samples = 40 if is_quick else 120
    yield Cell(
        "limits-wake-up",
        f"from the commit of the end that frees the only place to the first line of the next, {samples} samples",
        {"ours": partial(_places, samples), UNLIMITED: partial(_wake_ups, samples)},
        (Target("p95 ms", at_most=2, of_floor=UNLIMITED),),
        max_rounds=2,
    )


def _fill(type_name: str, count: int) -> None:
    """Enqueue jobs with the keys of their limits."""
    empty()
    checkpoint()
    _enqueue(type_name, count)
    vacuum()


def _enqueue(type_name: str, count: int) -> None:
    item = get_registry().job_type(type_name).item
    chains.enqueue_many([item({"i": number, "key": number % KEYS}) for number in range(count)])


def _drain(type_name: str, jobs: int) -> Figures:
    _fill(type_name, jobs)
    return drain(type_name, jobs)


def _unlimited(jobs: int) -> Figures:
    fill("bench.value", jobs)
    return drain("bench.value", jobs)


def _use(jobs: int, processes: int) -> Figures:
    """Return the share of the places that was used, of workers that also serve a type without a limit."""
    starts = sorted(_times("bench.limited_busy", jobs, jobs, ["bench.value"], processes, 2 * SLOTS))[LIMIT:]
    return {"used places, %": 100 * (len(starts) - 1) / (starts[-1] - starts[0]) * BUSY_SECONDS / LIMIT}


def _places(samples: int) -> Figures:
    """Return the times from the commit of each end to the start of the next handler, of one idle worker."""
    jobs = samples + WARM_UP
    moments = _times("bench.limited_wake", jobs, 2 * jobs)
    ends, starts = moments[1 + 2 * WARM_UP : -1 : 2], moments[2 + 2 * WARM_UP :: 2]
    return percentiles([(start - end) * 1_000 for end, start in zip(ends, starts, strict=True)])


def _times(
    type_name: str, jobs: int, count: int, others: Sequence[str] = (), processes: int = 1, slots: int = SLOTS
) -> tuple[float, ...]:
    """Enqueue jobs beside idle workers, and return the times that their handlers append. ``others``: more types."""
    empty()
    settle()
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        with idle_workers(worker_command([type_name, *others], "default", slots), times, processes):
            _enqueue(type_name, jobs)
            deadline = time.monotonic() + LONGEST_SECONDS
            while times.stat().st_size < 8 * count:
                if time.monotonic() > deadline:
                    raise WorkerFailed(f"Only {times.stat().st_size // 8} of {count} times were recorded.")
                time.sleep(0.05)
        return struct.unpack(f"<{count}d", times.read_bytes())


def _wake_ups(samples: int) -> Figures:
    """Return the times from the commit of an enqueue to the start of the handler, of one idle worker."""
    empty()
    settle()
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        with idle_workers(worker_command(["bench.wake"], "default", SLOTS), times):
            sampled(partial(enqueue, "bench.wake"), times, WARM_UP, JITTER_SECONDS)
            return percentiles(sampled(partial(enqueue, "bench.wake"), times, samples, JITTER_SECONDS))
