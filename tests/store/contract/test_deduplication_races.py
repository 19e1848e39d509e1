"""Many concurrent calls with one key create exactly one chain."""

import random
import threading
import time
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job, JobBlocker, KeyLock
from django_jobchains.processors import get_registry
from tests.deduplication.keyed_chains import KEY, SCOPES, continue_chain, finish, mail, ship, start
from tests.support.connections import committing, holding, stopped_before, waiting

pytestmark = committing


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})


CONNECTIONS = 16
ROUNDS = 4 if connection.vendor == "postgresql" else 2
#: The result of one call: the id of its chain, whether that existed already, and whether the call was committed.
Result = tuple[UUID, bool, bool]


def race(run):
    """Call ``run(number)`` on many connections at the same time."""
    barrier = threading.Barrier(CONNECTIONS)
    results = []
    errors = []

    def target(number):
        try:
            connections["default"].ensure_connection()
            barrier.wait(30)
            results.append(run(number))
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=target, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(results) == CONNECTIONS
    return results


def in_autocommit(number, **options):
    chain = start(number, **options)
    return chain.id, chain.deduplicated, True


def partly_rolled_back(number, **options):
    with transaction.atomic():
        chain = start(number, **options)
        time.sleep(random.uniform(0, 0.005))  # holds the key for different times
        transaction.set_rollback(number % 2 == 0)
        return chain.id, chain.deduplicated, number % 2 == 1


def in_batches(number, **options):
    """Enqueue a batch with several keys in a random order."""
    keys = [KEY, "a", "b", "c"]
    random.shuffle(keys)
    window = SCOPES[options["scope"]]
    created = chains.enqueue_many([ship.item(deduplicate=Deduplicate(key, **window, **options)) for key in keys])
    chain = created[keys.index(KEY)]
    return chain.id, chain.deduplicated, True


@pytest.mark.parametrize(
    ("run", "scope"),
    [
        (in_autocommit, "incomplete"),
        (in_autocommit, "any"),
        (partly_rolled_back, "any"),
        (partly_rolled_back, "incomplete"),
        (in_batches, "incomplete_or_recent"),
    ],
)
def test_one_of_16_connections_creates_the_chain_and_all_get_it(run, scope):
    for _ in range(ROUNDS):
        results = [row for row in race(lambda number: run(number, scope=scope)) if row[2]]
        made = Job.objects.filter(deduplication_key=KEY)
        assert {id_ for id_, *_ in results} == {made.get().id}
        assert [is_deduplicated for _, is_deduplicated, _ in results].count(False) <= 1
        assert len(set(Job.objects.values_list("deduplication_key", flat=True))) == Job.objects.count()
        Job.objects.all().delete()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite begins without a lock")
def test_deferred_transactions_create_one_chain(monkeypatch):
    """Deferred transactions are Django's default on SQLite."""
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "transaction_mode", "DEFERRED")
    for run in (partly_rolled_back, in_autocommit):
        assert len({id_ for id_, _, is_committed in race(run) if is_committed}) == 1
        Job.objects.get().delete()


# Two transactions, stepped

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


def test_chain_that_continues_meanwhile_is_found():
    chain = start()

    continuing = holding(lambda store: continue_chain(store, chain))
    second = waiting(lambda store: start("second"))
    continuing.go_on()
    continuing.result()
    assert second.result().id == chain.id
    assert start("third").id == chain.id
    assert Job.objects.filter(deduplication_key=KEY, chain_index=0).count() == 1


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
