"""What an attempt leaves behind in memory."""

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

from django_jobchains.processors import Processors, RunningJob
from tests.attempts.work import Work, committed

pytestmark = committed


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("how", ["returns", "completes", "goes on"])
def test_an_attempt_that_ended_is_gone_without_the_garbage_collector(
    processors: Processors, work: Work, how: str
) -> None:
    jobs: list[ref[RunningJob[Any]]] = []

    @processors.register("freed")
    def freed(job: RunningJob[str]) -> Any:
        jobs.append(ref(job))
        if job.input == "completes":
            with job.complete():
                pass
        return job.continue_with(freed, "") if job.input == "goes on" else None

    freed.enqueue(how)
    work()
    assert jobs
    assert [job() for job in jobs] == [None] * len(jobs)
