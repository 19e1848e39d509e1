"""An error while the outcome is written has the same fate in ``complete()`` and in the completer."""

from typing import Any

import pytest

from django_jobchains.exceptions import ChainNotFound
from django_jobchains.ids import new_id
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Batch, Processors, RunningJob
from tests.attempts.work import Work, committed

pytestmark = committed

writes = pytest.mark.parametrize("writes", ["in complete()", "with others", "as a batch"])


def fate(processors: Processors, work: Work, writes: str, **options: Any) -> tuple[str, int]:
    """The status and attempts of a job that goes on with a blocker that does not exist."""
    missing = [new_id()]

    def goes_on(job: RunningJob[Any]) -> Any:
        if writes == "with others":
            return job.continue_with("goes on", blockers=missing)
        with job.complete():
            return job.continue_with("goes on", blockers=missing)

    def go_on(jobs: Batch[Any]) -> None:
        for job in jobs:
            job.continue_with("goes on", blockers=missing)

    if writes == "as a batch":
        processors.register("goes on", batch_limit=2, **options)(go_on).enqueue()
    else:
        processors.register("goes on", **options)(goes_on).enqueue()
    work(slots=1)
    job = Job.objects.get()
    assert (job.last_error or "").startswith(f"{ChainNotFound.__name__}: ")
    assert job.failed_attempts.count() == job.attempt
    return job.status, job.attempt


@writes
def test_it_is_tried_again(processors: Processors, work: Work, writes: str) -> None:
    assert fate(processors, work, writes) == ("pending", 1)


@writes
def test_it_has_failed_after_the_last_attempt(processors: Processors, work: Work, writes: str) -> None:
    assert fate(processors, work, writes, backoff=Backoff(0, 1, 0, 0), max_attempts=2) == ("failed", 2)


@writes
def test_it_has_failed_by_a_rule_about_errors(processors: Processors, work: Work, writes: str) -> None:
    assert fate(processors, work, writes, fail_on=(ChainNotFound,)) == ("failed", 1)
