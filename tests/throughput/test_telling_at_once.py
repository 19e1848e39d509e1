"""Workers that tell their counts at the same time: nothing is lost, and none waits for another in a circle."""

from collections.abc import Iterator

import pytest
from django.db import transaction

from django_jobchains.models import AttemptCount
from django_jobchains.processors import JobType, Processors
from django_jobchains.store import Store, TypeTally
from django_jobchains.throughput import TypeRuns, throughput
from tests.store.connections import Actor, end_all, holding
from tests.throughput.telling import put_clock, tally
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import until

#: In no order that a database would choose.
TYPES = [f"type-{number * 37 % 101}" for number in range(101)]


@pytest.fixture(autouse=True)
def _no_actor_survives(store: Store) -> Iterator[None]:
    put_clock(store, minute=30, second=10)
    yield
    end_all()
    store.ahead_seconds = 0


def test_what_two_tell_at_once_is_added(store: Store) -> None:
    first = holding(lambda store: store.add_counts([tally(completed=1, seconds=2, longest_seconds=2)]))
    second = Actor(lambda store: store.add_counts([tally(failed=1, seconds=1, longest_seconds=1)])).start()
    second.until_blocked_or_ended()
    first.go_on()
    first.result()
    second.result()
    assert throughput().types == (TypeRuns("shop.ship", 1, 1, 1.5, 2.0),)
    assert AttemptCount.objects.count() == 2


@pytest.mark.postgresql
def test_rows_are_taken_in_one_order_so_that_nobody_waits_in_a_circle(store: Store) -> None:
    store.add_counts([tally(name) for name in TYPES])
    holder = holding(lambda store: store.add_counts([tally(TYPES[0])]))
    waiting = Actor(lambda store: store.add_counts([tally(name) for name in TYPES])).start().until_blocked_or_ended()
    with transaction.atomic():
        others = AttemptCount.objects.filter(span=AttemptCount.Span.HOUR).exclude(type_name=TYPES[0])
        free = others.select_for_update(nowait=True)
        assert len(free) == len(TYPES) - 1, "It waits for the row of the minute, and has locked none behind it."
    holder.go_on()
    holder.result()
    waiting.result()
    assert throughput().last_hour.completed == 2 * len(TYPES) + 1


def test_a_storm_of_tellings_and_prunings_loses_nothing(store: Store) -> None:
    def tell(names: list[str]) -> Actor:
        def call(store: Store) -> None:
            for _ in range(10):
                store.add_counts([tally(name) for name in names])
                store.add_counts([TypeTally("old", 10 * 86_400, 1, 0, 0, 0.0, 0.0)])
                store.prune_counts()

        return Actor(call).start()

    actors = [tell(TYPES), tell(TYPES[::-1])]
    for actor in actors:
        actor.result()
    assert [conflict for actor in actors for conflict in actor.conflicts if "deadlock" in conflict] == []
    assert throughput().last_hour.completed == 2 * 10 * len(TYPES)
    store.prune_counts()
    assert not AttemptCount.objects.filter(type_name="old").exists()


def test_two_workers_tell_together_what_both_did(
    processors: Processors, start_worker: StartWorker, settings: object
) -> None:
    settings.JOBCHAINS = {"HEARTBEAT_SECONDS": 0.05}  # type: ignore[attr-defined]
    kinds: list[JobType[int, int]] = [
        processors.register(f"throughput.{name}")(lambda job: job.attempt) for name in ("a", "b")
    ]
    workers = [start_worker(slots=2), start_worker(slots=2)]
    for kind in kinds:
        for number in range(50):
            kind.enqueue(number)
    until(lambda: throughput().last_hour.completed == 100, what=lambda: throughput().last_hour)
    for worker in workers:
        worker.stop()
    assert {(kind.name, kind.completed, kind.failed) for kind in throughput().types} == {
        ("throughput.a", 50, 0),
        ("throughput.b", 50, 0),
    }
