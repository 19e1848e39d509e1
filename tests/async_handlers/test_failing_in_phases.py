"""Which writes of an async handler survive an exception, by the place where it is raised."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.models import Chain, Job
from django_jobchains.processors import Processors, RunningJob
from tests.async_handlers.effects import effects, write
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed

MODES = pytest.mark.parametrize(("mode", "left"), [("staged", ["prepared"]), ("atomic", [])])


class Broken(Exception):
    pass


def assert_rescheduled(chain: Chain, error: str = "Broken: no luck") -> None:
    (job,) = chain.refresh().jobs
    (failed,) = job.failed_attempts.all()
    assert (job.status, job.attempt, job.last_error, job.output) == ("pending", 1, error, None)
    assert (job.leased_by, job.leased_until, job.finished_at) == (None, None, None)
    assert abs(job.run_at - failed.finished_at - timedelta(seconds=100)) < timedelta(seconds=1)


def test_an_exception_before_any_phase_reschedules_the_job(once: Processors, work: Work) -> None:
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> None:
        await Effect.objects.acreate(job_id=job.id, label="outside")
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == ["outside"]


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_an_exception_in_prepare_undoes_its_writes(once: Processors, work: Work, mode: Any) -> None:
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> None:
        await job.aprepare(write(job, "prepared", Broken("no luck")), mode=mode)

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


@MODES
def test_an_exception_between_the_phases_undoes_atomic_prepare_and_keeps_staged(
    once: Processors, work: Work, mode: Any, left: list[str]
) -> None:
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> None:
        await job.aprepare(write(job, "prepared"), mode=mode)
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == left


@MODES
@pytest.mark.parametrize("is_after", [False, True])
def test_an_exception_in_or_after_complete_undoes_it_and_atomic_prepare(
    once: Processors, work: Work, mode: Any, left: list[str], is_after: bool
) -> None:
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> None:
        await job.aprepare(write(job, "prepared"), mode=mode)
        await job.acomplete(write(job, "completed", None if is_after else Broken("no luck")))
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == left


def test_an_exception_after_complete_undoes_the_continuation_and_chains_enqueued_in_it(
    once: Processors, work: Work
) -> None:
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


def test_swallowing_the_error_of_complete_does_not_save_the_attempt(once: Processors, work: Work) -> None:
    @once.register("broken")
    async def broken(job: RunningJob[Any]) -> str:
        with suppress(Broken):
            await job.acomplete(write(job, "half", Broken("no luck")))
        return "all is well"

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


def test_a_swallowed_database_error_that_broke_the_transaction_completes_nothing(once: Processors, work: Work) -> None:
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


def test_all_phases_that_succeed_are_one_commit_and_staged_prepare_one_before(once: Processors, work: Work) -> None:
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


def test_a_failed_attempt_is_followed_by_one_that_knows_its_error(once: Processors, work: Work) -> None:
    seen: list[tuple[int, str | None]] = []

    @once.register("second time lucky")
    async def lucky(job: RunningJob[Any]) -> str:
        seen.append((job.attempt, job.last_error))
        if job.attempt == 1:
            raise Broken("no luck")
        return "luck"

    chain = lucky.enqueue()
    work()
    Job.objects.update(run_at=chain.created_at)
    work()
    assert seen == [(1, None), (2, "Broken: no luck")]
    assert chain.refresh().output == "luck"
