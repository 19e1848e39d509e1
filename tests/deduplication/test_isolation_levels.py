"""Concurrent calls with the same key get one chain, whatever their isolation levels.

A call outside a transaction gets the chain. A transaction of the caller gets the chain, or fails with a conflict. After
a conflict it has changed nothing, and can be repeated.
"""

from contextlib import nullcontext, suppress

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.models import Job
from tests.deduplication.keyed_chains import ENDED, KEY, SCOPES, apply_steps, start
from tests.support.attempts import on_own_connection
from tests.support.connections import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Actor,
    committing,
    is_conflict,
    waiting,
    without_autocommit,
)

pytestmark = [committing, pytest.mark.postgresql, pytest.mark.slow]

LEVELS = [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE]
own_level = pytest.mark.parametrize("level", LEVELS)
other_level = pytest.mark.parametrize("other", LEVELS)
scopes = pytest.mark.parametrize("scope", SCOPES)
#: A key that was used before has a row, which is locked and marked instead of an insert.
before = pytest.mark.parametrize("was_used", [False, True], ids=["a new key", "a key that was used"])


@pytest.fixture(autouse=True)
def _close_connection():
    yield
    connection.close()


def use(level):
    """Set the isolation level of this connection."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")


def current_level():
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return cursor.fetchone()[0]


def end_one(store):
    apply_steps(store, start("ended"), ENDED["completed"])


def open_inputs():
    return list(Job.objects.incomplete().filter(deduplication_key=KEY).values_list("input", flat=True))


@own_level
@other_level
@before
@pytest.mark.parametrize("is_own", [True, False], ids=["on its own", "in the caller's transaction"])
def test_call_that_waited_for_the_key_gets_the_chain_or_a_conflict(store, level, other, was_used, is_own):
    if was_used:
        end_one(store)

    def call(store):
        if is_own:
            return start("second")
        with transaction.atomic():
            return start("second")

    first = Actor(lambda store: start("first"), level=other, holds=True)
    first.start().until_stopped()
    second = waiting(call, level)
    first.go_on()
    chain = first.result()
    if is_own or level == READ_COMMITTED:
        assert second.result().id == chain.id
    else:
        with pytest.raises(OperationalError) as raised:
            second.result()
        assert is_conflict(raised.value)
    assert open_inputs() == ["first"]
    assert start("again").id == chain.id


@own_level
@other_level
@before
@pytest.mark.parametrize("in_transaction", [False, True])
def test_transaction_that_began_before_the_chain_was_created_gets_it_or_fails(
    store, level, other, was_used, in_transaction
):
    """Its snapshot does not contain the chain, so it must not create another one."""
    if was_used:
        end_one(store)

    def start_other():
        use(other)
        with transaction.atomic() if in_transaction else nullcontext():
            start("first")

    use(level)
    with suppress(OperationalError), transaction.atomic():
        assert Job.objects.count() == was_used  # takes the snapshot
        on_own_connection(start_other)
        assert start("second").deduplicated
        assert level == READ_COMMITTED
    assert open_inputs() == ["first"]
    assert start("again").deduplicated


@own_level
@scopes
def test_transaction_does_not_conflict_with_a_call_that_only_found_the_chain(level, scope):
    """Nothing was created after the snapshot, so there is no conflict."""
    first = start("first")
    use(level)
    with transaction.atomic():
        assert Job.objects.count() == 1  # takes the snapshot
        on_own_connection(start, "second")
        assert start("third", scope=scope).id == first.id


@own_level
@scopes
def test_call_without_autocommit_joins_the_transaction_of_the_caller(store, level, scope):
    end_one(store)
    use(level)
    with without_autocommit():
        assert Job.objects.count() == 1
        chain = start("first", scope=scope)
        assert start("second", scope=scope).id == chain.id
        assert current_level() == level
    assert Job.objects.count() == 1
