"""The circuit breaker: after a failure, calls do not wait for an unreachable server."""

from contextlib import suppress
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


def fail(breaker, error=None):
    with suppress(OSError, ValueError), breaker.attempt():
        raise error or OSError("refused")


def is_allowed(breaker):
    """Return whether the breaker allows an attempt, which then fails."""
    attempts = []
    with suppress(OSError, Unreachable), breaker.attempt():
        attempts.append(True)
        raise OSError("refused")
    return bool(attempts)


def test_one_attempt_is_allowed_after_the_pause(clock):
    breaker = CircuitBreaker(OSError)
    fail(breaker)
    clock.now += 0.49
    assert not is_allowed(breaker)
    clock.now += 0.01
    with breaker.attempt():
        assert not is_allowed(breaker), "only one attempt is allowed at a time"
    assert is_allowed(breaker)


def test_each_failure_doubles_the_pause_up_to_ten_seconds(clock):
    breaker, allowed_at = CircuitBreaker(OSError), []
    for _ in range(600):
        if is_allowed(breaker):
            allowed_at.append(clock.now - 100)
        clock.now += 0.1
    pauses = [later - earlier for earlier, later in pairwise(allowed_at)]
    assert pauses[:7] == pytest.approx([0.5, 1, 2, 4, 8, 10, 10], abs=0.11)


def test_failure_of_an_earlier_attempt_does_not_extend_the_pause(clock):
    breaker = CircuitBreaker(OSError)
    slow = breaker.attempt()
    slow.__enter__()
    fail(breaker)
    for _ in range(3):
        clock.now += 10
        assert is_allowed(breaker)
    clock.now += 2
    with suppress(OSError):
        slow.__exit__(OSError, OSError("timed out"), None)
    clock.now += 1.9
    assert not is_allowed(breaker)
    clock.now += 0.2
    assert is_allowed(breaker)


def test_any_response_closes_the_breaker(clock):
    for error in (None, ValueError("no permission")):
        breaker = CircuitBreaker(OSError)
        fail(breaker)
        clock.now += 1
        if error:
            fail(breaker, error)
        else:
            with breaker.attempt():
                pass
        with breaker.attempt():
            pass


def test_refusal_names_the_last_error(clock):
    breaker = CircuitBreaker(OSError)
    fail(breaker)
    with pytest.raises(Unreachable, match=r"for another 0\.5 s, after OSError: refused"), breaker.attempt():
        pass
