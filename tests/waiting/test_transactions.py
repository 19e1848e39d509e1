"""Waiting inside a transaction: what it wrote itself counts, as in a TestCase, where nothing is ever committed."""

import pytest
from django.db import connection, transaction
from django.test import TestCase

from django_jobchains import chains
from django_jobchains.chains import ChainCancelled, ChainNotFound, ChainTimeout
from tests.attempts.work import committed, elsewhere
from tests.waiting.waiters import ASKS, Ask, Looks, Waiting, approval, each_ask, finish, threads, until_waiting
from tests.worker.waiting import until


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
def test_a_chain_that_nobody_else_sees_is_not_taken_for_deleted(ask: Ask, looks: Looks) -> None:
    chain = approval.enqueue()
    with pytest.raises(ChainTimeout):
        ask(chain.id, 0.2)
    until(lambda: looks.ids)
    assert looks.ids[-1] == [chain.id]


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
