"""Writes in the completing transaction happen exactly once, wherever attempts fail."""

import random
from collections import Counter

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Processors, RescheduleJob
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed

JOBS = 25
ERRORS = (ValueError("no luck"), SystemExit(1), MemoryError(), RescheduleJob(delay=0))
PLACES = ("before", "prepare", "between", "complete", "after", "result", "none", "none", "none", "none")


class Decisions:
    """Random decisions of one attempt, which are the same in every run."""

    def __init__(self, seed, job):
        chance = random.Random(f"{seed} {job.input} {job.attempt}")
        self.place = chance.choice(PLACES)
        self.error = chance.choice(ERRORS)
        self.mode = chance.choice(["staged", "atomic"])

    def maybe_raise(self, place):
        if place == self.place:
            raise self.error


@pytest.mark.parametrize("seed", range(2))
def test_each_completed_job_has_one_effect(work, seed):
    part = Processors(backoff=Backoff(initial_seconds=0))

    def attempt(job):
        decisions = Decisions(seed, job)
        decisions.maybe_raise("before")
        with job.prepare(mode=decisions.mode):
            Effect.objects.create(job_id=job.id, label="prepared")
            decisions.maybe_raise("prepare")
        decisions.maybe_raise("between")
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")
            decisions.maybe_raise("complete")
        decisions.maybe_raise("after")
        return {"not JSON"} if decisions.place == "result" else job.input

    @part.register("first")
    def first(job):
        result = attempt(job)
        return job.continue_with(second, f"{result} continued") if isinstance(result, str) else result

    @part.register("second")
    def second(job):
        return attempt(job)

    chains = [first.enqueue(f"job {number}") for number in range(JOBS)]
    work(part, slots=4)

    jobs = list(Job.objects.all())
    assert len(jobs) == 2 * JOBS
    assert {job.status for job in jobs} == {"completed"}
    assert [chain.refresh().output for chain in chains] == [f"job {number} continued" for number in range(JOBS)]
    assert effects("completed") == dict.fromkeys((job.id for job in jobs), 1)
    assert min(effects("prepared").values()) == 1
    failures = Counter(FailedAttempt.objects.values_list("job_id", flat=True))
    assert all(job.attempt == failures[job.id] + (job.reschedules or 0) + 1 for job in jobs)
    assert sum(failures.values()) > JOBS // 2, "Too few handlers failed."


def effects(label):
    return dict(Counter(Effect.objects.filter(label=label).values_list("job_id", flat=True)))
