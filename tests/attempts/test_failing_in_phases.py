"""An exception rolls back the writes of the phase in which it is raised, in plain and async handlers and in batches."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from tests.support.attempts import committed
from tests.support.scenario import complete, effects, outside, prepare, write

pytestmark = committed


class Broken(Exception):
    pass


def assert_rescheduled(chains, error="Broken: no luck"):
    """Check that the jobs are pending after the backoff of 100 seconds, and have one failed attempt and no output."""
    for chain in chains:
        (job,) = chain.refresh().jobs
        (failed,) = job.failed_attempts.all()
        assert (job.status, job.attempt, job.output) == ("pending", 1, None)
        assert job.last_error.startswith(error)
        assert (job.leased_by, job.leased_until, job.finished_at) == (None, None, None)
        # The two times are written in two statements.
        assert timedelta(seconds=99) < job.run_at - failed.finished_at < timedelta(seconds=130)


def outside_of_the_phases(jobs, mode):
    yield outside(write(jobs, "outside"))


def in_prepare(jobs, mode):
    yield prepare(write(jobs, "prepared", Broken("no luck")), mode)


def between_the_phases(jobs, mode):
    yield prepare(write(jobs, "prepared"), mode)


def in_complete(jobs, mode):
    yield prepare(write(jobs, "prepared"), mode)
    yield complete(write(jobs, "completed", Broken("no luck")))


def after_complete(jobs, mode):
    yield prepare(write(jobs, "prepared"), mode)
    yield complete(write(jobs, "completed"))


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
def test_exception_rolls_back_its_phase_and_an_atomic_prepare(scenario, work, place, mode, left):
    def broken(jobs):
        yield from place(jobs, mode)
        raise Broken("no luck")

    chains = scenario.enqueue(broken)
    work()
    assert_rescheduled(chains)
    assert effects() == left


def test_staged_prepare_is_committed_at_once_and_complete_at_the_end(scenario, work):
    seen: list[Any] = []

    def fine(jobs):
        seen.append((yield prepare(write(jobs, "prepared"))))
        seen.append((yield outside(lambda: connection.in_atomic_block)))
        seen.append((yield complete(write(jobs, "completed"))))
        return "done"

    chains = scenario.enqueue(fine)
    work()
    assert seen == ["prepared", False, "completed"]
    assert [chain.refresh().status for chain in chains] == ["completed"] * len(chains)
    assert effects() == ["prepared", "completed"]


def test_exception_after_complete_rolls_back_its_continuation_and_the_chains_enqueued_in_it(scenario, processors, work):
    other = processors.register("other")(lambda job: None)

    def broken(jobs):
        def enqueue():
            other.enqueue()
            for job in jobs:
                job.continue_with(other)

        yield complete(enqueue)
        raise Broken("no luck")

    chains = scenario.enqueue(broken)
    work()
    assert_rescheduled(chains)
    assert Job.objects.count() == len(chains)


@pytest.mark.parametrize("scenario", ["plain", "batch"], indirect=True)
def test_exception_in_atomic_mode_rolls_back_all_writes(scenario, work):
    def broken(jobs):
        yield outside(write(jobs, "done", Broken("no luck")))

    chains = scenario.enqueue(broken, mode="atomic")
    work()
    assert_rescheduled(chains)
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
