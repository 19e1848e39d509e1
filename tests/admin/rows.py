"""Creates chains in any state directly as rows, without a worker."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django_jobchains.db.ids import new_id
from django_jobchains.models import FailedAttempt, Job, JobBlocker, JobProgress, LogLine

#: The time between two steps.
STEP = timedelta(seconds=10)


def chain(steps: int = 1, status: str = "pending", type_name: str = "shop.order", **fields: Any) -> list[Job]:
    """Create a chain whose last job has this status and these fields, and return its jobs."""
    chain_id = new_id()
    begin = datetime.now(UTC) - STEP * (steps + 1)
    jobs = [_job(chain_id, place, place == steps - 1, status, type_name, begin, fields) for place in range(steps)]
    return Job.objects.bulk_create(jobs)


def _job(
    chain_id: UUID, place: int, is_last: bool, status: str, type_name: str, begin: datetime, fields: dict[str, Any]
) -> Job:
    created = begin + STEP * place
    is_done = not is_last or status in ("completed", "failed", "cancelled")
    own = status if is_last else "completed"
    known: dict[str, Any] = {
        "id": new_id() if place else chain_id,
        "chain_id": chain_id,
        "chain_index": place,
        "chain_type_name": type_name,
        "type_name": type_name,
        "queue": "default",
        "status": own,
        "run_at": created,
        "attempt": int(own != "blocked" and own != "pending"),
        "lease_number": int(own != "blocked" and own != "pending"),
        "input": {"step": place},
        "output": {"done": True} if own == "completed" and is_last else None,
        "created_at": created,
        "last_attempt_at": created + STEP / 4 if own not in ("blocked", "pending") else None,
        "finished_at": created + STEP * 0.9 if is_done else None,
        "leased_by": "mail:1:ab" if own == "running" else None,
        "leased_until": created + STEP if own == "running" else None,
        "completed_by": "mail:1:ab" if own == "completed" else None,
    }
    return Job(**(known | (fields if is_last else {})))


def attempt(job: Job, number: int = 1, **fields: Any) -> FailedAttempt:
    known: dict[str, Any] = {
        "job": job,
        "attempt": number,
        "lease_number": number,
        "kind": "error",
        "error": "ValueError: no stock",
        "traceback": 'Traceback (most recent call last):\n  File "jobs.py", line 3\nValueError: no stock',
        "worker": "mail:1:ab",
        "started_at": job.created_at,
        "finished_at": job.created_at + STEP / 5,
    }
    return FailedAttempt(**(known | fields))


def attempts(job: Job, count: int, **fields: Any) -> None:
    FailedAttempt.objects.bulk_create([attempt(job, number, **fields) for number in range(1, count + 1)])
    Job.objects.filter(pk=job.pk).update(attempt=count, lease_number=count, last_error="ValueError: no stock")


def line(job: Job, position: int = 0, **fields: Any) -> LogLine:
    known: dict[str, Any] = {
        "job": job,
        "lease_number": 1,
        "attempt": 1,
        "position": position,
        "logged_at": job.created_at + timedelta(milliseconds=position),
        "level": 20,
        "text": f"line {position}",
        "fields": None,
    }
    return LogLine(**(known | fields))


def lines(job: Job, count: int) -> None:
    LogLine.objects.bulk_create([line(job, position) for position in range(count)])


def progress(job: Job, fraction: float = 0.4, text: str = "page 4 of 10") -> None:
    JobProgress.objects.create(
        job=job, lease_number=job.lease_number, attempt=1, fraction=fraction, text=text, logged_at=job.created_at
    )


def waits(job: Job, *blockers: Sequence[Job], is_open: bool = True) -> None:
    """Make the job wait for these chains."""
    link(job, [jobs[0] for jobs in blockers], is_open=is_open)


def link(job: Job, roots: Iterable[Job], *, is_open: bool = True) -> None:
    JobBlocker.objects.bulk_create(
        [JobBlocker(job=job, position=position, blocker=root, is_open=is_open) for position, root in enumerate(roots)]
    )
