"""The circuit breaker: after a failure, calls do not wait for an unreachable server."""

from contextlib import nullcontext, suppress
from itertools import pairwise

import pytest

from django_jobchains.notifications import redis
from django_jobchains.notifications.redis import CircuitBreaker, Unreachable
from tests.support.clocks import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(redis, "time", clock)
    return clock


@pytest.fixture
def breaker(clock):
    """A breaker right after a failure."""
    breaker = CircuitBreaker(OSError)
    assert fails(breaker)
    return breaker


def fails(breaker, error=None):
    """Return whether the breaker allows an attempt, which then fails."""
    with suppress(Unreachable):
        with suppress(OSError, ValueError), breaker.attempt():
            raise error or OSError("refused")
        return True
    return False


def test_one_attempt_is_allowed_after_the_pause(breaker, clock):
    clock.now += 0.49
    with pytest.raises(Unreachable, match=r"for another 0\.0 s, after OSError: refused"), breaker.attempt():
        pass
    clock.now += 0.01
    with breaker.attempt():
        assert not fails(breaker), "only one attempt is allowed at a time"
    assert fails(breaker)


def test_each_failure_doubles_the_pause_up_to_ten_seconds(clock):
    breaker, allowed_at = CircuitBreaker(OSError), []
    for _ in range(600):
        if fails(breaker):
            allowed_at.append(clock.now)
        clock.now += 0.1
    pauses = [later - earlier for earlier, later in pairwise(allowed_at)]
    assert pauses[:7] == pytest.approx([0.5, 1, 2, 4, 8, 10, 10], abs=0.11)


def test_failure_of_an_earlier_attempt_does_not_extend_the_pause(clock):
    breaker = CircuitBreaker(OSError)
    slow = breaker.attempt()
    slow.__enter__()
    for _ in range(4):
        assert fails(breaker)
        clock.now += 10
    clock.now -= 8
    with suppress(OSError):
        slow.__exit__(OSError, OSError("timed out"), None)
    clock.now += 1.9
    assert not fails(breaker)
    clock.now += 0.2
    assert fails(breaker)


@pytest.mark.parametrize("answer", [nullcontext(), pytest.raises(ValueError, match="no permission")])
def test_any_response_closes_the_breaker(breaker, clock, answer):
    clock.now += 1
    with answer, breaker.attempt():
        if not isinstance(answer, nullcontext):
            raise ValueError("no permission")
    with breaker.attempt():
        pass
