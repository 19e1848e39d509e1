"""After a failure nobody waits for a server that is away."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from django_jobchains.notifications import breaker
from django_jobchains.notifications.breaker import Breaker, Unreachable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(breaker, "time", clock)
    return clock


def fails(tested: Breaker, error: Exception | None = None) -> None:
    with suppress(OSError, ValueError), tested.attempt():
        raise error or OSError("refused")


def tries(tested: Breaker) -> bool:
    """Whether one may try; it fails then."""
    tried = []
    with suppress(OSError, Unreachable), tested.attempt():
        tried.append(True)
        raise OSError("refused")
    return bool(tried)


def test_nobody_tries_until_the_pause_is_over_and_then_one(clock: Clock) -> None:
    tested = Breaker(OSError)
    fails(tested)
    clock.now += 0.49
    assert not tries(tested)
    clock.now += 0.01
    with tested.attempt():
        assert not tries(tested), "while one finds out, others go on without"
    assert tries(tested)


def test_each_failure_doubles_the_pause_up_to_ten_seconds(clock: Clock) -> None:
    tested, tried_at = Breaker(OSError), []
    for _ in range(600):
        if tries(tested):
            tried_at.append(clock.now - 100)
        clock.now += 0.1
    pauses = [later - earlier for earlier, later in pairwise(tried_at)]
    assert pauses[:7] == pytest.approx([0.5, 1, 2, 4, 8, 10, 10], abs=0.11)


def test_one_that_was_under_way_when_it_failed_changes_nothing(clock: Clock) -> None:
    tested = Breaker(OSError)
    slow = tested.attempt()
    slow.__enter__()
    fails(tested)
    for _ in range(3):
        clock.now += 10
        assert tries(tested)
    clock.now += 2
    with suppress(OSError):
        slow.__exit__(OSError, OSError("timed out"), None)
    clock.now += 1.9
    assert not tries(tested)
    clock.now += 0.2
    assert tries(tested)


def test_an_answer_ends_it_also_one_that_is_an_error(clock: Clock) -> None:
    for answer in (None, ValueError("no permission")):
        tested = Breaker(OSError)
        fails(tested)
        clock.now += 1
        if answer:
            fails(tested, answer)
        else:
            with tested.attempt():
                pass
        with tested.attempt():
            pass


def test_it_says_why(clock: Clock) -> None:
    tested: Any = Breaker(OSError)
    fails(tested)
    with pytest.raises(Unreachable, match=r"for another 0\.5 s, after OSError: refused"), tested.attempt():
        pass
