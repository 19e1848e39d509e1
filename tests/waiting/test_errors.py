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
    DROPPING,
    LONG,
    WaitingThread,
    approval,
    finish,
    sync_and_async,
    threads,
    until_waiting,
    waiter_count,
)

pytestmark = committed


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("error", [DatabaseError("gone"), RuntimeError("no room")])
def test_failed_query_is_repeated_before_the_next_poll(queries, error, caplog):
    chain = approval.enqueue()
    finish(chain, "done")
    queries.before_next = lambda: raises(error)
    assert chain.result(60) == "done"
    assert str(error) in caplog.text


@pytest.mark.postgresql
@pytest.mark.usefixtures("no_poll")
def test_terminated_sessions_are_replaced(queries):
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id)
    queries.until_idle()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= 1
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.parametrize("backend", ["tests.waiting.test_errors.BrokenNotifier", "tests.nowhere.Notifier"])
def test_chains_are_polled_without_a_listener(settings, backend, caplog):
    chain = approval.enqueue()
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}}
    waiter = WaitingThread(chain.id)
    until_waiting()
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": DROPPING}}
    finish(chain, "done")
    assert waiter.output() == "done"
    assert "so they are polled" in caplog.text
    waiting.get_watcher("default").close(30)
    assert threads() == []


@pytest.mark.usefixtures("no_poll")
def test_thread_start_failure_affects_only_one_call(monkeypatch):
    chain = approval.enqueue()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: raises(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            chains.wait(chain.id, 30)
    assert waiter_count() == 0
    finish(chain, "done")
    assert chain.result(60) == "done"


@pytest.mark.usefixtures("no_poll")
def test_closed_event_loop_does_not_affect_other_waiters(queries):
    chain = approval.enqueue()
    with abandoned_wait(chain):
        waiter = WaitingThread(chain.id)
        until_waiting(2)
        finish(chain, "done")
        assert waiter.output() == "done"
        later = approval.enqueue()
        waiter = WaitingThread(later.id)
        queries.until_idle()
        finish(later, "done too")
        assert waiter.output() == "done too"


@sync_and_async
@pytest.mark.usefixtures("no_poll")
def test_invalid_arguments_affect_only_one_call(wait, queries):
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id)
    queries.until_idle()
    for wrong in ({"id": chain.id}, str(chain.id), [chain.id], None):
        with pytest.raises(TypeError, match=r"chain_id expects a uuid\.UUID, a Chain or a Job"):
            wait(wrong, LONG)
    for timeout in ("5m", [5]):
        with pytest.raises(TypeError, match=r"timeout=.* is not a length of time: pass seconds, or a timedelta"):
            wait(chain.id, timeout)
    with pytest.raises(ValueError, match="timeout=nan"):
        wait(chain.id, float("nan"))
    finish(chain, "done")
    assert waiter.output() == "done"


@sync_and_async
def test_timeout_may_exceed_the_range_of_floats(wait):
    chain = approval.enqueue()
    finish(chain, "done")
    for timeout in (10**400, Fraction(10**400), -(10**400)):
        assert wait(chain.id, timeout) == "done"


@sync_and_async
def test_chain_or_job_may_be_passed_instead_of_an_id(wait):
    chain = approval.enqueue()
    with chains.current_job(chain) as current:
        current.continue_with(approval)
        current.finish("done")
    for given in (chain.id, chain, chain.refresh().current_job):
        assert wait(given, timedelta(seconds=30)) == "done"


@sync_and_async
@pytest.mark.usefixtures("no_poll")
def test_invalid_output_affects_only_waiters_for_its_chain(wait, queries):
    broken, fine = approval.enqueue(), approval.enqueue()
    waiters = [WaitingThread(broken.id, wait=wait), WaitingThread(fine.id, wait=wait)]
    until_waiting(2)
    queries.until_idle()
    with transaction.atomic():
        finish(broken)
        finish(fine, "done")
        with connection.cursor() as cursor:
            deep = "[" * 990 + "]" * 990
            table = Job._meta.db_table
            cursor.execute(f"UPDATE {table} SET output = %s WHERE output IS NOT NULL AND id = %s", [deep, key(broken)])
    assert waiters[1].output() == "done"
    with pytest.raises(InvalidOutput, match=r"cannot be decoded|nested deeper"):
        waiters[0].output()


def key(chain):
    """Return the chain's primary key as its database stores it."""
    return chain.id if connection.vendor == "postgresql" else chain.id.hex


def raises(error):
    raise error


class BrokenNotifier:
    """A notifier whose listeners cannot be created."""

    carries_hints = True

    def __init__(self, using):
        self.using = using

    def publish(self, hints):
        pass

    def close(self):
        pass

    def listen(self, on_hint):
        raise OSError("no route to host")


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


@pytest.mark.usefixtures("no_poll")
def test_cancelled_task_leaves_no_waiter():
    chain = approval.enqueue()

    async def cancel():
        tasks = [asyncio.create_task(chain.aresult(timeout)) for timeout in (None, 60)]
        await asyncio.to_thread(until_waiting, 2)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert waiter_count() == 0


@pytest.mark.usefixtures("no_poll")
def test_task_cancelled_during_a_notification_leaves_no_waiter(queries):
    chain = approval.enqueue()

    async def cancel(loop_steps):
        task = asyncio.create_task(chain.aresult(LONG))
        await asyncio.to_thread(until_waiting, 1)
        await asyncio.to_thread(queries.until_idle)
        waiting.get_watcher("default")._waiters[str(chain.id)][0]._notify()
        for _ in range(loop_steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for loop_steps in range(6):
        asyncio.run(cancel(loop_steps))
        assert waiter_count() == 0


@pytest.mark.usefixtures("no_poll")
def test_asyncio_timeout_of_the_caller_is_not_a_chain_timeout():
    chain = approval.enqueue()

    async def give_up():
        async with asyncio.timeout(0.1):
            await chain.aresult(None)

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(give_up())
    assert not isinstance(caught.value, ChainTimeout)
    assert waiter_count() == 0


def test_timeout_leaves_no_waiter():
    with pytest.raises(ChainTimeout):
        approval.enqueue().result(0.01)
    assert waiter_count() == 0
