"""Create jobs in the states that tests start from, and read the tables."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from django_jobchains.db.ids import new_id
from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt, Job, JobBlocker, LogLine
from django_jobchains.store.rows import (
    FailedTry,
    FinishedJob,
    HeldLease,
    LogEntries,
    NewJob,
    NewLogLine,
    NewProgress,
    Renewal,
)

SHIP = "shop.ship"
MAIL = "shop.mail"
LEASE_SECONDS = 60.0
WORKER = "worker-1"
AT_ONCE = Backoff(0, 1, 0, 0)
MAX_CRASHES = 3

Tables = list[list[dict[str, Any]]]


def new_job(type_name=SHIP, **changes):
    """Return a first job of a chain that is due at once."""
    id_ = changes.pop("id", None) or new_id()
    values = {"chain_id": id_, "chain_index": 0, "chain_type_name": type_name, "queue": "default", "input": "{}"}
    return NewJob(id=id_, type_name=type_name, **{**values, **changes})


def next_job(job, **changes):
    """Return a continuation of a claimed job."""
    step = {"chain_id": job.chain_id, "chain_index": job.chain_index + 1, "chain_type_name": job.chain_type_name}
    return new_job(MAIL, **{**step, **changes})


def create(store, count=1, type_name=SHIP, **changes):
    return [row.id for row in store.jobs.create([new_job(type_name, **changes) for _ in range(count)])]


def claim(
    store,
    limit=10_000,
    worker=WORKER,
    types=(SHIP, MAIL),
    queues=None,
    excluded=(),
):
    return store.jobs.claim(worker, limit, dict.fromkeys(types, LEASE_SECONDS), queues, excluded)


def running(store, count=1, **changes):
    """Create and claim jobs, and return them in the order of their creation."""
    ids = create(store, count, **changes)
    jobs = {job.id: job for job in claim(store)}
    return [jobs[id_] for id_ in ids]


def running_job(store, **changes):
    return running(store, 1, **changes)[0]


def let_leases_end(store):
    store.db.ahead_seconds += LEASE_SECONDS + 1


def expire(*jobs, ago=1):
    """Set leases to have expired this many seconds ago."""
    alter(jobs, leased_until=database_now() - timedelta(seconds=ago))


def alter(jobs, **values):
    """Write columns without using the store."""
    ids = [job.id for job in jobs]
    assert Job.objects.filter(pk__in=ids).update(**values) == len(ids)


def start_a_minute_earlier(job_id):
    """Let the running attempt have been claimed a minute earlier."""
    claimed_at = Job.objects.values_list("last_attempt_at", flat=True).get(pk=job_id)
    assert claimed_at is not None
    Job.objects.filter(pk=job_id).update(last_attempt_at=claimed_at - timedelta(minutes=1))


def is_a_minute(seconds):
    return seconds is not None and 60 <= seconds < 120


def link(job, *chain_ids, is_open=True):
    """Add blockers to a job without using the store."""
    job_id = job if isinstance(job, UUID) else job.id
    first = JobBlocker.objects.filter(job_id=job_id).count()
    JobBlocker.objects.bulk_create(
        JobBlocker(job_id=job_id, position=position, blocker_id=chain_id, is_open=is_open)
        for position, chain_id in enumerate(chain_ids, start=first)
    )


def taken_over(store, job, worker="worker-2"):
    """Return the next attempt of a job whose lease has expired, claimed by another worker."""
    expire(job)
    alter([job], status="pending")
    [fresh] = claim(store, 1, worker)
    assert fresh.key == (job.id, job.lease_number + 1)
    return fresh


def lease(job, seconds=LEASE_SECONDS):
    return HeldLease(job.id, job.lease_number, seconds)


def lost(reasons, *completed):
    """Return the result of a renewal that finds no attempt that should stop. ``completed``: by their own attempts."""
    return Renewal(reasons, set(), set(completed))


def finished(job, output='"done"', continuation=None):
    return FinishedJob(job.id, job.lease_number, output, continuation)


def failed_try(job, **changes):
    return FailedTry(job.id, job.lease_number, **{"error": "Boom: no", "traceback": "Traceback …", **changes})


def entries(job, *texts, progress=None, first=0, age_seconds=0):
    """Return log entries of an attempt with this age. Its lines are numbered from ``first``."""
    at = time.monotonic() - age_seconds
    lines = [NewLogLine(first + number, at, 20, text, None) for number, text in enumerate(texts)]
    half = None if progress is None else NewProgress(progress, f"{progress:.0%}", at)
    return LogEntries(*job.key, job.attempt, lines, half)


def lines_of(job):
    """Return the log of a job."""
    rows = LogLine.objects.filter(job_id=job.id).order_by("lease_number", "position")
    return list(rows.values_list("text", flat=True))


def stored(job):
    return Job.objects.get(pk=job if isinstance(job, UUID) else job.id)


def statuses(*jobs):
    return [stored(job).status for job in jobs]


def history():
    """Return the failed attempts."""
    return list(FailedAttempt.objects.order_by("id").values_list("job_id", "attempt", "kind", "error"))


def row(job):
    """Return every column of a job."""
    return Job.objects.values().get(pk=job if isinstance(job, UUID) else job.id)


def changes(before):
    """Return the columns of a job that have changed since it had this row."""
    return {name: value for name, value in row(before["id"]).items() if value != before[name]}


def tables():
    """Return every column of every row."""
    return [list(model.objects.order_by("pk").values()) for model in (Job, FailedAttempt, JobBlocker)]


def database_now():
    """Return the current time of the database, not the start of the transaction."""
    clocks = {
        "postgresql": "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    }
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {clocks[connection.vendor]}")
        return datetime.fromisoformat(cursor.fetchone()[0]).replace(tzinfo=UTC)
