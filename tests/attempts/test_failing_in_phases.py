"""Which writes survive an exception, by the place where it is raised."""

from datetime import timedelta
from typing import Any

import pytest

from django_jobchains.models import Chain, Job
from django_jobchains.processors import Processors, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed


class Broken(Exception):
    pass


def effects() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("label", flat=True))


def assert_rescheduled(chain: Chain) -> None:
    """Pending again after the slice's backoff of 100 seconds, its one failed attempt recorded, nothing else left."""
    (job,) = chain.refresh().jobs
    (failed,) = job.failed_attempts.all()
    assert (job.status, job.attempt, job.last_error, job.output) == ("pending", 1, "Broken: no luck", None)
    assert (job.leased_by, job.leased_until, job.finished_at) == (None, None, None)
    assert abs(job.run_at - failed.finished_at - timedelta(seconds=100)) < timedelta(seconds=1)


def test_an_exception_before_any_phase_reschedules_the_job(processors: Processors, work: Work) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="outside")
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == ["outside"]


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_an_exception_in_prepare_undoes_its_writes(processors: Processors, work: Work, mode: Any) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        with job.prepare(mode=mode):
            Effect.objects.create(job_id=job.id, label="prepared")
            raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


@pytest.mark.parametrize(("mode", "left"), [("staged", ["prepared"]), ("atomic", [])])
def test_an_exception_between_the_phases_keeps_what_staged_prepare_committed_and_undoes_atomic_prepare(
    processors: Processors, work: Work, mode: Any, left: list[str]
) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        with job.prepare(mode=mode):
            Effect.objects.create(job_id=job.id, label="prepared")
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == left


@pytest.mark.parametrize(("mode", "left"), [("staged", ["prepared"]), ("atomic", [])])
def test_an_exception_in_complete_undoes_its_writes_and_those_of_atomic_prepare(
    processors: Processors, work: Work, mode: Any, left: list[str]
) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        with job.prepare(mode=mode):
            Effect.objects.create(job_id=job.id, label="prepared")
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")
            raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == left


def test_an_exception_in_complete_undoes_the_continuation(processors: Processors, work: Work) -> None:
    @processors.register("next")
    def next_(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="next ran")

    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        with job.complete():
            job.continue_with(next_, 1)
            raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


def test_an_exception_after_the_block_of_complete_undoes_the_block(processors: Processors, work: Work) -> None:
    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


def test_an_exception_after_the_block_undoes_the_continuation_made_in_it(processors: Processors, work: Work) -> None:
    @processors.register("next")
    def next_(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="next ran")

    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> Any:
        try:
            with job.complete():
                return job.continue_with(next_, 1)
        finally:
            raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert Job.objects.count() == 1


def test_a_chain_enqueued_in_complete_is_gone_with_it(processors: Processors, work: Work) -> None:
    @processors.register("other")
    def other(job: RunningJob[Any]) -> None:
        pass

    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> None:
        with job.complete():
            other.enqueue()
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert Job.objects.count() == 1


def test_an_exception_in_atomic_mode_undoes_everything(processors: Processors, work: Work) -> None:
    @processors.register("broken", mode="atomic")
    def broken(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="done")
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


def test_a_failed_attempt_is_followed_by_one_that_knows_its_error(processors: Processors, work: Work) -> None:
    seen: list[tuple[int, str | None]] = []

    @processors.register("second time lucky")
    def lucky(job: RunningJob[Any]) -> str:
        seen.append((job.attempt, job.last_error))
        if job.attempt == 1:
            raise Broken("no luck")
        return "luck"

    chain = lucky.enqueue()
    work()
    Job.objects.update(run_at=chain.created_at)
    work()
    assert seen == [(1, None), (2, "Broken: no luck")]
    job = chain.refresh().current_job
    assert (job.status, job.output, job.last_error) == ("completed", "luck", None)
