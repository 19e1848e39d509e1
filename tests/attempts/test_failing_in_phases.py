"""An exception rolls back the writes of the phase in which it is raised."""

from datetime import timedelta
from typing import Any

import pytest

from django_jobchains.models import Chain, Job
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


class Broken(Exception):
    pass


def effects() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("label", flat=True))


def assert_rescheduled(chain: Chain) -> None:
    """Check that the job is pending after the backoff of 100 seconds, and has one failed attempt and no output."""
    (job,) = chain.refresh().jobs
    (failed,) = job.failed_attempts.all()
    assert (job.status, job.attempt, job.last_error, job.output) == ("pending", 1, "Broken: no luck", None)
    assert (job.leased_by, job.leased_until, job.finished_at) == (None, None, None)
    # The two times are written in two statements.
    assert timedelta(seconds=99) < job.run_at - failed.finished_at < timedelta(seconds=130)


def write(job: RunningJob[Any], label: str) -> None:
    Effect.objects.create(job_id=job.id, label=label)


def outside_of_the_phases(job: RunningJob[Any], mode: Any) -> None:
    write(job, "outside")
    raise Broken("no luck")


def in_prepare(job: RunningJob[Any], mode: Any) -> None:
    with job.prepare(mode=mode):
        write(job, "prepared")
        raise Broken("no luck")


def between_the_phases(job: RunningJob[Any], mode: Any) -> None:
    with job.prepare(mode=mode):
        write(job, "prepared")
    raise Broken("no luck")


def in_complete(job: RunningJob[Any], mode: Any) -> None:
    with job.prepare(mode=mode):
        write(job, "prepared")
    with job.complete():
        write(job, "completed")
        raise Broken("no luck")


def after_complete(job: RunningJob[Any], mode: Any) -> None:
    with job.prepare(mode=mode):
        write(job, "prepared")
    with job.complete():
        write(job, "completed")
    raise Broken("no luck")


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
def test_exception_rolls_back_its_phase_and_an_atomic_prepare(processors, work, place, mode, left):
    chain = processors.register("broken")(lambda job: place(job, mode)).enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == left


def test_exception_after_complete_rolls_back_the_continuation_and_chains_enqueued_in_it(processors, work):
    other = processors.register("other")(lambda job: None)

    @processors.register("broken")
    def broken(job: RunningJob[Any]) -> Any:
        try:
            with job.complete():
                other.enqueue()
                return job.continue_with(other)
        finally:
            raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert Job.objects.count() == 1


def test_exception_in_atomic_mode_rolls_back_all_writes(processors, work):
    @processors.register("broken", mode="atomic")
    def broken(job: RunningJob[Any]) -> None:
        Effect.objects.create(job_id=job.id, label="done")
        raise Broken("no luck")

    chain = broken.enqueue()
    work()
    assert_rescheduled(chain)
    assert effects() == []


def test_next_attempt_can_read_the_last_error(processors, work):
    seen: list[tuple[int, str | None]] = []

    @processors.register("fails once")
    def fails_once(job: RunningJob[Any]) -> str:
        seen.append((job.attempt, job.last_error))
        if job.attempt == 1:
            raise Broken("no luck")
        return "done"

    chain = fails_once.enqueue()
    work()
    Job.objects.update(run_at=chain.created_at)
    work()
    assert seen == [(1, None), (2, "Broken: no luck")]
    job = chain.refresh().current_job
    assert (job.status, job.output, job.last_error) == ("completed", "done", None)
