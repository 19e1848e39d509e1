"""Workers that store their counts at the same time: no count is lost, and there is no deadlock."""

import pytest
from django.db import transaction

from django_jobchains.models import AttemptCount
from django_jobchains.monitoring import TypeRuns, throughput
from tests.support.connections import Actor, committing, holding, waiting
from tests.support.throughput import put_clock, tally

pytestmark = committing

#: Types in an order that no database would choose.
TYPES = [f"type-{number * 37 % 101}" for number in range(101)]


@pytest.fixture(autouse=True)
def _fixed_clock(store):
    put_clock(store, minute=30, second=10)


def test_counts_stored_at_once_are_added(store):
    first = holding(lambda store: store.stats.add_counts([tally(completed=1, seconds=2, longest_seconds=2)]))
    second = waiting(lambda store: store.stats.add_counts([tally(failed=1, seconds=1, longest_seconds=1)]))
    first.result()
    second.result()
    assert throughput().types == (TypeRuns("shop.ship", 1, 1, 0, 1.5, 2.0),)
    assert AttemptCount.objects.count() == 3


@pytest.mark.postgresql
def test_rows_are_locked_in_one_order_to_avoid_deadlocks(store):
    store.stats.add_counts([tally(name) for name in TYPES])
    holder = holding(lambda store: store.stats.add_counts([tally(TYPES[0])]))
    blocked = waiting(lambda store: store.stats.add_counts([tally(name) for name in TYPES]))
    with transaction.atomic():
        others = AttemptCount.objects.filter(span=AttemptCount.Span.HOUR).exclude(type_name__in=["", TYPES[0]])
        free = others.select_for_update(nowait=True)
        assert len(free) == len(TYPES) - 1, "it waits for the row of the minute, so it must not have locked others"
    holder.result()
    blocked.result()
    assert throughput().last_hour.completed == 2 * len(TYPES) + 1


def test_simultaneous_writes_and_deletions_lose_no_count(store):
    def write(names):
        def call(store):
            for _ in range(10):
                store.stats.add_counts([tally(name) for name in names])
                store.stats.add_counts([tally("old", 10 * 86_400)])
                store.stats.prune_counts()

        return Actor(call).start()

    actors = [write(TYPES), write(TYPES[::-1])]
    for actor in actors:
        actor.result()
    assert [conflict for actor in actors for conflict in actor.conflicts if "deadlock" in conflict] == []
    assert throughput().last_hour.completed == 2 * 10 * len(TYPES)
    store.stats.prune_counts()
    assert not AttemptCount.objects.filter(type_name="old").exists()
