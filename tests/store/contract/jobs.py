"""Creates jobs in the state that a test needs, and reads the tables of the store afterwards."""

import json
import time
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django_jobchains.db.ids import new_id
from django_jobchains.models import FailedAttempt, Job, JobBlocker, LogLine
from django_jobchains.policies import Backoff
from django_jobchains.store import (
    ClaimedJob,
    FailedTry,
    FinishedJob,
    HeldLease,
    LogEntries,
    NewJob,
    NewLogLine,
    NewProgress,
    Store,
)

SHIP, MAIL = "contract.ship", "contract.mail"
WORKER = "worker-1"
LEASE_SECONDS = 60.0
AT_ONCE = Backoff(0, 1, 0, 0)
MAX_CRASHES = 3

#: Every column of every row.
Tables = list[list[dict[str, Any]]]


def new_job(type_name: str = SHIP, **changes: Any) -> NewJob:
    """Return the first job of a chain, due at once."""
    id_ = changes.pop("id", None) or new_id()
    values = {"chain_id": id_, "chain_index": 0, "chain_type_name": type_name, "queue": "default", "input": "{}"}
    return NewJob(id=id_, type_name=type_name, **{**values, **changes})


def next_job(job: ClaimedJob | Job, **changes: Any) -> NewJob:
    """Return the continuation of a job."""
    step = {"chain_id": job.chain_id, "chain_index": job.chain_index + 1, "chain_type_name": job.chain_type_name}
    return new_job(MAIL, **{**step, **changes})


def create(store: Store, count: int = 1, type_name: str = SHIP, **changes: Any) -> list[UUID]:
    return [row.id for row in store.jobs.create([new_job(type_name, **changes) for _ in range(count)])]


def claim(
    store: Store,
    limit: int = 1_000,
    worker: str = WORKER,
    types: Sequence[str] = (SHIP, MAIL),
    queues: Collection[str] | None = None,
    excluded: Collection[str] = (),
) -> list[ClaimedJob]:
    return store.jobs.claim(worker, limit, dict.fromkeys(types, LEASE_SECONDS), queues, excluded)


def running(store: Store, count: int = 1, **changes: Any) -> list[ClaimedJob]:
    """Create and claim jobs, and return them in the order of their creation."""
    ids = create(store, count, **changes)
    jobs = {job.id: job for job in claim(store)}
    return [jobs[id_] for id_ in ids]


def running_job(store: Store, **changes: Any) -> ClaimedJob:
    return running(store, 1, **changes)[0]


def let_leases_end(store: Store) -> None:
    store.db.ahead_seconds += LEASE_SECONDS + 1


def taken_over(store: Store, job: ClaimedJob) -> ClaimedJob:
    """Let the lease of a job expire, and return its next attempt, claimed by another worker."""
    let_leases_end(store)
    store.leases.reap(1_000, AT_ONCE, 1_000)
    fresh = {job.id: job for job in claim(store, worker="worker-2")}[job.id]
    assert fresh.lease_number > job.lease_number, "A claim must increase the lease number."
    return fresh


def lease(job: ClaimedJob, seconds: float = LEASE_SECONDS) -> HeldLease:
    return HeldLease(job.id, job.lease_number, seconds)


def finished(job: ClaimedJob, output: Any = "done", continuation: NewJob | None = None) -> FinishedJob:
    text = None if continuation else json.dumps(output)
    return FinishedJob(job.id, job.lease_number, text, continuation)


def failed_try(job: ClaimedJob, **changes: Any) -> FailedTry:
    return FailedTry(job.id, job.lease_number, **{"error": "Boom: no", "traceback": "Traceback …", **changes})


def entries(
    job: ClaimedJob, *texts: str, progress: float | None = None, first: int = 0, age_seconds: float = 0
) -> LogEntries:
    """Return log entries of an attempt with this age. Its lines are numbered from ``first``."""
    at = time.monotonic() - age_seconds
    lines = [NewLogLine(first + number, at, 20, text, None) for number, text in enumerate(texts)]
    half = None if progress is None else NewProgress(progress, f"{progress:.0%}", at)
    return LogEntries(*job.key, job.attempt, lines, half)


def lines_of(store: Store, job: ClaimedJob | UUID) -> list[str]:
    job_id = job if isinstance(job, UUID) else job.id
    rows = LogLine.objects.using(store.using).filter(job_id=job_id).order_by("lease_number", "position")
    return list(rows.values_list("text", flat=True))


def stored(store: Store, job: ClaimedJob | UUID) -> Job:
    return Job.objects.using(store.using).get(pk=job if isinstance(job, UUID) else job.id)


def statuses(store: Store, *jobs: ClaimedJob | UUID) -> list[str]:
    return [stored(store, job).status for job in jobs]


def history(store: Store) -> list[tuple[UUID, int, str, str]]:
    rows = FailedAttempt.objects.using(store.using).order_by("id")
    return list(rows.values_list("job_id", "attempt", "kind", "error"))


def tables(store: Store) -> Tables:
    models: tuple[type[Any], ...] = (Job, FailedAttempt, JobBlocker)
    return [list(model.objects.using(store.using).order_by("pk").values()) for model in models]
