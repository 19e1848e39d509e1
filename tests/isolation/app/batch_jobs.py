"""Jobs that are handled in batches."""

from typing import Any

from django_jobchains.processors import Batch, Processors
from tests.isolation.app.slices import AT_ONCE, note

processors = Processors(backoff=AT_ONCE, batch_limit=5, max_attempts=2)


@processors.register("isolation.batch")
def batch(jobs: Batch[int]) -> None:
    for job in jobs:
        job.log(f"in a batch of {len(jobs)}")
        if job.input == 1:
            job.fail("no use")
        elif job.input == 2 and job.attempt == 1:
            job.retry()
        else:
            job.finish(job.input * 10)


@processors.register("isolation.batch_complete")
def batch_complete(jobs: Batch[Any]) -> None:
    with jobs.complete():
        for job in jobs:
            note(job, "written")


@processors.register("isolation.batch_heeds")
def batch_heeds(jobs: Batch[Any]) -> None:
    """Wait until one of the jobs is aborted, and complete the others."""
    for job in jobs:
        note(job, "started")
    while not any(job.signal.aborted for job in jobs):
        jobs.signal.wait(0.02)
    for job in jobs:
        if job.signal.aborted:
            job.retry()
