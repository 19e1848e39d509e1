"""When the parts of the maintenance thread have their turn."""

from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.worker.maintenance import Rounds

#: After an error its connections are mended.
pytestmark = pytest.mark.django_db


class Part:
    """``does``: what its step does; it is due again after ``seconds``."""

    def __init__(self, does: Callable[[], Any] = lambda: False, seconds: float = 0.01) -> None:
        self.does = does
        self.seconds = seconds
        self.looks = 0

    def step(self) -> Any:
        self.looks += 1
        return self.does()


def rounds_of(*parts: Any) -> Rounds:
    return Rounds(*parts)


def test_each_part_looks_at_the_start_and_when_it_is_due() -> None:
    often, seldom = Part(), Part(seconds=3600)
    rounds = rounds_of(often, seldom)
    for _ in range(3):
        rounds.step()
    assert (often.looks, seldom.looks) == (3, 1)


def test_a_part_that_is_hastened_looks_once_more() -> None:
    often, seldom = Part(), Part(seconds=3600)
    rounds = rounds_of(often, seldom)
    rounds.step()
    rounds.hasten(seldom)  # type: ignore[arg-type]
    for _ in range(3):
        rounds.step()
    assert seldom.looks == 2
    assert not rounds.pause.is_set(), "It would not wait any more."


def test_a_part_that_is_hastened_while_it_looks_looks_again() -> None:
    """What it looks for may have come after it looked."""
    seldom = Part(seconds=3600)
    rounds = rounds_of(seldom, Part())

    def hasten() -> bool:
        if seldom.looks == 1:
            rounds.hasten(seldom)  # type: ignore[arg-type]
        return False

    seldom.does = hasten
    for _ in range(2):
        rounds.step()
    assert seldom.looks == 2


def test_a_part_that_has_more_to_do_or_failed_is_due_at_once() -> None:
    answers: list[Any] = [True, ValueError("no"), True]

    def answer() -> bool:
        found = answers.pop()
        if isinstance(found, Exception):
            raise found
        return bool(found)

    seldom = Part(answer, seconds=3600)
    rounds = rounds_of(seldom)
    rounds.step()
    with pytest.raises(ValueError, match="no"):
        rounds.step()
    rounds.step()
    assert seldom.looks == 3


def test_a_part_that_raises_starves_none_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> bool:
        raise ValueError(text)

    before, after = Part(), Part()
    first, second = Part(lambda: fail("first")), Part(lambda: fail("second"))
    rounds = rounds_of(before, first, second, after)
    for _ in range(3):
        with pytest.raises(ValueError, match="first"):
            rounds.step()
        for part in (before, first, second, after):
            rounds.hasten(part)  # type: ignore[arg-type]
    assert [part.looks for part in (before, first, second, after)] == [3, 3, 3, 3]
    assert [record.args for record in caplog.records] == [("ValueError: second",)] * 3
