"""The bars of steps, which show when each step waited, failed and ran."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django_jobchains.admin.timestamps import Timestamps
from django_jobchains.chains.tree import Step
from django_jobchains.models import Job
from django_jobchains.statuses import FINAL, Status


@dataclass(frozen=True)
class Segment:
    """A segment of a bar, in thousandths of its length."""

    kind: str
    start: int
    length: int


class TimeScale:
    """The time from the creation of the first shown step to the end of the last one."""

    def __init__(self, steps: Iterable[Step], timestamps: Timestamps) -> None:
        self._timestamps = timestamps
        jobs = [step.job for step in steps]
        self._begin: datetime | None = min((job.created_at for job in jobs), default=None)
        ends = [_end(job) if job.status in FINAL else None for job in jobs]
        self._seconds = max((timestamps.between(self._begin, end) or 0 for end in ends), default=0)

    def bar(self, step: Step) -> list[Segment]:
        """Return segments for the time since the creation, for failed attempts, and for the last attempt."""
        job = step.job
        is_final = job.status in FINAL
        end = _end(job) if is_final else None
        segments = [self._segment("waited", job.created_at, end)]
        segments += [self._segment("failed", attempt.started_at, attempt.finished_at) for attempt in step.attempts]
        is_worked_on = job.status == Status.RUNNING or (job.status == Status.COMPLETED and job.completed_by is not None)
        if job.last_attempt_at and is_worked_on:
            segments.append(self._segment(job.status, job.last_attempt_at, end))
        return segments

    def _segment(self, kind: str, begin: datetime, end: datetime | None) -> Segment:
        start = self._position(self._timestamps.between(self._begin, begin) or 0)
        stop = self._position(self._timestamps.between(self._begin, end) or 0)
        return Segment(str(kind), min(start, 994), max(6, stop - start))

    def _position(self, seconds: float) -> int:
        return round(1000 * min(1.0, max(0.0, seconds / self._seconds))) if self._seconds > 0 else 0


def _end(job: Job) -> datetime:
    return job.finished_at or job.last_attempt_at or job.created_at
