"""How long jobs waited and ran, from the jobs that completed last.

Every completed job has the times that this needs, so nothing is counted in advance. A limited number of jobs is read by
index, so that history adds no cost.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from django_jobchains.models import Job
from django_jobchains.statuses import FINAL

#: The number of ended jobs that are read, newest first.
SAMPLE_SIZE = 1_000


@dataclass(frozen=True)
class Durations:
    """Seconds of completed jobs: the median, and the limit that 95 of 100 jobs stay below.

    ``wait``: from when a job was due until it was claimed. ``run``: from then until its outcome was stored. ``since``:
    when the first of these jobs was created.
    """

    name: str
    jobs: int
    since: datetime
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float


def ended_jobs(jobs: QuerySet[Job], column: str, name: str) -> QuerySet[Job]:
    """Return the newest of some jobs that have ended, of a type (``type_name``) or in a queue (``queue``)."""
    which: dict[str, Any] = {column: name, "status__in": FINAL}
    return jobs.filter(**which).order_by("-chain_id", "-chain_index")[:SAMPLE_SIZE]


def durations(jobs: Iterable[Job]) -> list[Durations]:
    """Return the durations of each type, the most frequent first, from the jobs that a worker completed."""
    by_type: defaultdict[str, list[tuple[float, float, datetime]]] = defaultdict(list)
    for job in jobs:
        ran = job.completed_in_seconds
        if ran is not None and job.last_attempt_at is not None:
            waited = max((job.last_attempt_at - job.run_at).total_seconds(), 0.0)
            by_type[job.type_name].append((waited, ran, job.created_at))
    found = []
    for name, times in by_type.items():
        waits, runs, created = zip(*times, strict=True)
        quantiles = (_quantile(waits, 0.5), _quantile(waits, 0.95), _quantile(runs, 0.5), _quantile(runs, 0.95))
        found.append(Durations(name, len(times), min(created), *quantiles))
    return sorted(found, key=lambda each: (-each.jobs, each.name))


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
