"""Hints that follow closely are dropped, and the next one includes their counts."""

from uuid import uuid4

import pytest

from django_jobchains.notifications import EVERY, chain_finished, job_scheduled, ownership_lost
from django_jobchains.notifications.hints import MERGE_SECONDS, HintMerger

SHIP = "shop.ship"


@pytest.fixture
def advance(clock):
    def advance(merge_intervals=1.1):
        clock.now += merge_intervals * MERGE_SECONDS

    return advance


@pytest.fixture
def merger(clock):
    return HintMerger()


def test_dropped_counts_are_added_to_the_next_hint(merger, advance):
    def counts(*jobs):
        return [hint.count for hint in merger.fresh([job_scheduled(SHIP, count) for count in jobs])]

    assert counts(3) == [3]
    assert [counts(1), counts(4)] == [[], []]
    advance()
    assert counts(2) == [7]
    advance()
    assert counts(2) == [2]
    assert counts(None) == []
    advance()
    [hint] = merger.fresh([job_scheduled(SHIP, 1)])
    assert (hint.count, hint.id) == (None, ""), "a dropped hint had an unknown count"


def test_hints_are_dropped_by_kind_and_subject(merger, advance):
    first, others = job_scheduled(SHIP), [job_scheduled("mail"), ownership_lost(SHIP)]
    assert merger.fresh([first]) == [first]
    advance(0.9)
    assert merger.fresh([first, *others]) == others
    advance(0.2)
    assert merger.fresh([first, *others]) == [first]


def test_each_publication_has_its_own_id(merger, advance):
    ids = set()
    for _ in range(100):
        advance()
        ids |= {hint.id for hint in merger.fresh([job_scheduled(SHIP, 1), job_scheduled("other", 1)])}
    assert len(ids) == 200


def test_chains_that_end_together_are_named(merger):
    hints = [chain_finished(uuid4()) for _ in range(5)]
    assert merger.fresh(hints) == hints


def test_chains_that_end_in_quick_succession_share_few_hints(merger, advance):
    """Thousands of chains may end in a second, each with a different subject."""
    sent = merger.fresh([chain_finished(uuid4())])
    for _ in range(1_000):
        advance(0.02)
        sent += merger.fresh([chain_finished(uuid4())])
    assert {hint.subject for hint in sent[1:]} == {EVERY}
    assert 15 <= len(sent) <= 25
    advance(2)
    hints = [chain_finished(uuid4())]
    assert merger.fresh(hints) == hints, "a chain that ends after a pause is named"


def test_every_lost_job_is_named(merger):
    hints = [ownership_lost(uuid4()) for _ in range(50)]
    assert [merger.fresh([hint]) for hint in hints] == [[hint] for hint in hints]


def test_memory_is_bounded(merger):
    for number in range(20_000):
        merger.fresh([job_scheduled(f"type.{number}", 1)])
    assert len(merger._sent) < 2_000
