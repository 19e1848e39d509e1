"""Jobs whose chains move between the queues ``old`` and ``new``. A side serves one of them, and ``default``."""

import fcntl
import os
import threading
import time
from pathlib import Path

from depot.models import Delivery, Upload

from django_jobchains.processors import Backoff, Concurrency, Processors

SIDE = os.environ["DEPOT_SIDE"]
OTHER_SIDE = {"old": "new", "new": "old"}

processors = Processors(backoff=Backoff(0.1, 1, 0.1, 0), max_attempts=5)


def deliver(key, label):
    Delivery.objects.create(key=key, label=label, side=SIDE)


@processors.register("depot.pass_on", continues_with=["depot.pass_on"])
def pass_on(job):
    """Pass the chain to the other side, until no step is left."""
    with job.complete():
        deliver(job.id, "step")
        if job.input == 0:
            return "arrived"
        return job.continue_with("depot.pass_on", job.input - 1, queue=OTHER_SIDE[job.queue])


@processors.register("depot.part")
def part(job):
    return job.input


@processors.register("depot.total", blockers=[part])
def total(job):
    with job.complete():
        deliver(job.id, "total")
        return sum(chain.output for chain in job.blockers)


@processors.register("depot.batch", batch_limit=10)
def batch(jobs):
    with jobs.complete():
        for job in jobs:
            deliver(job.id, "of a batch")


@processors.register("depot.stumble")
def stumble(job):
    if job.attempt <= 2:
        raise ValueError("intended")
    with job.complete():
        deliver(job.id, "third attempt")


@processors.register("depot.breaks", max_attempts=1, on_failure="depot.repair")
def breaks(job):
    raise ValueError("intended")


@processors.register("depot.repair")
def repair(job):
    with job.complete():
        deliver(job.input["job_id"], "repaired")


@processors.register("depot.alone", concurrency=Concurrency(1))
def alone(job):
    with Path("alone.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            deliver(job.id, "not alone")
        time.sleep(0.01)
        with job.complete():
            deliver(job.id, "alone")


@processors.register("depot.once")
def once(job):
    with job.complete():
        deliver(job.input, "once")


@processors.register("depot.hold")
def hold(job):
    """Run until the worker is killed if the input is its side."""
    if job.input == SIDE:
        deliver(job.id, "held")
        threading.Event().wait()
    with job.complete():
        deliver(job.id, "taken over")


@processors.register("depot.tick")
def tick(job):
    with job.complete():
        deliver(job.scheduled_for.isoformat(), "tick")


processors.schedule("every second", tick, every=1, on_missed="run_all")


@processors.records(Upload, stalled_after=10, heartbeat_every=1, max_resets=100, retry_after=0.1, poll_every=0.5)
def store(record, run):
    with run.complete():
        deliver(record.pk, "upload")
