"""An attempt whose lease number is outdated writes nothing, however it ends."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import FailJob, RescheduleJob, RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.scenario import complete, outside, prepare, write

pytestmark = committed

Steal = Callable[[UUID], None]


def assert_untouched(job_id: UUID) -> None:
    """Check that the job still runs for the other worker, and that the stale attempt has written nothing."""
    (job,) = Job.objects.filter(chain_id=job_id)
    assert (job.status, job.lease_number, job.attempt, job.output, job.last_error) == ("running", 2, 1, None, None)
    assert job.leased_until is not None
    assert not FailedAttempt.objects.exists()
    assert not Effect.objects.exists()


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("phase", [prepare, complete], ids=["prepare", "complete"])
def test_phase_raises_lease_lost_before_the_handler_writes(scenario, work, steal, phase, swallows):
    raised: list[LeaseLost] = []

    def slow(jobs):
        yield outside(lambda: [steal(job.id) for job in jobs])
        try:
            yield phase(write(jobs, "stale"))
        except LeaseLost as error:
            raised.append(error)
            if not swallows:
                raise
        return None if scenario.kind == "batch" else "stale"

    chains = scenario.enqueue(slow)
    work()
    assert [(error.job_id, error.reason) for error in raised] == [(chains[0].id, "taken_by_another_worker")]
    for chain in chains:
        assert_untouched(chain.id)


ENDS = [None, "continues", ValueError("stale"), FailJob("stale"), RescheduleJob(delay=5), SystemExit()]


@pytest.mark.parametrize("end", ENDS)
def test_no_outcome_of_a_stale_attempt_is_written(scenario, work, steal, end):
    def slow(jobs):
        yield outside(lambda: [steal(job.id) for job in jobs])
        if isinstance(end, BaseException):
            raise end
        if end == "continues":
            continuations = [job.continue_with("scenario", 2) for job in jobs]
            return continuations[0]
        return None

    chains = scenario.enqueue(slow)
    work()
    for chain in chains:
        assert_untouched(chain.id)


def test_lease_lost_between_the_phases_keeps_only_what_prepare_committed(processors, work, steal):
    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> str:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")
        steal(job.id)
        with job.complete():
            Effect.objects.create(job_id=job.id, label="stale")
        return "stale"

    chain = slow.enqueue()
    work()
    assert [effect.label for effect in Effect.objects.all()] == ["prepared"]
    assert (chain.refresh().status, chain.output) == ("running", None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("completed", "already_completed"),
        ("cancelled", "cancelled"),
        ("pending", "taken_by_another_worker"),
        ("failed", "taken_by_another_worker"),
    ],
)
def test_lease_lost_has_the_reason(processors, work, status, reason):
    reasons: list[str] = []

    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> None:
        later = "2091-01-01T00:00Z"
        end = {"status": status, "output": "by hand", "leased_by": None, "leased_until": None, "run_at": later}
        on_own_connection(lambda: Job.objects.filter(pk=job.id).update(**end))
        try:
            with job.complete():
                Effect.objects.create(job_id=job.id, label="stale")
        except LeaseLost as error:
            reasons.append(error.reason)
            raise

    chain = slow.enqueue()
    work()
    assert reasons == [reason]
    assert chain.refresh().status == status
    assert not Effect.objects.exists()
    assert not FailedAttempt.objects.exists()


def test_deleted_job_is_not_found_and_stays_deleted(processors, work):
    reasons: list[str] = []

    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> str:
        on_own_connection(lambda: Job.objects.filter(pk=job.id).delete())
        try:
            with job.complete():
                pass
        except LeaseLost as error:
            reasons.append(error.reason)
        return "stale"

    slow.enqueue()
    work()
    assert reasons == ["not_found"]
    assert not Job.objects.exists()
    assert not FailedAttempt.objects.exists()


def test_other_jobs_are_completed_beside_a_stale_attempt(processors, work, steal):
    """Their outcomes may be written in one statement with the stale one."""

    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> Any:
        if job.input == "stolen":
            steal(job.id)
        return job.input

    chains = [slow.enqueue(value) for value in ("a", "stolen", "b", "c")]
    work(slots=4)
    assert [(chain.refresh().status, chain.output) for chain in chains] == [
        ("completed", "a"),
        ("running", None),
        ("completed", "b"),
        ("completed", "c"),
    ]
