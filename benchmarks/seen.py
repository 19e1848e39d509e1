"""The observations of a process that enqueues single jobs, and the figures computed from them."""

from dataclasses import dataclass
from statistics import mean, median, quantiles
from typing import TypedDict

from benchmarks.cells import Figures
from benchmarks.times import GAP_SECONDS

JITTER_SECONDS = 0.03


@dataclass(frozen=True)
class Load:
    """How single jobs are enqueued.

    ``idle_gaps`` is the number of gaps without a job before the first sample. ``flush_seconds`` is the wait before
    transactions are counted, or None if they are not counted.
    """

    samples: int
    gap_seconds: float = GAP_SECONDS
    idle_gaps: int = 0
    flush_seconds: float | None = None


class Seen(TypedDict):
    """The observations of a run.

    For each sample, the latency and the server's statements until the next sample; for each gap without a job, its
    statements. ``transactions`` is the total of all samples, or None if they are not counted.
    """

    milliseconds: list[float]
    statements: list[int]
    idle_statements: list[int]
    transactions: int | None


def figures(seen: Seen) -> Figures:
    found = percentiles(seen["milliseconds"])
    if statements := seen["statements"]:
        found |= {"statements of a job": median(statements), "statements of the worst": max(statements)}
    if idle := seen["idle_statements"]:
        found |= {"statements without a job": mean(idle)}
    if seen["transactions"] is not None:
        found |= {"transactions of a job, mean": seen["transactions"] / len(seen["milliseconds"])}
    return found


def percentiles(milliseconds: list[float]) -> Figures:
    hundred = quantiles(milliseconds, n=100, method="inclusive")
    # The 99th percentile of a few samples means nothing.
    reported = (50, 95, 99) if len(milliseconds) >= 100 else (50, 95)
    return {f"p{number} ms": hundred[number - 1] for number in reported}
