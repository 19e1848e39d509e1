"""How long the jobs of a time range waited and ran.

Every completed job has the times that this needs, so nothing is counted in advance. A limited number of jobs is read by
index from each part of the range, so that neither history nor many jobs add to the cost.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.db.models import QuerySet

from django_jobchains.db.ids import first_id_at
from django_jobchains.db.times import Times
from django_jobchains.models import Job
from django_jobchains.statuses import FINAL

#: The number of equal parts of a time range, and the number of jobs that are read of each, newest first.
PARTS = 8
PART_SIZE = 125


@dataclass(frozen=True)
class Durations:
    """Seconds of completed jobs: the median, and the limit that 95 of 100 jobs stay below.

    ``wait``: from when a job was due until it was claimed. ``run``: from then until its outcome was stored.
    """

    name: str
    jobs: int
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float


def ended_jobs(jobs: QuerySet[Job], column: str, name: str, start: datetime, end: datetime) -> tuple[list[Job], bool]:
    """Return the given jobs that ended in a time range, and whether they are only a sample.

    ``column``: "type_name" or "queue". There is no index of the times when jobs ended, so the jobs of the chains that
    were created in each part of the range are read, and the newest jobs of earlier chains.
    """
    which: dict[str, Any] = {column: name, "status__in": FINAL}
    newest_first = jobs.filter(**which).order_by("-chain_id", "-chain_index")
    ids = [first_id_at(start + (end - start) / PARTS * part) for part in range(PARTS)]
    parts = [newest_first.filter(chain_id__gte=first, chain_id__lt=last) for first, last in pairwise(ids)]
    parts.append(newest_first.filter(chain_id__gte=ids[-1]))
    found = [list(part[:PART_SIZE]) for part in parts]
    times = Times(jobs.db)
    earlier = newest_first.filter(chain_id__lt=ids[0])[:PART_SIZE]
    late = [job for job in earlier if job.finished_at and times.aware(job.finished_at) >= start]
    return [job for part in (late, *found) for job in part], any(len(part) == PART_SIZE for part in found)


def durations(jobs: Iterable[Job]) -> list[Durations]:
    """Return the durations of each type, the most frequent first, from the jobs that a worker completed."""
    by_type: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for job in jobs:
        ran = job.completed_in_seconds
        if ran is not None and job.last_attempt_at is not None:
            waited = max((job.last_attempt_at - job.run_at).total_seconds(), 0.0)
            by_type[job.type_name].append((waited, ran))
    found = []
    for name, times in by_type.items():
        waits, runs = zip(*times, strict=True)
        quantiles = (_quantile(waits, 0.5), _quantile(waits, 0.95), _quantile(runs, 0.5), _quantile(runs, 0.95))
        found.append(Durations(name, len(times), *quantiles))
    return sorted(found, key=lambda each: (-each.jobs, each.name))


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
