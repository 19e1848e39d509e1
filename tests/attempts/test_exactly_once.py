"""Writes in the completing transaction happen exactly once, however often and wherever the attempts fail."""

import random
from collections import Counter
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Processors, RescheduleJob, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed

JOBS = 25
ERRORS = (ValueError("no luck"), SystemExit(1), MemoryError(), RescheduleJob(delay=0))
PLACES = ("before", "prepare", "between", "complete", "after", "result", "none", "none", "none", "none")


class Dice:
    """What each attempt does, decided by seed, job and attempt: the same in every run."""

    def __init__(self, seed: int, job: RunningJob[Any]) -> None:
        chance = random.Random(f"{seed} {job.input} {job.attempt}")
        self.place = chance.choice(PLACES)
        self.error = chance.choice(ERRORS)
        self.mode: Any = chance.choice(["staged", "atomic"])

    def roll(self, place: str) -> None:
        if place == self.place:
            raise self.error


@pytest.mark.parametrize("seed", range(2))
def test_as_many_effects_as_completed_jobs(work: Work, seed: int) -> None:
    part = Processors(backoff=Backoff(initial_seconds=0))

    def attempt(job: RunningJob[Any]) -> Any:
        dice = Dice(seed, job)
        dice.roll("before")
        with job.prepare(mode=dice.mode):
            Effect.objects.create(job_id=job.id, label="prepared")
            dice.roll("prepare")
        dice.roll("between")
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")
            dice.roll("complete")
        dice.roll("after")
        return {"no JSON"} if dice.place == "result" else job.input

    @part.register("first")
    def first(job: RunningJob[Any]) -> Any:
        result = attempt(job)
        return job.continue_with(second, f"{result} continued") if isinstance(result, str) else result

    @part.register("second")
    def second(job: RunningJob[Any]) -> Any:
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
    assert all(job.attempt == failures[job.id] + 1 for job in jobs)
    assert sum(failures.values()) > JOBS // 2, "the handlers hardly failed: the test shows nothing"


def effects(label: str) -> dict[Any, int]:
    return dict(Counter(Effect.objects.filter(label=label).values_list("job_id", flat=True)))
