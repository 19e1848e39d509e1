"""A job's status as people are told it."""

from django_jobchains.chains import Job
from django_jobchains.console.words import Times


def shown_status(job: Job, times: Times, *, is_last: bool = True) -> str:
    """``scheduled`` is pending, due later; ``continued`` is completed, with another step after it."""
    if job.status == "pending" and times.seconds_since(job.run_at) < 0:
        return "scheduled"
    if job.status == "completed" and not is_last:
        return "continued"
    if job.status == "running" and job.cancel_requested_at:
        return "stopping"
    return str(job.status)
