"""An exception in an async handler rolls back the writes of the phase in which it is raised."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.models import Chain, Job
from django_jobchains.processors import RunningJob
from tests.async_handlers.effects import effects, write
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


class Broken(Exception):
    pass


def assert_rescheduled(chain: Chain, error: str = "Broken: no luck") -> None:
    (job,) = chain.refresh().jobs
    (failed,) = job.failed_attempts.all()
    assert (job.status, job.attempt, job.last_error, job.output) == ("pending", 1, error, None)
    assert (job.leased_by, job.leased_until, job.finished_at) == (None, None, None)
    assert abs(job.run_at - failed.finished_at - timedelta(seconds=100)) < timedelta(seconds=30)


async def outside_of_the_phases(job: RunningJob[Any], mode: Any) -> None:
    await Effect.objects.acreate(job_id=job.id, label="outside")


async def in_prepare(job: RunningJob[Any], mode: Any) -> None:
    await job.aprepare(write(job, "prepared", Broken("no luck")), mode=mode)


async def between_the_phases(job: RunningJob[Any], mode: Any) -> None:
    await job.aprepare(write(job, "prepared"), mode=mode)


async def in_complete(job: RunningJob[Any], mode: Any) -> None:
    await job.aprepare(write(job, "prepared"), mode=mode)
    await job.acomplete(write(job, "completed", Broken("no luck")))


async def after_complete(job: RunningJob[Any], mode: Any) -> None:
    await job.aprepare(write(job, "prepared"), mode=mode)
    await job.acomplete(write(job, "completed"))


@pytest.mark.parametrize(
    ("place", "mode", "left"),
    [
        (outside_of_the_phases, "staged", ["outside"]),
        (in_prepare, "staged", []),
        (in_prepare, "atomic", []),
        (between_the_phases, "staged", ["prepared"]),
        (between_the_phases, "atomic", []),
        (in_complete, "staged", ["prepared"]),
        (in_complete, "atomic", []),
        (after_complete, "staged", ["prepared"]),
        (after_complete, "atomic", []),
    ],
)
def test_exception_rolls_back_its_phase_and_an_atomic_prepare(once, work, place, mode, left):
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> None:
        await place(job, mode)
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == left


def test_exception_after_complete_rolls_back_its_continuation_and_the_chains_enqueued_in_it(once, work):
    @once.register("next")
    async def next_(job: RunningJob[Any]) -> None:
        await Effect.objects.acreate(job_id=job.id, label="next ran")

    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> Any:
        def complete() -> None:
            next_.enqueue()
            job.continue_with(next_)

        await job.acomplete(complete)
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert Job.objects.count() == 1
    assert effects() == []


def test_swallowed_error_of_complete_fails_the_attempt(once, work):
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> str:
        with suppress(Broken):
            await job.acomplete(write(job, "half", Broken("no luck")))
        return "done"

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


def test_swallowed_database_error_in_complete_fails_the_attempt(once, work):
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> None:
        def complete() -> None:
            Effect.objects.create(job_id=job.id, label="first")
            transaction.set_rollback(True)

        await job.acomplete(complete)

    chain = broken.enqueue()
    work()
    assert "PhaseError: A database error was swallowed" in str(chain.refresh().current_job.last_error)
    assert effects() == []


def test_staged_prepare_is_committed_at_once_and_complete_at_the_end(once, work):
    seen: list[Any] = []

    @once.register("fine")
    async def fine(job: RunningJob[Any]) -> str:
        seen.append(await job.aprepare(write(job, "prepared")))
        seen.append([effect.label async for effect in Effect.objects.order_by("id")])
        seen.append(await job.acomplete(write(job, "completed")))
        seen.append([effect.label async for effect in Effect.objects.order_by("id")])
        return "done"

    chain = fine.enqueue()
    work()
    assert seen == ["prepared", ["prepared"], "completed", ["prepared"]]
    assert (chain.refresh().output, effects()) == ("done", ["prepared", "completed"])
