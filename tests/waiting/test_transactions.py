"""Waiting inside a transaction: what it wrote itself counts, as in a TestCase, where nothing is ever committed."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import TestCase

from django_jobchains import chains
from django_jobchains.chains import ChainCancelled, ChainNotCommitted, ChainNotFound, ChainTimeout
from tests.attempts.work import committed, elsewhere
from tests.waiting.waiters import (
    ASKS,
    LONG,
    Ask,
    Looks,
    Waiting,
    approval,
    each_ask,
    each_function,
    finish,
    threads,
    until_waiting,
)


@each_ask
@pytest.mark.django_db
def test_a_chain_that_ended_in_the_same_transaction_is_answered_by_it(ask: Ask) -> None:
    chain, cancelled = approval.enqueue(), approval.enqueue()
    finish(chain, "done")
    chains.cancel(cancelled.id)
    assert ask(chain.id, 0) == ask(chain.id, None) == "done"
    with pytest.raises(ChainCancelled):
        ask(cancelled.id, None)
    assert threads() == []  # nobody else had to look


@each_ask
@pytest.mark.django_db
def test_waiting_for_a_chain_that_nobody_else_sees_ends_at_once_and_says_what_to_do(ask: Ask, looks: Looks) -> None:
    chain = approval.enqueue()
    with pytest.raises(ChainNotCommitted, match=r"atomic\(\):' block\. .*run_due_jobs\(\)") as caught:
        ask(chain.id, LONG)
    assert isinstance(caught.value, ChainTimeout), "code that heeds the timeout must go on doing so"
    assert caught.value.chain_id == chain.id
    assert looks.ids[:2] == [[chain.id], [chain.id]], "it did not ask on another connection"


@each_function
def test_on_sqlite_in_memory_the_open_transaction_locks_everybody_else_out(ask: Ask, memory: str) -> None:
    """As in a TestCase with Django's default test database."""
    with transaction.atomic(using=memory):
        chain = approval.enqueue(using=memory)
        with pytest.raises(ChainNotCommitted):
            ask(chain.id, LONG, using=memory)  # type: ignore[call-arg]
    assert threads() == []


@each_function
def test_an_sqlite_database_that_other_threads_do_not_share_is_an_error(ask: Ask, private_memory: str) -> None:
    chain, ended = approval.enqueue(using=private_memory), approval.enqueue(using=private_memory)
    with chains.complete(ended, using=private_memory) as current:
        current.finish("done")
    with pytest.raises(ImproperlyConfigured, match=r"each thread has its own, empty database\. Use a file"):
        ask(chain.id, LONG, using=private_memory)  # type: ignore[call-arg]
    assert chains.wait(ended, 5, using=private_memory) == "done"


@pytest.mark.django_db
def test_in_a_transaction_a_chain_that_never_was_is_not_found() -> None:
    chain = approval.enqueue()
    chains.delete(chain.id)
    with pytest.raises(ChainNotFound):
        chain.result(30)


@committed
@pytest.mark.postgresql
@pytest.mark.usefixtures("no_poll")
def test_a_transaction_may_wait_for_what_others_commit(looks: Looks) -> None:
    chain = approval.enqueue()

    def ask_in_transaction(chain_id: object, timeout: object) -> object:
        with transaction.atomic():
            return chain.result(30)

    waiter = Waiting(chain.id, ask=ask_in_transaction)
    until_waiting()
    finish(chain, "done")
    assert waiter.output() == "done"


@committed
@pytest.mark.usefixtures("no_poll")
def test_an_ending_that_is_rolled_back_was_none(looks: Looks) -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    looks.until_settled()
    with transaction.atomic():
        finish(chain, "undone")
        transaction.set_rollback(True)
    assert chain.refresh().status == "pending"
    assert waiter.is_alive()
    finish(chain, "done")
    assert waiter.output() == "done"


@committed
@pytest.mark.usefixtures("no_poll")
def test_it_is_told_after_the_commit_and_not_before(looks: Looks) -> None:
    chain, other = approval.enqueue(), approval.enqueue()
    waiter, elses = Waiting(chain.id), Waiting(other.id)
    looks.until_settled()
    with transaction.atomic():
        finish(chain, "done")
        if connection.vendor == "postgresql":  # on SQLite nobody else may write now
            elsewhere(finish, other, "sooner")
            assert elses.output() == "sooner"
        assert waiter.is_alive()
    assert waiter.output() == "done"
    if connection.vendor != "postgresql":
        finish(other)
        elses.output()


class InATestCase(TestCase):
    def test_every_way_to_wait_answers(self) -> None:
        chain = approval.enqueue()
        with chains.complete(chain.id, approval) as current:
            current.continue_with(approval)
            current.finish([1])
        assert [ask(chain.id, 0) for ask in ASKS.values()] == [[1]] * 4
