"""Hints that follow closely are dropped, and the next one includes their counts."""

from uuid import uuid4

import pytest

from django_jobchains.notifications import EVERY, chain_finished, job_scheduled, ownership_lost
from django_jobchains.notifications.hints import MERGE_SECONDS, HintMerger
from tests.support.clocks import Clock

SHIP = "shop.ship"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("django_jobchains.notifications.hints.time", clock)
    return clock


@pytest.fixture
def advance(clock):
    def advance(merge_intervals):
        clock.now += merge_intervals * MERGE_SECONDS

    return advance


def counts(hints):
    return [hint.count for hint in hints]


def test_dropped_counts_are_added_to_the_next_hint(advance):
    merger = HintMerger()
    assert counts(merger.fresh([job_scheduled(SHIP, 3)])) == [3]
    assert merger.fresh([job_scheduled(SHIP, 1)]) == merger.fresh([job_scheduled(SHIP, 4)]) == []
    advance(1.1)
    assert counts(merger.fresh([job_scheduled(SHIP, 2)])) == [7]
    advance(1.1)
    assert counts(merger.fresh([job_scheduled(SHIP, 2)])) == [2]


def test_dropped_unknown_count_makes_the_next_unknown(advance):
    merger = HintMerger()
    merger.fresh([job_scheduled(SHIP, 1)])
    merger.fresh([job_scheduled(SHIP)])
    advance(1.1)
    ((hint),) = merger.fresh([job_scheduled(SHIP, 1)])
    assert (hint.count, hint.id) == (None, "")


def test_each_publication_has_its_own_id(advance):
    merger, ids = HintMerger(), set()
    for _ in range(100):
        advance(1.1)
        ids |= {hint.id for hint in merger.fresh([job_scheduled(SHIP, 1), job_scheduled("other", 1)])}
    assert len(ids) == 200


def test_chains_that_end_together_are_named(clock):
    hints = [chain_finished(uuid4()) for _ in range(5)]
    assert HintMerger().fresh(hints) == hints


def test_chains_that_end_in_quick_succession_share_few_hints(advance):
    """Thousands of chains may end in a second, each with a different subject."""
    merger, sent = HintMerger(), 0
    for _ in range(1_000):
        advance(0.02)
        hints = merger.fresh([chain_finished(uuid4())])
        sent += len(hints)
        assert all(hint.subject == EVERY for hint in hints) or sent == 1
    assert 15 <= sent <= 25


def test_chain_that_ends_after_a_pause_is_named(advance):
    merger = HintMerger()
    merger.fresh([chain_finished(uuid4())])
    advance(0.5)
    assert merger.fresh([chain_finished(uuid4())]) == [chain_finished(EVERY)]
    advance(2)
    hints = [chain_finished(uuid4())]
    assert merger.fresh(hints) == hints


def test_every_lost_job_is_named(clock):
    merger = HintMerger()
    hints = [ownership_lost(uuid4()) for _ in range(50)]
    assert [merger.fresh([hint]) for hint in hints] == [[hint] for hint in hints]


def test_memory_is_bounded(advance):
    merger = HintMerger()
    for number in range(20_000):
        merger.fresh([job_scheduled(f"type.{number}", 1)])
    assert len(merger._sent) < 2_000
