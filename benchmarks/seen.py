"""What a process that enqueues single jobs sees, and the figures of it."""

from dataclasses import dataclass
from statistics import mean, median, quantiles
from typing import TypedDict

from benchmarks.cells import Figures

GAP_SECONDS = 0.05
JITTER_SECONDS = 0.03


@dataclass(frozen=True)
class Load:
    """``idle_gaps``: as long as those between jobs, before the first. ``flush_seconds``: before transactions are
    counted; None: they are not."""

    samples: int
    gap_seconds: float = GAP_SECONDS
    idle_gaps: int = 0
    flush_seconds: float | None = None


class Seen(TypedDict):
    """Of each sample: the latency, and the statements at the server until the next one; of each gap without a job:
    its statements. ``transactions``: of all samples; None where they are not counted."""

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
    hundred = quantiles(milliseconds, n=100)
    return {f"p{number} ms": hundred[number - 1] for number in (50, 95, 99)}
