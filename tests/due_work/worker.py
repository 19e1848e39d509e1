"""What the contract is about: how django_jobchains claims, runs, ends, takes back and deletes tasks."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

from django.db import transaction
from due_work_harness.helpers import wait_until
from due_work_harness.process_histories import fault_environment, fault_happened

from django_jobchains import chains
from django_jobchains.management.commands import run_jobworker
from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.store.rows import FailedTry, FinishedJob, HeldLease
from django_jobchains.tasks_backend import JobchainsBackend
from django_jobchains.testing.runner import run_due_jobs
from django_jobchains.worker.caretakers import Reaper
from django_jobchains.worker.options import WorkerContext, WorkerOptions
from tests.due_work.tasks import send_letter, send_to_closed_office
from tests.shop.models import Effect

ROOT = Path(__file__).resolve().parents[2]
LEASE_SECONDS = 60.0
LETTER = "tests.due_work.tasks.send_letter"
CLOSED = "retrying:tests.due_work.tasks.send_to_closed_office"
AT_ONCE = SimpleNamespace(seconds=lambda crashes: 0.0)


def new_order():
    return str(uuid4())


def enqueue_letter():
    return send_letter.enqueue(new_order()).id


def enqueue_to_closed_office():
    return send_to_closed_office.enqueue(new_order()).id


def status(task_id, task=send_letter):
    return task.get_result(task_id).status.name


def letters(task_id):
    return effects(send_letter.get_result(task_id).args[0], "sent")


def refusals(task_id):
    return effects(send_to_closed_office.get_result(task_id).args[0], "refused")


def effects(order, label):
    return Effect.objects.filter(job_id=UUID(order), label=label).count()


def tasks_of(order):
    """Return the statuses of the tasks of an order, and how many letters they have sent."""
    return [job.status for job in Job.objects.all() if order in job.input["args"]], effects(order, "sent")


def enqueue_for(order):
    """Enqueue the task of an order in a transaction."""
    with transaction.atomic():
        JobchainsBackend.enqueue(send_letter.get_backend(), send_letter, [order], {})


# Ownership. The token of an owner is the job with the number of its lease.


def claim():
    for job in get_store().jobs.claim("a worker", 1, {LETTER: LEASE_SECONDS}):
        return job.id, job.key
    return None


def finish(job_id, token, output="null"):
    return token in get_store().attempts.finish([FinishedJob(*token, output)])


def finish_with_output_of_first(state):
    """Finish an attempt, whether it still holds its lease or not. The state is its token, with the row of its job."""
    (job_id, lease_number), _ = state
    finish(job_id, (job_id, lease_number), '"output of the first owner"')
    return (job_id, lease_number), row(job_id)


def retry(job_id, token):
    return token in get_store().attempts.reschedule([FailedTry(*token, "The attempt failed.", "", delay_seconds=0)])


def fail(job_id, token):
    return token in get_store().attempts.fail([FailedTry(*token, "The attempt failed.", "")])


def hand_back(job_id, token):
    return token in get_store().attempts.hand_back([token])


def renew(job_id, token):
    return token not in get_store().leases.renew([HeldLease(*token, LEASE_SECONDS)]).lost


def take_back(job_id):
    reaped = get_store().leases.reap(100, AT_ONCE, 10)
    return next((job.status for job in reaped if job.id == job_id), None)


def row(job_id):
    columns = ("status", "attempt", "crashes", "lease_number", "leased_by", "leased_until", "output", "last_error")
    return Job.objects.values_list(*columns).get(pk=job_id)


# Selections


def due_tasks():
    """Return the ids of the tasks that a worker would claim now."""
    with transaction.atomic():
        due = get_store().jobs.claim("a worker", 100, {LETTER: LEASE_SECONDS, CLOSED: LEASE_SECONDS})
        transaction.set_rollback(True)
    return [str(job.id) for job in due]


# Workers


def run_one(task_id=None):
    """Run the next due task in this thread, as a worker does."""
    run_due_jobs(1)


def restart():
    """Take back what a dead worker has left when its lease is over, and run everything that is due."""
    store = get_store()
    store.db.ahead_seconds += 10 * LEASE_SECONDS
    Reaper(WorkerContext(WorkerOptions("another worker", store))).step()
    store.db.ahead_seconds += 10 * LEASE_SECONDS
    run_due_jobs()


def prune():
    """Delete what is kept no longer, in a distant future."""
    store = get_store()
    store.db.ahead_seconds += 10 * 365 * 86400
    chains.prune()
    store.db.ahead_seconds = 0


@contextmanager
def started_process(*options, **environment):
    """Run a worker process, which may be told to die. Yield it with the file of its output."""
    own = {"DJANGO_SETTINGS_MODULE": "tests.due_work.settings", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "django", run_jobworker.__name__.rpartition(".")[2], *options]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "output")
        with written.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **own, **environment}, stdout=file, stderr=file
            )
        try:
            yield process, written
        finally:
            process.kill()
            process.wait()


def run_in_process(point):
    """Enqueue a task and run it in a worker process that dies, or fails, at this point."""
    task_id = enqueue_letter()
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder, "marker")
        with started_process("--burst", **fault_environment(point, marker)) as (process, written):
            code = process.wait(60)
            has_failed = fault_happened(marker)
            assert has_failed == bool(point), written.read_text()
            assert has_failed or code == 0, written.read_text()
    return task_id, int(has_failed)


def restart_process(task_id):
    """Start a worker process again, and stop it when the task has ended."""
    with started_process() as (process, written):
        wait_until(lambda: "Worker " in written.read_text(), what="The worker did not start", poll=0.05)
        wait_until(lambda: send_letter.get_result(task_id).is_finished, what="The task did not end", poll=0.05)
        process.terminate()
        assert process.wait(60) == 0, written.read_text()
