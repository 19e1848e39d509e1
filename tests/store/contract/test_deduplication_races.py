"""Concurrent calls with one key create exactly one chain."""

import pytest
from django.db import connection, connections, transaction

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job, JobBlocker, KeyLock
from django_jobchains.processors import get_registry
from tests.deduplication.keyed_chains import KEY, finish, mail, ship, start
from tests.support.connections import committing, holding, stopped_before, waiting

pytestmark = committing


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})


orders = pytest.mark.parametrize(
    ("first_scope", "second_scope"),
    [("incomplete", "any"), ("any", "incomplete_or_recent"), ("incomplete_or_recent", "incomplete")],
)


@orders
@pytest.mark.parametrize("roll_back", [False, True])
def test_second_waits_for_the_first_and_gets_its_chain(first_scope, second_scope, roll_back):
    first = holding(lambda store: start("first", scope=first_scope))
    second = waiting(lambda store: start("second", scope=second_scope))
    first.go_on(roll_back=roll_back)
    first.result()
    chain = second.result()
    assert (chain.deduplicated, chain.input) == ((False, "second") if roll_back else (True, "first"))
    assert Job.objects.get().id == chain.id
    assert first.conflicts == second.conflicts == []


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite begins without a lock")
def test_deferred_transactions_create_one_chain(monkeypatch):
    """Deferred transactions are Django's default on SQLite."""
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "transaction_mode", "DEFERRED")
    first = holding(lambda store: start("first"))
    seconds = [waiting(lambda store: start("second")) for _ in range(3)]
    first.go_on()
    assert {second.result().id for second in seconds} == {first.result().id} == {Job.objects.get().id}


@pytest.mark.parametrize(("scope", "is_found"), [("incomplete", False), ("incomplete_or_recent", True)])
def test_chain_that_the_first_creates_and_ends_is_found_by_scope(scope, is_found):
    def start_and_finish(store):
        chain = start("first")
        finish(store, chain)
        return chain.id

    first = holding(start_and_finish)
    second = waiting(lambda store: start("second", scope=scope))
    first.go_on()
    assert (second.result().id == first.result()) is is_found
    assert Job.objects.count() == (1 if is_found else 2)


@pytest.mark.postgresql
@pytest.mark.parametrize(("job_type", "key"), [(ship, "another"), (mail, KEY), (ship, None)])
def test_another_key_or_type_does_not_wait(job_type, key):
    first = holding(lambda store: start("first"))
    other = job_type.enqueue(deduplicate=Deduplicate(key) if key else None)
    assert not other.deduplicated
    first.go_on()
    first.result()


def test_blockers_of_a_deduplicated_item_are_not_linked_to_a_chain_created_meanwhile():
    blocker = mail.enqueue()
    first = holding(lambda store: start("first"))
    second = waiting(lambda store: ship.enqueue(blockers=[blocker], deduplicate=Deduplicate(KEY)))
    first.go_on()
    assert second.result().id == first.result().id
    assert not JobBlocker.objects.exists()


@pytest.mark.postgresql
def test_enqueue_that_deadlocks_with_a_transaction_of_the_user_is_retried():
    """It holds the key and waits for the blocker's row. The user's transaction holds the row and waits for the key."""
    blocker = mail.enqueue()

    def in_users_transaction(store):
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '60s'")  # the other transaction detects the deadlock
        with transaction.atomic():
            store.attempts.lock(blocker.id)
            return start("user's")

    enqueueing = stopped_before(2, lambda store: ship.enqueue(blockers=[blocker], deduplicate=Deduplicate(KEY)))
    user = waiting(in_users_transaction)
    enqueueing.go_on()
    assert user.result().id == enqueueing.result().id
    assert len(enqueueing.conflicts) == 1


# Rows of keys


def batch(keys):
    return [chain.id for chain in chains.enqueue_many([ship.item(deduplicate=Deduplicate(key)) for key in keys])]


@pytest.mark.postgresql
def test_two_batches_lock_their_keys_in_one_order():
    """A third transaction holds a key in the middle. In the callers' orders, the batches would deadlock."""
    middle = holding(lambda store: start(key="e"))
    first, second = (waiting(lambda store, keys=keys: batch(keys)) for keys in ("abcdefghi", "ihgfedcba"))
    middle.go_on()
    assert first.result() == second.result()[::-1]
    assert first.conflicts == second.conflicts == []


@pytest.mark.postgresql
def test_batch_does_not_fill_the_lock_table():
    """An advisory lock for each key would use up the 64 locks that the server reserves for each connection."""
    with transaction.atomic(), connection.cursor() as cursor:
        batch(map(str, range(5_000)))
        cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
        assert cursor.fetchone()[0] < 64


@pytest.mark.postgresql
def test_row_of_a_key_is_deleted_a_day_after_its_use_unless_it_is_locked(store):
    batch("abc")
    assert store.keys.forget(10) == 0
    store.db.ahead_seconds = 86_410
    holding(lambda store: start(key="b"))
    assert store.keys.forget(10) == 2
    assert KeyLock.objects.count() == 1


@pytest.mark.postgresql
def test_key_whose_row_is_deleted_while_a_transaction_waits_for_it_is_locked_again(store):
    """This happens to keys that were used long ago."""
    start(key="a")
    Job.objects.all().delete()
    deleting = holding(lambda store: KeyLock.objects.all().delete())
    first = waiting(lambda store: start(key="a"))
    deleting.go_on()
    deleting.result()
    assert not first.result().deduplicated
    assert start(key="a").id == first.result().id
    assert KeyLock.objects.count() == 1
