"""Creates chains and records with each vector in all text columns, and prints their ids and those of the jobs."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tests.browser.scripts.project import answer  # isort: split

from django.db import transaction
from django.utils import timezone
from shop.models import SupplierImport

from django_jobchains.db.ids import new_id
from django_jobchains.models import (
    AttemptCount,
    FailedAttempt,
    Job,
    JobBlocker,
    JobProgress,
    LogLine,
    QueueState,
    WorkerPresence,
)
from tests.support.hostile_texts import VECTORS

NOW = timezone.now()


def job(vector: str, **fields: Any) -> Job:
    id_ = new_id()
    chain_id = fields.pop("chain_id", id_)
    usual = {
        "id": id_,
        "chain_id": chain_id,
        "chain_index": 0,
        "chain_type_name": vector,
        "type_name": vector,
        "queue": vector,
        "status": "failed",
        "run_at": NOW,
        "created_at": NOW - timedelta(minutes=5),
        "attempt": 1,
        "lease_number": 1,
        "deduplication_key": f"{vector} {chain_id}",
        "input": {vector: [vector, {vector: vector}]},
        "context": {"actor": vector, vector: vector},
    }
    return Job(**{**usual, **fields})


def failed_chain_of(vector: str) -> list[Job]:
    """Create a chain of two steps, the second of which waited for another chain."""
    first = job(vector, status="completed", finished_at=NOW, completed_by=vector)
    error = {"last_error": lines(vector), "on_blocker_failure": "wait"}
    return [first, job(vector, chain_id=first.id, chain_index=1, finished_at=NOW, **error)]


def others_of(vector: str) -> list[Job]:
    lease = {"leased_by": vector, "leased_until": NOW + timedelta(hours=1), "last_attempt_at": NOW}
    return [
        job(vector, status="running", last_error=lines(vector), cancel_requested_at=NOW, **lease),
        job(vector, status="completed", output={vector: vector}, finished_at=NOW, completed_by=vector),
        job(vector, status="pending", run_at=NOW - timedelta(hours=1), attempt=0),
        job(vector, status="blocked", on_blocker_failure="fail", attempt=0),
    ]


def lines(vector: str) -> str:
    return f"{vector}: {vector}\n{vector}"


def attempt_of(vector: str, of: Job) -> FailedAttempt:
    times = {"started_at": NOW - timedelta(seconds=9), "finished_at": NOW}
    texts = {"kind": "error", "error": lines(vector), "traceback": lines(vector), "worker": vector}
    return FailedAttempt(job=of, attempt=1, lease_number=1, **times, **texts)


def notes_of(vector: str, of: Job) -> Iterator[Any]:
    """Create the log of an attempt."""
    said = {"job": of, "lease_number": 1, "attempt": 1}
    yield LogLine(**said, position=0, logged_at=NOW, level=30, text=vector, fields={vector: vector})
    yield JobProgress(**said, fraction=0.4, text=vector, logged_at=NOW)


def surroundings_of(vector: str) -> Iterator[Any]:
    """Create a worker, a queue and counts of attempts."""
    worker = {"slots": 4, "busy": 1, "stuck": 1, "pid": 7, "is_stopping": False, "heartbeat_seconds": 10.0}
    names = {"id": vector, "host": vector, "version": vector, "queues": [vector], "type_names": [vector]}
    yield WorkerPresence(**worker, **names, started_at=NOW, heartbeat_at=NOW)
    yield QueueState(name=vector, paused_at=NOW)
    for span, start in ((60, minute(NOW)), (3600, hour(NOW))):
        counts = {"completed": 3, "failed": 2, "seconds": 9.0, "longest_seconds": 4.0}
        yield AttemptCount(span=span, starts_at=start, type_name=vector, **counts)


def minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def hour(moment: datetime) -> datetime:
    return minute(moment).replace(minute=0)


def record_of(vector: str, state: str) -> SupplierImport:
    """Create a record with the vector in all texts, and in entries of its logs that no worker would write."""
    entry = {"key": vector, "command": [vector], "out": vector, "exit_code": 1, "duration_ms": 5}
    unusual = {"key": vector, "command": {vector: vector}, "out": [vector], "exit_code": vector, "start_time": vector}
    texts = {"file_name": vector, "content": vector, "failure_message": lines(vector), "worker_hostname": vector}
    logs = [entry, unusual, {vector: vector}]
    return SupplierImport.objects.create(**texts, lines=1, state=state, finished_at=NOW, execution_logs=logs)


def write(vector: str) -> dict[str, UUID | int]:
    chain = failed_chain_of(vector)
    running, completed, *others = others_of(vector)
    Job.objects.bulk_create([*chain, running, completed, *others])
    attempts = [attempt_of(vector, chain[-1])]  # not for the running job, whose last error is shown instead
    for row in (*attempts, *notes_of(vector, chain[-1]), *notes_of(vector, running), *surroundings_of(vector)):
        row.save(force_insert=True)
    for blocked, blocker in ((chain[-1], running), (others[-1], chain[0])):
        JobBlocker.objects.create(job=blocked, position=0, blocker=blocker, is_open=True)
    chains = {"failed": chain[0].id, "running": running.id, "completed": completed.id, "job": chain[-1].id}
    return {**chains, "record": record_of(vector, "failed").pk, "other_record": record_of(vector, vector[:50]).pk}


with transaction.atomic():
    written = [write(vector) for vector in VECTORS]
answer([{name: str(id_) for name, id_ in ids.items()} for ids in written])
