"""The tables as the model sees them, with all relevant columns and times in hours since the start of an example."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django_jobchains.models import FailedAttempt, Job, JobBlocker

#: The longest time that an example may take. Times are whole hours; leases and windows end at half hours.
TOLERANCE_SECONDS = 900


@dataclass
class Row:
    """A row of the table of jobs."""

    id: UUID
    chain: UUID
    index: int
    chain_type: str
    type: str
    queue: str
    priority: int
    key: str | None
    policy: str | None
    run_at: float | None
    created_at: float | None
    status: str = "pending"
    attempt: int = 0
    lease: int = 0
    leased_by: str | None = None
    leased_until: float | None = None
    crashes: int = 0
    output: str | None = None
    error: str | None = None
    last_attempt_at: float | None = None
    finished_at: float | None = None
    completed_by: str | None = None
    is_stopped: bool = False
    expires_at: float | None = None
    #: Whether it was asked to stop because it had expired.
    is_late: bool = False


@dataclass
class Link:
    blocker: UUID
    is_open: bool


@dataclass
class Tables:
    jobs: dict[UUID, Row] = field(default_factory=dict)
    #: Links by waiting job and position.
    links: dict[tuple[UUID, int], Link] = field(default_factory=dict)
    #: By attempt: its number, the kind of failure, the first characters of the error, and the worker.
    failures: dict[tuple[UUID, int], tuple[int, str, str, str]] = field(default_factory=dict)


#: The exact ``run_at`` and ``leased_until`` of each job, which decide the order of claims and of the reaper.
Times = dict[UUID, tuple[datetime, datetime | None]]


def read(start):
    """Return the rows of the database, and their exact times."""

    def hours(time):
        if time is None:
            return None
        seconds = (time - start).total_seconds()
        rounded = round(seconds / 1800) / 2
        assert abs(seconds - rounded * 3600) < TOLERANCE_SECONDS, time
        return rounded

    jobs = list(Job.objects.all())
    return Tables(
        {job.id: _row(job, hours) for job in jobs},
        {(link.job_id, link.position): Link(link.blocker_id, link.is_open) for link in JobBlocker.objects.all()},
        {
            (row.job_id, row.lease_number): (row.attempt, row.kind, row.error[:4], row.worker)
            for row in FailedAttempt.objects.all()
        },
    ), {job.id: (job.run_at, job.leased_until) for job in jobs}


def _row(job, hours):
    return Row(
        id=job.id,
        chain=job.chain_id,
        index=job.chain_index,
        chain_type=job.chain_type_name,
        type=job.type_name,
        queue=job.queue,
        priority=job.priority,
        key=job.deduplication_key,
        policy=job.on_blocker_failure,
        run_at=hours(job.run_at),
        created_at=hours(job.created_at),
        status=job.status,
        attempt=job.attempt,
        lease=job.lease_number,
        leased_by=job.leased_by,
        leased_until=hours(job.leased_until),
        crashes=job.crashes,
        output=job.output,
        error=job.last_error and job.last_error[:4],
        last_attempt_at=hours(job.last_attempt_at),
        finished_at=hours(job.finished_at),
        completed_by=job.completed_by,
        is_stopped=job.cancel_requested_at is not None,
        expires_at=hours(job.expires_at),
        is_late=job.expires_at is not None and job.cancel_requested_at == job.expires_at,
    )
