"""Errors of one query, thread or call do not affect other waiters."""

import asyncio
import contextlib
import threading
from datetime import timedelta
from fractions import Fraction

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobchains import chains
from django_jobchains.chains import ChainTimeout
from django_jobchains.exceptions import InvalidOutput
from django_jobchains.models import Job
from django_jobchains.notifications import waiting
from tests.support.attempts import committed
from tests.waiting.waiters import (
    LONG,
    approval,
    finish,
    sync_and_async,
    until_waiting,
    waited_for,
    waiter_count,
)

pytestmark = [committed, pytest.mark.usefixtures("no_poll")]


def raises(error):
    raise error


@pytest.mark.parametrize("error", [DatabaseError("gone"), RuntimeError("no room")])
def test_failed_query_is_repeated_before_the_next_poll(queries, error, caplog):
    chain = approval.enqueue()
    finish(chain, "done")
    queries.before_next = lambda: raises(error)
    assert chain.result(60) == "done"
    assert str(error) in caplog.text


def test_timeout_contains_the_error_of_the_last_query(queries, monkeypatch):
    chain = approval.enqueue()
    monkeypatch.setattr(waiting, "FIRST_QUERY_SECONDS", 0.2)
    with monkeypatch.context() as patched:
        patched.setattr(queries, "_record", lambda ids: raises(DatabaseError("no such table")))
        with pytest.raises(ChainTimeout, match=r"the query of its status failed: DatabaseError: no such table\. W"):
            chain.result(0.2)
    monkeypatch.setattr(waiting, "FIRST_QUERY_SECONDS", 30)
    queries.before_next = lambda: raises(DatabaseError("gone"))
    with pytest.raises(ChainTimeout, match="no worker is running"):
        chain.result(1)


@pytest.mark.postgresql
def test_terminated_sessions_are_replaced(queries):
    chain, waiter = waited_for()
    queries.until_idle()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= 1
    finish(chain, "done")
    assert waiter.output() == "done"


def test_thread_start_failure_affects_only_one_call(monkeypatch):
    chain = approval.enqueue()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: raises(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            chains.wait(chain.id, 30)
    assert waiter_count() == 0
    finish(chain, "done")
    assert chain.result(60) == "done"


@contextlib.contextmanager
def abandoned_wait(chain):
    """A task that waits for a chain, and whose event loop is closed."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(chain.aresult(None))
    while not waiter_count():
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    yield
    task._log_destroy_pending = False
    task.get_coro().close()
    assert waiter_count() == 0


def test_closed_event_loop_does_not_affect_other_waiters(queries):
    abandoned = approval.enqueue()
    with abandoned_wait(abandoned):
        chain, waiter = waited_for()
        queries.until_idle()
        with transaction.atomic():
            finish(abandoned)
            finish(chain, "done")
        assert waiter.output() == "done"


@sync_and_async
@pytest.mark.parametrize(
    ("given", "timeout", "error", "message"),
    [
        ("a text", 1, ValueError, r"chain_id='a text' is not an id\. Pass a uuid\.UUID, its string, a Chain or a Job"),
        (7, 1, TypeError, r"chain_id expects a uuid\.UUID, its string, a Chain or a Job, not int"),
        ("chain", "5x", TypeError, "timeout=.* is not a duration: pass seconds, a timedelta"),
        ("chain", float("nan"), ValueError, "timeout=nan"),
    ],
)
def test_invalid_arguments_are_refused(wait, given, timeout, error, message):
    with pytest.raises(error, match=message):
        wait(approval.enqueue() if given == "chain" else given, timeout)
    assert waiter_count() == 0


@sync_and_async
def test_chain_or_job_and_any_length_of_time_may_be_passed(wait):
    chain = approval.enqueue()
    with chains.current_job(chain) as current:
        current.continue_with(approval)
        current.finish("done")
    for given in (chain.id, chain, chain.refresh().current_job):
        for timeout in (timedelta(seconds=30), 10**400, Fraction(10**400), -(10**400)):
            assert wait(given, timeout) == "done"


@sync_and_async
def test_invalid_output_affects_only_waiters_for_its_chain(wait, queries):
    (broken, failing), (fine, other) = waited_for(wait), waited_for(wait)
    queries.until_idle()
    with transaction.atomic():
        finish(broken)
        finish(fine, "done")
        with connection.cursor() as cursor:
            key = broken.id if connection.vendor == "postgresql" else broken.id.hex
            deep = "[" * 990 + "]" * 990
            cursor.execute(
                f"UPDATE {Job._meta.db_table} SET output = %s WHERE output IS NOT NULL AND id = %s", [deep, key]
            )
    assert other.output() == "done"
    with pytest.raises(InvalidOutput, match=r"cannot be decoded|nested deeper"):
        failing.output()


# A call that gives up leaves no waiter


def test_cancelled_task_leaves_no_waiter():
    chain = approval.enqueue()

    async def cancel():
        tasks = [asyncio.create_task(chain.aresult(timeout)) for timeout in (None, 60)]
        await asyncio.to_thread(until_waiting, 2)
        for task in tasks:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert waiter_count() == 0


@pytest.mark.parametrize("loop_steps", range(6))
def test_task_cancelled_during_a_notification_leaves_no_waiter(queries, loop_steps):
    chain = approval.enqueue()

    async def cancel():
        task = asyncio.create_task(chain.aresult(LONG))
        await asyncio.to_thread(until_waiting, 1)
        await asyncio.to_thread(queries.until_idle)
        waiting.get_watcher("default")._waiters[str(chain.id)][0]._notify()
        for _ in range(loop_steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert waiter_count() == 0


def test_timeout_of_the_caller_is_not_a_chain_timeout():
    chain = approval.enqueue()

    async def give_up():
        async with asyncio.timeout(0.1):
            await chain.aresult(None)

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(give_up())
    assert not isinstance(caught.value, ChainTimeout)
    assert waiter_count() == 0
