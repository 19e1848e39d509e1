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

pytestmark = committed

Steal = Callable[[UUID], None]


def assert_untouched(job_id: UUID) -> None:
    """Check that the job still runs for the other worker, and that the stale attempt has written nothing."""
    (job,) = Job.objects.filter(chain_id=job_id)
    assert (job.status, job.lease_number, job.attempt, job.output, job.last_error) == ("running", 2, 1, None, None)
    assert job.leased_until is not None
    assert not FailedAttempt.objects.exists()
    assert not Effect.objects.exists()


@pytest.mark.parametrize("phase", ["prepare", "complete"])
def test_phase_raises_lease_lost_before_the_handler_writes(processors, work, steal, phase):
    raised: list[LeaseLost] = []

    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> str:
        steal(job.id)
        try:
            with getattr(job, phase)():
                Effect.objects.create(job_id=job.id, label="stale")
        except LeaseLost as error:
            raised.append(error)
            raise
        return "stale"

    chain = slow.enqueue()
    work()
    assert [(error.job_id, error.reason) for error in raised] == [(chain.id, "taken_by_another_worker")]
    assert_untouched(chain.id)


def test_handler_that_swallows_lease_lost_still_writes_nothing(processors, work, steal):
    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> str:
        steal(job.id)
        try:
            with job.complete():
                Effect.objects.create(job_id=job.id, label="stale")
        except LeaseLost:
            pass
        return "stale"

    chain = slow.enqueue()
    work()
    assert_untouched(chain.id)


def returns(job: RunningJob[Any]) -> str:
    return "stale"


def continues(job: RunningJob[Any]) -> Any:
    return job.continue_with("slow", 2)


def raising(error: BaseException) -> Callable[[RunningJob[Any]], Any]:
    def raises(job: RunningJob[Any]) -> None:
        raise error

    return raises


@pytest.mark.parametrize(
    "end",
    [
        returns,
        continues,
        *map(raising, (ValueError("stale"), FailJob("stale"), RescheduleJob(delay=5), SystemExit())),
    ],
)
def test_no_outcome_of_a_stale_attempt_is_written(processors, work, steal, end):
    @processors.register("slow")
    def slow(job: RunningJob[Any]) -> Any:
        steal(job.id)
        return end(job)

    chain = slow.enqueue()
    work()
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
