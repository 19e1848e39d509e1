"""Waiting inside a transaction, which sees its own writes, as in a ``TestCase`` that never commits."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.chains import ChainCancelled, ChainNotCommitted, ChainNotFound, ChainTimeout
from tests.support.attempts import committed, on_own_connection
from tests.waiting.waiters import (
    LONG,
    approval,
    every_wait_call,
    finish,
    sync_and_async,
    threads,
    waited_for,
)


@every_wait_call
@pytest.mark.django_db
def test_end_in_the_same_transaction_is_seen(wait):
    chain, cancelled, deleted = approval.enqueue(), approval.enqueue(), approval.enqueue()
    finish(chain, "done")
    assert wait(chain.id, 0) == wait(chain.id, None) == "done"
    chains.cancel(cancelled.id)
    with pytest.raises(ChainCancelled):
        wait(cancelled.id, None)
    assert threads() == []  # the results were read on the transaction's connection
    chains.delete(deleted.id)
    with pytest.raises(ChainNotFound):
        wait(deleted.id, 30)


@every_wait_call
@pytest.mark.django_db
def test_waiting_for_an_uncommitted_chain_raises_at_once(wait, queries):
    chain = approval.enqueue()
    with pytest.raises(ChainNotCommitted, match=r"block\. .*non_atomic_requests\. .*run_due_jobs\(\)") as caught:
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
    assert wait(ended, 5, using=private_memory) == "done"


@committed
@pytest.mark.postgresql
@pytest.mark.usefixtures("no_poll")
def test_transaction_may_wait_for_a_committed_chain():
    def wait_in_transaction(chain_id, timeout):
        with transaction.atomic():
            return chains.wait(chain_id, timeout)

    chain, waiter = waited_for(wait_in_transaction)
    finish(chain, "done")
    assert waiter.output() == "done"


@committed
@pytest.mark.usefixtures("no_poll")
def test_end_that_is_rolled_back_does_not_notify(queries):
    chain, waiter = waited_for()
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
    (chain, waiter), (other, other_waiter) = waited_for(), waited_for()
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
