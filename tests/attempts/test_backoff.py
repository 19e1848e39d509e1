"""Backoff alone: min(initial * multiplier ** (attempt - 1), maximum), less a random share of the jitter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobchains.processors import Backoff, Lease

seconds = st.floats(min_value=0, max_value=1e9, allow_nan=False)
multipliers = st.floats(min_value=1, max_value=100)
shares = st.floats(min_value=0, max_value=1)
attempts = st.integers(min_value=1, max_value=100_000)


def test_the_defaults_are_10_seconds_doubled_up_to_300() -> None:
    waits = [Backoff().seconds(attempt, share=0) for attempt in range(1, 9)]
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


@given(seconds, multipliers, seconds, attempts)
def test_without_chance_it_is_the_formula(initial: float, multiplier: float, maximum: float, attempt: int) -> None:
    wait = Backoff(initial, multiplier, maximum, jitter=0).seconds(attempt)
    try:
        assert wait == min(initial * multiplier ** (attempt - 1), maximum)
    except OverflowError:
        assert wait in (maximum, 0)


@given(seconds, multipliers, seconds, shares, attempts)
def test_jitter_takes_away_at_most_its_share(
    initial: float, multiplier: float, maximum: float, jitter: float, attempt: int
) -> None:
    full = Backoff(initial, multiplier, maximum, jitter=0).seconds(attempt)
    wait = Backoff(initial, multiplier, maximum, jitter).seconds(attempt)
    assert full * (1 - jitter) - 1e-6 <= wait <= full


@given(seconds, multipliers, seconds, shares, attempts, attempts)
def test_it_never_shrinks_as_attempts_go_on(
    initial: float, multiplier: float, maximum: float, share: float, one: int, other: int
) -> None:
    backoff = Backoff(initial, multiplier, maximum)
    first, second = sorted((one, other))
    assert backoff.seconds(first, share) <= backoff.seconds(second, share)


@given(attempts, shares)
def test_it_is_finite_and_within_the_maximum(attempt: int, share: float) -> None:
    wait = Backoff().seconds(attempt, share)
    assert math.isfinite(wait)
    assert 0 <= wait <= 300


def test_an_initial_wait_of_nothing_stays_nothing_however_often() -> None:
    assert Backoff(initial_seconds=0).seconds(100_000) == 0


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
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
        {"jitter": 1.1},
        {"initial_seconds": math.nan},
        {"multiplier": math.nan},
        {"jitter": math.nan},
    ],
)
def test_a_wrong_backoff_is_refused(wrong: dict[str, float]) -> None:
    [(field, value)] = wrong.items()
    with pytest.raises(ValueError, match=rf"^{field}={value} is not valid: use a number"):
        Backoff(**wrong)


@pytest.mark.parametrize("wrong", [0, -1, math.nan])
def test_a_lease_without_a_length_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Lease(wrong)
