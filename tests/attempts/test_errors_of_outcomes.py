"""An error while the outcome is written is handled in the same way in ``complete()`` and in the outcome writer."""

import pytest

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import ChainNotFound
from django_jobchains.models import Job
from django_jobchains.processors import Backoff
from tests.support.attempts import committed

pytestmark = committed

writes = pytest.mark.parametrize("writes", ["in complete()", "with others", "as a batch"])


def run(processors, work, writes, **options):
    """Run a job that continues with an unknown blocker, and return its status and number of attempts."""
    missing = [new_id()]

    def continue_one(job):
        if writes == "with others":
            return job.continue_with("continues", blockers=missing)
        with job.complete():
            return job.continue_with("continues", blockers=missing)

    def continue_batch(jobs):
        for job in jobs:
            job.continue_with("continues", blockers=missing)

    if writes == "as a batch":
        processors.register("continues", batch_limit=2, **options)(continue_batch).enqueue()
    else:
        processors.register("continues", **options)(continue_one).enqueue()
    work(slots=1)
    job = Job.objects.get()
    assert (job.last_error or "").startswith(f"{ChainNotFound.__name__}: ")
    assert job.failed_attempts.count() == job.attempt
    return job.status, job.attempt


@writes
def test_attempt_is_retried(processors, work, writes):
    assert run(processors, work, writes) == ("pending", 1)


@writes
def test_job_fails_after_the_last_attempt(processors, work, writes):
    assert run(processors, work, writes, backoff=Backoff(0, 1, 0, 0), max_attempts=2) == ("failed", 2)


@writes
def test_fail_on_applies(processors, work, writes):
    assert run(processors, work, writes, fail_on=(ChainNotFound,)) == ("failed", 1)
