"""``expires``: a job that has not started by then is cancelled, and its chain raises ``ChainCancelled``."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobchains import chains
from django_jobchains.exceptions import ChainCancelled
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.testing import clock, run_due_jobs
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db

anything = JobType("anything")
MINUTE = timedelta(minutes=1)
PAST = datetime(2001, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59)  # noqa: DTZ001


@pytest.fixture
def quick(processors):
    return processors.register("expires.quick")(lambda job: job.attempt)


def expired(chain):
    chain.refresh()
    assert chain.is_expired is chain.current_job.is_expired
    return chain.is_expired


# What is stored


def test_without_expires_a_job_does_not_expire():
    assert anything.enqueue().current_job.expires_at is None


def test_a_time_is_stored_exactly():
    time = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=timezone(timedelta(hours=1)))
    chain = anything.enqueue(expires=time).refresh()
    assert chain.expires_at == chain.current_job.expires_at == time


@pytest.mark.parametrize(
    "options", [{}, {"delay": 3600}, {"run_at": datetime(2091, 1, 1, tzinfo=UTC)}, {"run_at": PAST}], ids=str
)
def test_a_length_of_time_counts_from_when_the_job_is_due(options):
    job = anything.enqueue(expires=5 * MINUTE, **options).current_job
    assert abs(job.expires_at - job.run_at - 5 * MINUTE) < timedelta(milliseconds=2)


def test_every_way_to_enqueue_takes_it():
    time = datetime(2091, 1, 1, tzinfo=UTC)
    made = [
        anything.enqueue(expires=time),
        chains.enqueue(anything, None, expires=time),
        *chains.enqueue_many([anything.item(expires=time)]),
        async_to_sync(anything.aenqueue)(expires=time),
        async_to_sync(chains.aenqueue)(anything, None, expires=time),
    ]
    assert [chain.current_job.expires_at for chain in made] == [time] * 5


def test_each_step_of_a_chain_has_its_own_limit(processors, quick):
    @processors.register("expires.first")
    def first(job):
        return job.continue_with(quick, expires=MINUTE)

    chain = first.enqueue(expires=MINUTE)
    run_due_jobs(limit=1)
    before, after = chain.jobs
    assert (before.status, after.status) == ("completed", "pending")
    assert before.expires_at < after.expires_at
    with clock() as time:
        time.advance(90)
        assert run_due_jobs() == []
    assert expired(chain)


def test_a_step_without_expires_does_not_expire(processors, quick):
    chain = processors.register("expires.first")(lambda job: job.continue_with(quick)).enqueue(expires=MINUTE)
    run_due_jobs()
    assert (chain.refresh().status, chain.expires_at) == ("completed", None)


def test_a_completion_without_a_worker_takes_it():
    chain = anything.enqueue()
    with transaction.atomic(), chains.current_job(chain) as current:
        current.continue_with(anything, expires=MINUTE)
    assert chain.refresh().expires_at is not None


@pytest.mark.parametrize(
    ("expires", "error", "text"),
    [
        (timedelta(0), ValueError, "expires=datetime.timedelta(0) is not a duration"),
        (-MINUTE, ValueError, "is not a duration"),
        (timedelta(days=400_000), ValueError, "is longer than a thousand years."),
        (datetime(2091, 1, 1), ValueError, "has no time zone"),  # noqa: DTZ001
        (LATEST.replace(tzinfo=timezone(-timedelta(hours=1))), ValueError, "after the year 9999"),
        (True, TypeError, "expires=True is not a duration or a time: pass seconds, a timedelta, a text such as"),
        (-5, ValueError, "expires=-5 is not a duration"),
        ("5 minutes", TypeError, "is not a duration or a time"),
        (True, TypeError, "is not a duration or a time"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(expires, error, text):
    for call in (anything.enqueue, anything.item):
        with pytest.raises(error, match=re.escape(text)):
            call(expires=expires)
    assert not Job.objects.exists()


def test_a_limit_that_would_be_after_the_last_year_is_refused():
    with pytest.raises(ValueError, match="after the year 9999"):
        anything.enqueue(run_at=LATEST.replace(tzinfo=UTC), expires=timedelta(days=30))


# What happens


@pytest.mark.parametrize("expires", [PAST, MINUTE], ids=str)
@pytest.mark.parametrize("options", [{}, {"delay": 30}, {"run_at": PAST}], ids=str)
def test_a_job_that_has_not_started_in_time_is_cancelled(quick, expires, options):
    chain = quick.enqueue(expires=expires, **options)
    with clock() as time:
        time.advance(0 if expires == PAST else 91)
        assert run_due_jobs() == []
    assert (chain.refresh().status, expired(chain), chain.current_job.attempt) == ("cancelled", True, 0)
    with pytest.raises(ChainCancelled, match=f"Chain {chain.id} has expired: its job did not start in time") as raised:
        chain.result(0)
    assert raised.value.is_expired


def test_a_job_starts_in_time(quick):
    chain = quick.enqueue(delay=30, expires=MINUTE)
    with clock() as time:
        time.advance(80)
        [outcome] = run_due_jobs()
    assert (outcome.ending, expired(chain)) == ("completed", False)


def test_a_time_before_the_job_is_due_is_accepted_and_nothing_starts(quick):
    chain = quick.enqueue(delay=3600, expires=database_now() + MINUTE)
    with clock() as time:
        time.advance(90)
        assert run_due_jobs() == []
        assert expired(chain)


def test_a_retry_after_the_time_runs(processors):
    @processors.register("expires.fails_once")
    def fails_once(job):
        if job.attempt == 1:
            raise ValueError("again")
        return "done"

    chain = fails_once.enqueue(expires=MINUTE)
    run_due_jobs(limit=1)
    with clock() as time:
        time.advance(3600)
        [outcome] = run_due_jobs()
    assert (outcome.ending, chain.refresh().output) == ("completed", "done")


def test_a_batch_contains_only_jobs_that_have_not_expired(processors):
    sizes = []

    @processors.register("expires.batch", batch_limit=10)
    def batch(batch):
        sizes.append(len(batch))

    late = [batch.enqueue(expires=MINUTE) for _ in range(3)]
    with clock() as time:
        time.advance(90)
        chains.enqueue_many([batch.item(), batch.item(expires=MINUTE)])
        assert len(run_due_jobs()) == 2
    assert (sizes, [expired(chain) for chain in late]) == ([2], [True] * 3)


def test_time_runs_on_while_a_job_is_blocked(quick):
    chain = quick.enqueue(blockers=[anything.enqueue()], expires=MINUTE)
    with clock() as time:
        time.advance(90)
        run_due_jobs()
    assert expired(chain)


def test_a_cancelled_chain_has_not_expired(quick):
    chain = quick.enqueue(expires=MINUTE)
    chains.cancel(chain)
    with pytest.raises(ChainCancelled, match="was cancelled") as raised:
        chain.result(0)
    assert (raised.value.is_expired, expired(chain)) == (False, False)


def test_a_retry_of_an_expired_job_runs_without_a_limit(quick):
    chain = quick.enqueue(expires=PAST)
    run_due_jobs()
    chains.retry(chain)
    assert (chain.refresh().status, chain.expires_at, expired(chain)) == ("pending", None, False)
    [outcome] = run_due_jobs()
    assert outcome.ending == "completed"
