"""A handler requests another attempt with ``RescheduleJob``, which is not a failure."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, RescheduleJob
from tests.attempts.test_retrying import Broken, assert_waits
from tests.support.attempts import committed
from tests.support.scenario import complete, effects, write

pytestmark = committed


def rescheduled_by(chain):
    """Return the seconds from the start of the attempt to the next one. They include the time of the attempt."""
    job = chain.refresh().current_job
    return (job.run_at - job.last_attempt_at).total_seconds()


@pytest.fixture
def reschedule(processors, work):
    def reschedule(rules, **options):
        @processors.register("later", **rules)
        def later(job):
            raise RescheduleJob(**options)

        chain = later.enqueue()
        work()
        return chain.refresh()

    return reschedule


@pytest.mark.parametrize(
    ("delay", "seconds"), [(30, 30), (0.5, 0.5), (timedelta(minutes=2), 120), (timedelta(days=400), 34_560_000)]
)
def test_job_is_rescheduled_by_the_given_delay(reschedule, delay, seconds):
    chain = reschedule({}, delay=delay)
    assert seconds - 0.1 <= rescheduled_by(chain) < seconds + 20
    assert chain.status == "pending"


def test_job_is_rescheduled_to_the_given_time_whatever_fail_on_and_retry_if_say(reschedule):
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    chain = reschedule({"fail_on": Exception, "retry_if": lambda error: False}, run_at=run_at)
    assert (chain.status, chain.current_job.run_at) == ("pending", run_at)


@pytest.mark.parametrize("options", [{"run_at": datetime(2000, 1, 1, tzinfo=UTC)}, {"delay": 0}])
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
    assert_waits(chain, 7)
    Job.objects.update(run_at=chain.created_at)
    work()
    assert (chain.refresh().status, chain.current_job.attempt) == ("failed", 6)


def test_rescheduling_in_complete_rolls_back_its_writes(scenario):
    scenario.enqueue(lambda jobs: (yield complete(write(jobs, "half", RescheduleJob(delay=30)))))
    scenario.run()
    assert (scenario.states(), effects()) == ({"waiting"}, [])


@pytest.mark.parametrize(
    ("options", "cause", "text"),
    [
        ({}, None, "Broken: no luck"),
        ({"reason": "the bank is closed"}, None, "the bank is closed"),
        ({}, ValueError("busy"), "ValueError: busy"),
        ({"reason": "the bank is closed"}, ValueError("busy"), "the bank is closed"),
        ({"reason": "\0"}, None, "\ufffd"),
    ],
)
def test_reason_or_cause_becomes_the_last_error_which_is_kept_otherwise(processors, work, options, cause, text):
    seen = []

    @processors.register("later", backoff=Backoff(initial_seconds=0))
    def later(job):
        seen.append(job.last_error)
        if job.attempt == 1:
            raise Broken("no luck")
        if job.attempt == 2:
            raise RescheduleJob(delay=0, **options) from cause

    chain = later.enqueue()
    work()
    assert seen == [None, "Broken: no luck", text]
    assert chain.refresh().last_error is None


def test_jobs_of_a_batch_have_reasons(processors, work):
    later = processors.register("later", batch_limit=2)(lambda jobs: jobs[0].reschedule(delay=60, reason="not yet"))
    chain = later.enqueue()
    work()
    assert chain.refresh().current_job.last_error == "not yet"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of them"),
        ({"delay": 1, "run_at": datetime(2091, 1, 1, tzinfo=UTC)}, "one of them"),
        ({"delay": None, "run_at": None}, "one of them"),
        ({"delay": 1, "reason": 5}, "reason=5 is not a string"),
    ],
)
def test_rescheduling_takes_either_a_delay_or_a_date_and_a_text(options, words):
    with pytest.raises(TypeError, match=words):
        RescheduleJob(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2091, 1, 1)},  # noqa: DTZ001
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},  # in the year 10000 of UTC
        {"run_at": "tomorrow"},
        {"delay": float("nan")},
        {"delay": -5},
        {"delay": 1e15},
        {"delay": timedelta.max},
    ],
)
def test_rescheduling_to_an_invalid_time_is_a_failure(reschedule, options):
    assert_waits(reschedule({}, **options), 100)
    assert "raise RescheduleJob(**options)" in FailedAttempt.objects.get().traceback
