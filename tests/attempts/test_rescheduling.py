"""A handler requests another attempt with ``RescheduleJob``, which is not a failure."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, RescheduleJob
from tests.attempts.test_retrying import Broken, wait_of
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


def rescheduled_by(chain):
    """Return the seconds from the start of the attempt to the next one. They include the time of the attempt."""
    job = chain.refresh().current_job
    assert job.last_attempt_at is not None
    return (job.run_at - job.last_attempt_at).total_seconds()


def reschedule(processors, **options):
    @processors.register("later")
    def later(job):
        raise RescheduleJob(**options)

    return later.enqueue()


@pytest.mark.parametrize(
    ("delay", "seconds"), [(30, 30), (0.5, 0.5), (timedelta(minutes=2), 120), (timedelta(days=400), 34_560_000)]
)
def test_job_is_rescheduled_by_the_given_delay(processors, work, delay, seconds):
    chain = reschedule(processors, delay=delay)
    work()
    assert seconds - 0.1 <= rescheduled_by(chain) < seconds + 20
    assert chain.status == "pending"


def test_job_is_rescheduled_to_the_given_time(processors, work):
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    chain = reschedule(processors, run_at=run_at)
    work()
    assert chain.refresh().current_job.run_at == run_at


@pytest.mark.parametrize("options", [{"run_at": datetime(2000, 1, 1, tzinfo=UTC)}, {"delay": 0}, {"delay": -5}])
def test_time_in_the_past_means_now(processors, work, options):
    seen = []

    @processors.register("later")
    def later(job):
        seen.append(job.run_at)
        if job.attempt == 1:
            raise RescheduleJob(**options)

    chain = later.enqueue()
    work()
    assert len(seen) == 2
    assert chain.created_at <= seen[1] <= Job.objects.get().last_attempt_at


def test_rescheduling_is_not_a_failure(processors, work):
    """It is not recorded as a failed attempt, and counts neither for the limit of attempts nor for the backoff."""
    backoff = Backoff(initial_seconds=7, multiplier=3, maximum_seconds=1_000, jitter=0)

    @processors.register("later", max_attempts=2, backoff=backoff)
    def later(job):
        if job.attempt <= 4:
            raise RescheduleJob(delay=0)
        raise Broken("no luck")

    chain = later.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.reschedules, job.counted_attempts) == ("pending", 5, 4, 1)
    assert [failed.attempt for failed in job.failed_attempts.all()] == [5]
    assert 7 <= wait_of(chain) < 37  # two clocks are read, at different times
    Job.objects.update(run_at=chain.created_at)
    work()
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 6)


def test_rescheduling_keeps_the_last_error(processors, work):
    @processors.register("later", backoff=Backoff(initial_seconds=0))
    def later(job):
        if job.attempt == 1:
            raise Broken("no luck")
        raise RescheduleJob(delay=30)

    chain = later.enqueue()
    work()
    assert (chain.refresh().status, chain.current_job.last_error) == ("pending", "Broken: no luck")


def test_rescheduling_in_complete_rolls_back_its_writes(processors, work):
    @processors.register("later")
    def later(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            raise RescheduleJob(delay=30)

    chain = later.enqueue()
    work()
    assert 29.9 <= rescheduled_by(chain) < 50
    assert not Effect.objects.exists()


@pytest.mark.parametrize(
    "options", [{}, {"delay": 1, "run_at": datetime(2091, 1, 1, tzinfo=UTC)}, {"delay": None, "run_at": None}]
)
def test_rescheduling_takes_either_a_delay_or_a_date(options):
    with pytest.raises(TypeError, match="one of them"):
        RescheduleJob(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2091, 1, 1)},  # noqa: DTZ001
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},  # in the year 10000 of UTC
        {"run_at": "tomorrow"},
        {"delay": "a while"},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e15},
        {"delay": timedelta.max},
    ],
)
def test_rescheduling_to_an_invalid_time_is_a_failure(processors, work, options):
    chain = reschedule(processors, **options)
    work()
    assert 100 <= wait_of(chain) < 130
    failed = FailedAttempt.objects.get()
    assert "raise RescheduleJob(**options)" in failed.traceback


def test_fail_on_and_retry_if_do_not_apply_to_rescheduling(processors, work):
    @processors.register("later", fail_on=Exception, retry_if=lambda error: False)
    def later(job):
        raise RescheduleJob(delay=30)

    chain = later.enqueue()
    work()
    assert chain.refresh().status == "pending"
