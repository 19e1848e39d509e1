"""``acurrent_job`` and ``acomplete``: as in sync code, in a transaction that no other task shares."""

import asyncio
import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound, InvalidOutput, JobAlreadyCompleted, JobTypeMismatch
from django_jobchains.db import async_transactions
from django_jobchains.db.connections import close_thread_connections
from django_jobchains.db.ids import new_id
from tests.completing.work import approval, finish, pending, rows, typed
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.connections import DEADLINE_SECONDS, holding
from tests.support.statements import statements_of_others
from tests.support.waiting import until_completed

pytestmark = committed


def block_threads():
    """Return the names of the threads that run async blocks."""
    return [thread.name for thread in threading.enumerate() if "jobchains-async-block" in thread.name]


#: The ways to run async code: from sync code, or in its own event loop.
RUNS = {
    "async_to_sync": lambda main: async_to_sync(main)(),
    "asyncio.run": lambda main: asyncio.run(main()),
}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@each_run
def test_the_block_takes_several_steps_and_commits_with_the_callers_rows(run):
    chain = pending()

    async def main():
        async with chains.acurrent_job(chain.id, approval) as current:
            assert current.job.id == chain.id
            await Effect.objects.acreate(job_id=chain.id, label="done")
            await current.acontinue_with(typed, 1)
            assert (current.job.type_name, current.job.input) == (typed.name, 1)
            await current.afinish(2)
            assert current.job.output == 2

    run(main)
    assert (chain.refresh().output, Effect.objects.count()) == (2, 1)
    assert block_threads() == []


@each_run
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
def test_an_exception_undoes_the_block(run, error):
    chain = pending()
    before = rows()

    async def main():
        async with chains.acurrent_job(chain.id) as current:
            await Effect.objects.acreate(job_id=chain.id, label="undone")
            await current.afinish()
            raise error

    with pytest.raises(error):
        run(main)
    assert rows() == before


async def awaited(coroutine):
    return await coroutine


def test_the_errors_are_those_of_sync_code():
    chain, ended = typed.enqueue(1), pending()
    finish(ended)
    before = rows()

    async def enter(*args):
        async with chains.acurrent_job(*args):
            raise AssertionError("entered")

    async def end(chain, output):
        async with chains.acurrent_job(chain) as current:
            await current.afinish(output)

    for coroutine, error in (
        (enter(chain.id, approval), JobTypeMismatch),
        (enter(new_id()), ChainNotFound),
        (enter("x"), ValueError),
        (enter(1), TypeError),
        (end(chain, "two"), InvalidOutput),
        (end(ended, None), JobAlreadyCompleted),
        (chains.acomplete(chain.id, "two"), InvalidOutput),
        (chains.acomplete(chain.id, 2, approval), JobTypeMismatch),
    ):
        with pytest.raises(error):
            async_to_sync(awaited)(coroutine)
    assert rows() == before


def test_acomplete_returns_a_chain_that_async_code_can_read():
    chain = pending()

    async def main():
        completed = await chains.acomplete(chain.id, "done", approval)
        return completed.id, completed.status, completed.output, completed.current_job.output

    assert async_to_sync(main)() == (chain.id, "completed", "done", "done")


def test_the_block_joins_the_transaction_of_a_sync_caller():
    async def main(chain):
        async with chains.acurrent_job(chain.id) as current:
            await current.afinish()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        chain = pending()  # only this transaction sees it
        async_to_sync(main)(chain)
        assert chain.refresh().status == "completed"
        raise ZeroDivisionError
    with pytest.raises(ChainNotFound):
        chains.get(chain.id)


