"""What is left out is counted with the next; of chains that end in close succession it is said that there are some."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from django_jobchains.notifications import EVERY, Hint, chain_finished, job_scheduled, ownership_lost
from django_jobchains.notifications.merging import MERGE_SECONDS, Merger

SHIP = "shop.ship"


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("django_jobchains.notifications.merging.time", clock)
    return clock


@pytest.fixture
def later(clock: Clock) -> Callable[[float], None]:
    def later(times: float) -> None:
        clock.now += times * MERGE_SECONDS

    return later


def counts(hints: list[Hint]) -> list[int | None]:
    return [hint.count for hint in hints]


def test_jobs_that_were_left_out_are_counted_with_the_next_hint(later: Any) -> None:
    merger = Merger()
    assert counts(merger.fresh([job_scheduled(SHIP, 3)])) == [3]
    assert merger.fresh([job_scheduled(SHIP, 1)]) == merger.fresh([job_scheduled(SHIP, 4)]) == []
    later(1.1)
    assert counts(merger.fresh([job_scheduled(SHIP, 2)])) == [7]
    later(1.1)
    assert counts(merger.fresh([job_scheduled(SHIP, 2)])) == [2]


def test_an_unknown_count_among_those_left_out_makes_it_unknown(later: Any) -> None:
    merger = Merger()
    merger.fresh([job_scheduled(SHIP, 1)])
    merger.fresh([job_scheduled(SHIP)])
    later(1.1)
    ((hint),) = merger.fresh([job_scheduled(SHIP, 1)])
    assert (hint.count, hint.id) == (None, "")


def test_each_sending_has_a_number_of_its_own(later: Any) -> None:
    merger, ids = Merger(), set()
    for _ in range(100):
        later(1.1)
        ids |= {hint.id for hint in merger.fresh([job_scheduled(SHIP, 1), job_scheduled("other", 1)])}
    assert len(ids) == 200


def test_chains_that_end_together_are_named(clock: Clock) -> None:
    hints = [chain_finished(uuid4()) for _ in range(5)]
    assert Merger().fresh(hints) == hints


def test_chains_that_end_soon_after_are_not_named_and_hardly_sent(later: Any) -> None:
    """Thousands end in a second, each a subject of its own."""
    merger, sent = Merger(), 0
    for _ in range(1_000):
        later(0.02)
        hints = merger.fresh([chain_finished(uuid4())])
        sent += len(hints)
        assert all(hint.subject == EVERY for hint in hints) or sent == 1
    assert 15 <= sent <= 25


def test_after_a_pause_a_chain_is_named_again(later: Any) -> None:
    merger = Merger()
    merger.fresh([chain_finished(uuid4())])
    later(0.5)
    assert merger.fresh([chain_finished(uuid4())]) == [chain_finished(EVERY)]
    later(2)
    hints = [chain_finished(uuid4())]
    assert merger.fresh(hints) == hints


def test_each_job_that_was_lost_is_named(clock: Clock) -> None:
    merger = Merger()
    hints = [ownership_lost(uuid4()) for _ in range(50)]
    assert [merger.fresh([hint]) for hint in hints] == [[hint] for hint in hints]


def test_memory_is_bounded(later: Any) -> None:
    merger = Merger()
    for number in range(20_000):
        merger.fresh([job_scheduled(f"type.{number}", 1)])
    assert len(merger._sent) < 2_000
