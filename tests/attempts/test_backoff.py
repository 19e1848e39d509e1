"""``Backoff`` computes min(initial * multiplier ** (attempt - 1), maximum), less a random part of the jitter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobchains.attempts.outcome import crashed_try
from django_jobchains.declare.policies import Policy, resolve
from django_jobchains.pools import ChildCrashed
from django_jobchains.processors import Backoff, Lease, Registry
from django_jobchains.store import get_store
from tests.support.jobs import running_job

seconds = st.floats(min_value=0, max_value=1e9, allow_nan=False)
multipliers = st.floats(min_value=1, max_value=100)
shares = st.floats(min_value=0, max_value=1)
attempts = st.integers(min_value=1, max_value=100_000)


def test_defaults_are_10_seconds_doubled_up_to_an_hour():
    waits = [Backoff().seconds(failures, share=0) for failures in range(1, 12)]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]


@given(seconds, multipliers, seconds, attempts)
def test_without_jitter_the_wait_follows_the_formula(initial, multiplier, maximum, attempt):
    wait = Backoff(initial, multiplier, maximum, jitter=0).seconds(attempt)
    try:
        assert wait == min(initial * multiplier ** (attempt - 1), maximum)
    except OverflowError:
        assert wait in (maximum, 0)


@given(seconds, multipliers, seconds, shares, attempts)
def test_jitter_reduces_the_wait_by_at_most_its_share(initial, multiplier, maximum, jitter, attempt):
    full = Backoff(initial, multiplier, maximum, jitter=0).seconds(attempt)
    wait = Backoff(initial, multiplier, maximum, jitter).seconds(attempt)
    assert full * (1 - jitter) - 1e-6 <= wait <= full


@given(seconds, multipliers, seconds, shares, attempts, attempts)
def test_later_attempts_never_wait_shorter(initial, multiplier, maximum, share, one, other):
    backoff = Backoff(initial, multiplier, maximum)
    first, second = sorted((one, other))
    assert backoff.seconds(first, share) <= backoff.seconds(second, share)


def test_initial_wait_of_zero_remains_zero():
    assert Backoff(initial_seconds=0).seconds(100_000) == 0


@pytest.mark.django_db
def test_the_wait_after_each_crash_grows_until_the_limit_of_crashes(processors, settings):
    settings.JOBCHAINS = {"MAX_CRASHES": 4}
    registry = Registry()
    processors.register("ship")(lambda job: None)
    registry.add(processors)
    processor = registry.processor("ship")
    policy = resolve(Policy(Backoff(1, 10, 1000, jitter=0)))
    job = running_job(get_store())
    outcomes = [crashed_try(job._replace(crashes=n), processor, policy, ChildCrashed(-9), "") for n in range(4)]
    assert [outcome.failed and outcome.failed.delay_seconds for outcome in outcomes] == [1, 10, 100, None]


def test_jitter_spreads_the_retries_of_jobs_that_failed_together():
    waits = [Backoff(100, jitter=0.5).seconds(1) for _ in range(200)]
    assert len(set(waits)) > 100
    assert min(waits) < 70
    assert max(waits) > 80


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_seconds": -1},
        {"maximum_seconds": -1},
        {"multiplier": 0.5},
        {"jitter": -0.1},
    ],
)
def test_invalid_backoff_is_refused(wrong):
    [(field, value)] = wrong.items()
    with pytest.raises(ValueError, match=rf"^{field}={value} is not a "):
        Backoff(**wrong)


@pytest.mark.parametrize("wrong", [0, math.nan])
def test_lease_must_be_longer_than_zero_seconds(wrong):
    with pytest.raises(ValueError, match=r"lease=.* more than 0 seconds"):
        Lease(wrong)
