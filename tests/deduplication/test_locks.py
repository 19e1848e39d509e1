"""Which transactions wait for each other's keys on PostgreSQL: those that name the same key, and no others."""

import random
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from django_jobchains import chains
from django_jobchains.chains import Chain, Deduplicate
from django_jobchains.models import Job, KeyLock
from django_jobchains.processors import Processors, Registry
from django_jobchains.store import Store
from django_jobchains.worker import Worker
from tests.attempts.work import WITHOUT_WAKE_UPS
from tests.deduplication.chains_at import ship, start
from tests.store.connections import Actor, committing, holding, is_conflict, stopped_before, waiting
from tests.worker.waiting import until

pytestmark = [committing, pytest.mark.postgresql]

#: Of an enqueue with a key, on the job table: the look and the insert. The lock comes before them.
STATEMENTS = 2


def keys(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [f"{seed} {generator.getrandbits(64):x}" for _ in range(count)]


def import_(given: Collection[str]) -> None:
    """Enqueues one by one, in one transaction."""
    with transaction.atomic():
        for key in given:
            start(key=key)


def batch(given: Collection[str]) -> list[Chain]:
    return chains.enqueue_many([ship.item(deduplicate=Deduplicate(key)) for key in given])


def wait_for_locks_no_longer_than(seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds}s"])


def test_two_imports_of_different_keys_never_wait_for_each_other() -> None:
    """One stands in the middle; the other holds all of its keys while the first goes on to its end."""
    wait_for_locks_no_longer_than(3)
    first = stopped_before(50 * STATEMENTS + 1, lambda store: import_(keys(100, 1)))
    with transaction.atomic():
        import_(keys(100, 2))
        first.result()
    assert first.conflicts == []
    assert Job.objects.count() == 200


def test_a_batch_that_is_held_open_keeps_no_other_key_waiting() -> None:
    first = holding(lambda store: batch(keys(1_000, 1)))
    for key in keys(200, 2):
        assert not start(key=key).deduplicated
    first.go_on()
    first.result()


def test_a_batch_fills_no_table_of_locks() -> None:
    """An advisory lock for each key would take a place of the server's 64 per connection."""
    with transaction.atomic():
        batch(keys(5_000, 1))
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
            assert cursor.fetchone()[0] < 64


def crossing(first: str, second: str) -> tuple[Actor, Actor]:
    """Two imports, each of which has locked its first key and waits for that of the other."""
    one = stopped_before(STATEMENTS, lambda store: import_([first, second]))
    other = waiting(lambda store: import_([second, first]))
    one.go_on()
    return one, other


def test_of_two_imports_that_name_keys_in_opposite_orders_one_fails_and_can_be_repeated() -> None:
    """The order is that of the callers' statements, so one of them has to give way. Nothing of it stays."""
    failed: list[OperationalError] = []
    for actor in crossing("a", "b"):
        try:
            actor.result()
        except OperationalError as error:
            failed.append(error)
    assert [is_conflict(error) for error in failed] == [True]
    assert sorted(Job.objects.values_list("deduplication_key", flat=True)) == ["a", "b"]
    import_(["b", "a"])
    assert Job.objects.count() == 2


def in_order(given: Sequence[str]) -> Callable[[Store], list[Chain]]:
    return lambda store: batch(given)


def test_two_batches_lock_their_keys_in_one_order() -> None:
    """Somebody has a key in the middle. In the callers' orders each would then hold what the other wants next."""
    given = keys(9, 1)
    middle = holding(lambda store: start(key=given[4]))
    first = waiting(in_order(given))
    second = waiting(in_order(given[::-1]))
    middle.go_on()
    assert {chain.id for chain in first.result()} == {chain.id for chain in second.result()}
    assert first.conflicts == second.conflicts == []


def test_a_worker_deletes_rows_of_keys_that_are_out_of_use(store: Store, settings: Any) -> None:
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05}
    batch("abc")
    Job.objects.all().delete()
    KeyLock.objects.update(used_at=F("used_at") - timedelta(days=2))
    processors, registry = Processors(), Registry()
    processors.register("anything")(lambda job: None)
    registry.add(processors)
    worker = Worker(slots=1, registry=registry)
    worker.start()
    try:
        until(lambda: not KeyLock.objects.exists())
    finally:
        worker.stop(10)


def test_rows_of_keys_are_deleted_a_day_after_their_use_unless_they_are_locked(store: Store) -> None:
    batch("abc")
    assert store.forget_keys(10) == 0
    store.ahead_seconds = 86_410
    try:
        holding(lambda store: start(key="b"))
        assert store.forget_keys(10) == 2
    finally:
        store.ahead_seconds = 0
    assert KeyLock.objects.count() == 1


def test_a_key_whose_row_is_deleted_meanwhile_is_locked_anew(store: Store) -> None:
    """The row of a key that was used long ago is deleted while a transaction waits for it."""
    start(key="a")
    Job.objects.all().delete()

    def delete(store: Store) -> int:
        return KeyLock.objects.all().delete()[0]

    deleting = holding(delete)
    first = waiting(lambda store: start(key="a"))
    deleting.go_on()
    assert deleting.result() == 1
    assert not first.result().deduplicated
    assert start(key="a").id == first.result().id
    assert KeyLock.objects.count() == 1
