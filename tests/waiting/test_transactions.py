"""Waiting inside a transaction, which sees its own writes, as in a ``TestCase`` that never commits."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import TestCase

from django_jobchains import chains
from django_jobchains.chains import ChainCancelled, ChainNotCommitted, ChainNotFound, ChainTimeout
from tests.support.attempts import committed, on_own_connection
from tests.waiting.waiters import (
    LONG,
    WAIT_CALLS,
    WaitingThread,
    approval,
    every_wait_call,
    finish,
    sync_and_async,
    threads,
    until_waiting,
)


@every_wait_call
@pytest.mark.django_db
def test_end_in_the_same_transaction_is_seen(wait):
    chain, cancelled = approval.enqueue(), approval.enqueue()
    finish(chain, "done")
    chains.cancel(cancelled.id)
    assert wait(chain.id, 0) == wait(chain.id, None) == "done"
    with pytest.raises(ChainCancelled):
        wait(cancelled.id, None)
    assert threads() == []  # the result was read on the transaction's connection


@every_wait_call
@pytest.mark.django_db
def test_waiting_for_an_uncommitted_chain_raises_at_once(wait, queries):
    chain = approval.enqueue()
    with pytest.raises(ChainNotCommitted, match=r"atomic\(\):' block\. .*run_due_jobs\(\)") as caught:
        wait(chain.id, LONG)
    assert isinstance(caught.value, ChainTimeout), "code that handles timeouts handles this error too"
    assert caught.value.chain_id == chain.id
    assert queries.ids[:2] == [[chain.id], [chain.id]], "the chain was not queried on another connection"


@sync_and_async
def test_uncommitted_chain_in_shared_sqlite_memory_raises_at_once(wait, memory):
    """As in a ``TestCase`` with Django's default test database, an open transaction locks other threads out."""
    with transaction.atomic(using=memory):
        chain = approval.enqueue(using=memory)
        with pytest.raises(ChainNotCommitted):
            wait(chain.id, LONG, using=memory)
    assert threads() == []


@sync_and_async
def test_private_sqlite_memory_is_refused(wait, private_memory):
    chain, ended = approval.enqueue(using=private_memory), approval.enqueue(using=private_memory)
    chains.complete(ended, "done", using=private_memory)
    with pytest.raises(ImproperlyConfigured, match=r"each thread has its own, empty database\. Use a file"):
        wait(chain.id, LONG, using=private_memory)
    assert chains.wait(ended, 5, using=private_memory) == "done"


@pytest.mark.django_db
def test_chain_deleted_in_the_same_transaction_is_not_found():
    chain = approval.enqueue()
    chains.delete(chain.id)
    with pytest.raises(ChainNotFound):
        chain.result(30)


@committed
@pytest.mark.postgresql
@pytest.mark.usefixtures("no_poll")
def test_transaction_may_wait_for_a_committed_chain():
    chain = approval.enqueue()

    def wait_in_transaction(chain_id, timeout):
        with transaction.atomic():
            return chain.result(30)

    waiter = WaitingThread(chain.id, wait=wait_in_transaction)
    until_waiting()
    finish(chain, "done")
    assert waiter.output() == "done"


@committed
@pytest.mark.usefixtures("no_poll")
def test_end_that_is_rolled_back_does_not_notify(queries):
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id)
    queries.until_idle()
    with transaction.atomic():
        finish(chain, "undone")
        transaction.set_rollback(True)
    assert chain.refresh().status == "pending"
    assert waiter.is_alive()
    finish(chain, "done")
    assert waiter.output() == "done"


@committed
@pytest.mark.usefixtures("no_poll")
def test_waiter_is_notified_after_the_commit(queries):
    chain, other = approval.enqueue(), approval.enqueue()
    waiter, other_waiter = WaitingThread(chain.id), WaitingThread(other.id)
    queries.until_idle()
    with transaction.atomic():
        finish(chain, "done")
        if connection.vendor == "postgresql":  # SQLite allows one writer
            on_own_connection(finish, other, "sooner")
            assert other_waiter.output() == "sooner"
        assert waiter.is_alive()
    assert waiter.output() == "done"
    if connection.vendor != "postgresql":
        finish(other)
        other_waiter.output()


class InATestCase(TestCase):
    def test_every_wait_call_returns_the_output(self):
        chain = approval.enqueue()
        with chains.current_job(chain.id, approval) as current:
            current.continue_with(approval)
            current.finish([1])
        assert [wait(chain.id, 0) for wait in WAIT_CALLS.values()] == [[1]] * 4
