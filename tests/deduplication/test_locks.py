"""On PostgreSQL, only transactions that use the same key wait for each other."""

import random
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job, KeyLock
from django_jobchains.processors import Processors, Registry
from django_jobchains.worker import Worker
from tests.deduplication.keyed_chains import ship, start
from tests.support.attempts import WITHOUT_WAKE_UPS
from tests.support.connections import committing, holding, is_conflict, stopped_before, waiting
from tests.support.waiting import until

pytestmark = [committing, pytest.mark.postgresql]

#: The statements of an enqueue with a key on the job table: the query and the insert. The lock precedes them.
STATEMENTS = 2


def keys(count, seed):
    generator = random.Random(seed)
    return [f"{seed} {generator.getrandbits(64):x}" for _ in range(count)]


def enqueue_all(given):
    """Enqueue chains one by one in one transaction."""
    with transaction.atomic():
        for key in given:
            start(key=key)


def batch(given):
    return chains.enqueue_many([ship.item(deduplicate=Deduplicate(key)) for key in given])


def wait_for_locks_no_longer_than(seconds):
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds}s"])


def test_transactions_with_different_keys_do_not_wait_for_each_other():
    """One transaction is stopped halfway. The other one holds all its keys while the first continues."""
    wait_for_locks_no_longer_than(3)
    first = stopped_before(50 * STATEMENTS + 1, lambda store: enqueue_all(keys(100, 1)))
    with transaction.atomic():
        enqueue_all(keys(100, 2))
        first.result()
    assert first.conflicts == []
    assert Job.objects.count() == 200


def test_open_transaction_does_not_delay_other_keys():
    first = holding(lambda store: batch(keys(1_000, 1)))
    for key in keys(200, 2):
        assert not start(key=key).deduplicated
    first.go_on()
    first.result()


def test_batch_does_not_fill_the_lock_table():
    """An advisory lock for each key would use up the 64 locks that the server reserves for each connection."""
    with transaction.atomic():
        batch(keys(5_000, 1))
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
            assert cursor.fetchone()[0] < 64


def crossing(first, second):
    """Start two transactions, each of which has locked its first key and waits for the other's."""
    one = stopped_before(STATEMENTS, lambda store: enqueue_all([first, second]))
    other = waiting(lambda store: enqueue_all([second, first]))
    one.go_on()
    return one, other


def test_one_of_two_transactions_with_keys_in_opposite_orders_fails_and_can_be_repeated():
    """The callers determine the order, so there is a deadlock. One transaction fails and is rolled back."""
    failed = []
    for actor in crossing("a", "b"):
        try:
            actor.result()
        except OperationalError as error:
            failed.append(error)
    assert [is_conflict(error) for error in failed] == [True]
    assert sorted(Job.objects.values_list("deduplication_key", flat=True)) == ["a", "b"]
    enqueue_all(["b", "a"])
    assert Job.objects.count() == 2


def in_order(given):
    return lambda store: batch(given)


def test_two_batches_lock_their_keys_in_one_order():
    """A third transaction holds a key in the middle. In the callers' orders, the batches would deadlock."""
    given = keys(9, 1)
    middle = holding(lambda store: start(key=given[4]))
    first = waiting(in_order(given))
    second = waiting(in_order(given[::-1]))
    middle.go_on()
    assert {chain.id for chain in first.result()} == {chain.id for chain in second.result()}
    assert first.conflicts == second.conflicts == []


def test_worker_deletes_the_rows_of_unused_keys(store, settings):
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


def test_row_of_a_key_is_deleted_a_day_after_its_use_unless_it_is_locked(store):
    batch("abc")
    assert store.keys.forget(10) == 0
    store.db.ahead_seconds = 86_410
    try:
        holding(lambda store: start(key="b"))
        assert store.keys.forget(10) == 2
    finally:
        store.db.ahead_seconds = 0
    assert KeyLock.objects.count() == 1


def test_key_whose_row_is_deleted_while_a_transaction_waits_for_it_is_locked_again(store):
    """This happens to keys that were used long ago."""
    start(key="a")
    Job.objects.all().delete()

    def delete(store):
        return KeyLock.objects.all().delete()[0]

    deleting = holding(delete)
    first = waiting(lambda store: start(key="a"))
    deleting.go_on()
    assert deleting.result() == 1
    assert not first.result().deduplicated
    assert start(key="a").id == first.result().id
    assert KeyLock.objects.count() == 1
