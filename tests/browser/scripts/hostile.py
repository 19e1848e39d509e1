"""Creates chains and records with each vector in all text columns, and prints their ids and those of the jobs."""

from datetime import timedelta

from tests.browser.scripts.project import answer  # isort: split

from django.db import transaction
from django.utils import timezone
from shop.models import SupplierImport

from django_jobchains.models import AttemptCount, Job, QueueState, WorkerPresence
from tests.admin import rows
from tests.support.hostile_texts import VECTORS

NOW = timezone.now()


def chain(vector, steps, status, **fields):
    """Create a chain with the vector in every text of its jobs, and return the jobs."""
    texts = {"queue": vector, "input": {vector: [vector, {vector: vector}]}, "context": {"actor": vector}}
    if status in ("failed", "running"):
        texts["last_error"] = f"{vector}: {vector}\n{vector}"
    texts["output"] = {vector: vector} if status == "completed" else None
    by = {"running": {"leased_by": vector}, "completed": {"completed_by": vector}}.get(status, {})
    jobs = rows.chain(steps, status, vector, **texts, **by, **fields)
    Job.objects.filter(pk=jobs[0].pk).update(deduplication_key=f"{vector} {jobs[0].pk}", completed_by=vector)
    return jobs


def log(vector, job):
    rows.line(job, level=30, text=vector, fields={vector: vector}).save()
    rows.progress(job, text=vector)


def surroundings(vector):
    """Create a worker, a queue and counts of attempts."""
    texts = {"id": vector, "host": vector, "version": vector, "queues": [vector], "type_names": [vector]}
    figures = {"slots": 4, "busy": 1, "stuck": 1, "pid": 7, "is_stopping": False, "heartbeat_seconds": 10.0}
    WorkerPresence.objects.create(**texts, **figures, started_at=NOW, heartbeat_at=NOW)
    QueueState.objects.create(name=vector, paused_at=NOW)
    minute = NOW.replace(second=0, microsecond=0)
    for span, start in ((60, minute), (3600, minute.replace(minute=0))):
        counts = {"completed": 3, "failed": 2, "seconds": 9.0, "longest_seconds": 4.0}
        AttemptCount.objects.create(span=span, starts_at=start, type_name=vector, **counts)


def record(vector, state):
    """Create a record with the vector in all texts, and in entries of its logs that no worker would write."""
    entry = {"key": vector, "command": [vector], "out": vector, "exit_code": 1, "duration_ms": 5}
    unusual = {"key": vector, "command": {vector: vector}, "out": [vector], "exit_code": vector, "start_time": vector}
    texts = {"file_name": vector, "content": vector, "failure_message": f"{vector}: {vector}\n{vector}"}
    logs = {"execution_logs": [entry, unusual, {vector: vector}], "worker_hostname": vector}
    return SupplierImport.objects.create(lines=1, state=state, finished_at=NOW, **texts, **logs)


def write(vector):
    first, failed = chain(vector, 2, "failed", on_blocker_failure="wait")
    [running] = chain(vector, 1, "running", cancel_requested_at=NOW)
    [completed] = chain(vector, 1, "completed")
    chain(vector, 1, "pending", run_at=NOW - timedelta(hours=1))
    [blocked] = chain(vector, 1, "blocked", on_blocker_failure="fail")
    error = f"{vector}: {vector}\n{vector}"
    # The running job has no failed attempt, and its last error is shown instead.
    rows.attempt(failed, error=error, traceback=error, worker=vector).save()
    for job in (failed, running):
        log(vector, job)
    rows.link(failed, [running])
    rows.link(blocked, [first])
    surroundings(vector)
    chains = {"failed": failed.chain_id, "running": running.id, "completed": completed.id, "job": failed.id}
    return {**chains, "record": record(vector, "failed").pk, "other_record": record(vector, vector[:50]).pk}


with transaction.atomic():
    written = [write(vector) for vector in VECTORS]
answer([{name: str(id_) for name, id_ in ids.items()} for ids in written])