@each_run
def test_queries_of_other_tasks_are_not_part_of_the_transaction(run):
    chain = pending()

    async def main():
        entered, written = asyncio.Event(), asyncio.Event()

        async def other():
            await entered.wait()
            is_inside = await sync_to_async(lambda: connection.in_atomic_block)()
            assert not is_inside
            written.set()

        task = asyncio.create_task(other())
        with pytest.raises(ZeroDivisionError):
            async with chains.acurrent_job(chain.id) as current:
                await current.afinish()
                entered.set()
                await written.wait()
                raise ZeroDivisionError
        await task

    run(main)
    assert chain.refresh().status == "pending"


@each_run
def test_simultaneous_blocks_of_several_tasks_end_separately(run):
    kept, undone = pending(), pending()

    async def complete(chain, began, other):
        async with chains.acurrent_job(chain.id) as current:
            began.set()
            if connection.vendor == "postgresql":  # SQLite has one writer at a time
                await other.wait()
            await current.afinish("done")
            if chain is undone:
                raise ZeroDivisionError

    async def main():
        first, second = asyncio.Event(), asyncio.Event()
        calls = complete(kept, first, second), complete(undone, second, first)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), ZeroDivisionError]

    run(main)
    assert (kept.refresh().status, undone.refresh().status) == ("completed", "pending")


def test_after_the_block_queries_run_in_the_previous_thread():
    chain = pending()

    async def main():
        before = await sync_to_async(threading.get_ident)()
        async with chains.acurrent_job(chain.id):
            assert await sync_to_async(threading.get_ident)() != before
        assert await sync_to_async(threading.get_ident)() == before

    asyncio.run(main())


def test_the_connection_is_closed_after_the_block():
    async def main():
        for _ in range(3):
            async with chains.acurrent_job(pending_id):
                pass

    pending_id = pending().id
    with statements_of_others() as statements:
        asyncio.run(main())
    assert statements.connections == 3
    assert block_threads() == []


@each_run
def test_a_task_that_is_cancelled_while_the_connection_is_closed_ends(run, monkeypatch):
    chain, is_closing, may_close = pending(), threading.Event(), threading.Event()

    def close():
        is_closing.set()
        may_close.wait(DEADLINE_SECONDS)
        close_thread_connections()

    monkeypatch.setattr(async_transactions, "close_thread_connections", close)

    async def complete():
        async with chains.acurrent_job(chain.id) as current:
            await current.afinish("done")
        raise AssertionError("the cancellation was lost")

    async def main():
        task = asyncio.create_task(complete())
        await asyncio.to_thread(is_closing.wait, DEADLINE_SECONDS)
        task.cancel()
        await asyncio.sleep(0)
        may_close.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)
    assert chain.refresh().output == "done"
    assert block_threads() == []


@pytest.mark.postgresql
def test_a_task_that_is_cancelled_while_entering_holds_no_lock():
    chain = pending()
    holder = holding(lambda store: store.last_jobs.lock([chain.id]))

    async def enter():
        async with chains.acurrent_job(chain.id):
            raise AssertionError("entered")

    async def main():
        entering = asyncio.create_task(enter())
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The query runs in a thread that the task may need too, so it must not wait there.
            while not await sync_to_async(is_any_lock_awaited)():
                assert not entering.done(), entering
                await asyncio.sleep(0.01)
        entering.cancel()
        holder.go_on()
        with pytest.raises(asyncio.CancelledError):
            await entering

    async_to_sync(main)()
    holder.result()
    assert chains.cancel(chain.id) == {chain.id}
    assert chain.refresh().status == "cancelled"
    assert block_threads() == []


def is_any_lock_awaited():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


def test_an_async_handler_completes_another_chain(processors, start_worker):
    chain = pending()

    @processors.register("completing.decides")
    async def decides(job):
        async with chains.acurrent_job(chain.id) as current:
            await Effect.objects.acreate(job_id=job.id, label="decided")
            await current.afinish("decided")
        return "done"

    decision = decides.enqueue()
    start_worker()
    until_completed(decision)
    assert (decision.refresh().output, chain.refresh().output) == ("done", "decided")
    assert Effect.objects.count() == 1
