"""Async handlers use Django's async ORM on a few threads of the worker, which keeps their connections usable."""

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connection, transaction
from django.db.utils import IntegrityError

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from tests.async_handlers.effects import effects, write
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.statements import statements_of_others
from tests.support.waiting import until_completed

pytestmark = committed


def names_of_threads(part: str) -> set[str]:
    return {thread.name for thread in threading.enumerate() if part in thread.name}


def test_queries_of_many_handlers_share_a_few_connections(once, work):
    seen: set[str] = set()

    @once.register("queries")
    async def queries(job: RunningJob[int]) -> int:
        await Effect.objects.acreate(job_id=job.id, label="written")
        seen.update(names_of_threads("async-queries"))
        labels = [effect.label async for effect in Effect.objects.filter(job_id=job.id)]
        return len(labels)

    chains.enqueue_many([queries.item(number) for number in range(60)])
    with statements_of_others() as statements:
        work()
    assert set(Job.objects.values_list("output", flat=True)) == {1}
    assert len(seen) <= 2
    # Two connections for the queries, and a few for the worker itself.
    assert statements.connections < 10
    assert names_of_threads("async") == set()


def test_all_queries_of_an_attempt_use_one_thread_so_that_it_can_iterate(once, work):
    @once.register("iterates")
    async def iterates(job: RunningJob[int]) -> list[str]:
        threads = []
        async for _ in Effect.objects.order_by("id").aiterator(chunk_size=2):
            await asyncio.sleep(0)
            threads.append(await sync_to_async(threading.current_thread)())
        return sorted({thread.name for thread in threads})

    Effect.objects.bulk_create(Effect(job_id=job_id, label="x") for job_id in [Job().id] * 9)
    chains.enqueue_many([iterates.item(number) for number in range(8)])
    work()
    outputs = list(Job.objects.values_list("output", flat=True))
    assert [len(output) for output in outputs] == [1] * 8
    assert len({name for output in outputs for name in output}) == 2


def test_plain_orm_on_the_event_loop_is_an_error(once, work):
    @once.register("blocks")
    async def blocks(job: RunningJob[Any]) -> int:
        return Effect.objects.count()

    chain = blocks.enqueue()
    work()
    assert str(chain.refresh().current_job.last_error).startswith("SynchronousOnlyOperation")


def begins() -> None:
    connection.cursor().execute("BEGIN")


def leaves_autocommit_off() -> None:
    connection.set_autocommit(False)


def enters_atomic() -> None:
    transaction.atomic().__enter__()


@pytest.mark.parametrize("leave_open", [begins, leaves_autocommit_off, enters_atomic])
def test_transaction_left_open_on_a_shared_connection_loses_no_writes(once, work, settings, leave_open):
    @once.register("leaves")
    async def leaves(job: RunningJob[Any]) -> None:
        await sync_to_async(leave_open)()

    @once.register("writes")
    async def writes(job: RunningJob[Any]) -> None:
        await Effect.objects.acreate(job_id=job.id, label="kept")

    first, second = leaves.enqueue(priority=1), writes.enqueue()
    work(async_slots=1)
    assert str(first.refresh().current_job.last_error).startswith("TransactionLeftOpen")
    assert (second.refresh().status, effects()) == ("completed", ["kept"])


def test_handler_can_handle_a_database_error(once, work):
    @once.register("twice")
    async def twice(job: RunningJob[Any]) -> str:
        await Effect.objects.acreate(id=1, job_id=job.id, label="first")
        try:
            await Effect.objects.acreate(id=1, job_id=job.id, label="second")
        except IntegrityError:
            return "known"
        return "unknown"

    chain = twice.enqueue()
    work()
    assert (chain.refresh().output, effects()) == ("known", ["first"])


@pytest.mark.parametrize("kind", ["query", "transaction"])
def test_closed_connection_is_replaced(processors, start_worker, kind):
    def cut() -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor, pytest.raises(OperationalError):
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        else:
            connection.connection.close()

    @processors.register("cuts")
    async def cuts(job: RunningJob[Any]) -> int:
        if kind == "query":
            await Effect.objects.acreate(job_id=job.id, label=str(job.attempt))
            if job.attempt == 1:
                await sync_to_async(cut)()
            await Effect.objects.acount()
        else:
            await job.aprepare(write(job, "prepared"))
            await job.acomplete(cut if job.attempt == 1 else write(job, "completed"))
        return job.attempt

    start_worker()
    chain = cuts.enqueue()
    until_completed(chain)
    assert chain.output in (1, 2)


def test_function_in_a_transaction_may_call_async_code(once, work):
    async def label(job: RunningJob[Any]) -> str:
        effect = await Effect.objects.acreate(job_id=job.id, label="from within")
        return effect.label

    @once.register("calls async code")
    async def calls_async_code(job: RunningJob[Any]) -> str:
        return await job.acomplete(lambda: async_to_sync(label)(job))

    chain = calls_async_code.enqueue()
    work()
    assert (chain.refresh().output, effects()) == ("from within", ["from within"])


def test_connections_of_other_threads_are_closed_after_each_call(once, work):
    """The threads of ``asyncio.to_thread`` have no owner, so an open connection there would leak."""

    @once.register("aside")
    async def aside(job: RunningJob[Any]) -> list[bool]:
        await asyncio.to_thread(Effect.objects.count)
        first = await asyncio.to_thread(lambda: connection.connection is None)
        await sync_to_async(Effect.objects.count, thread_sensitive=False)()
        return [first, await asyncio.to_thread(lambda: connection.connection is None)]

    chain = aside.enqueue()
    work()
    assert chain.refresh().output == [True, True]


def test_enqueueing_from_an_async_handler(once, work):
    @once.register("child")
    async def child(job: RunningJob[int]) -> int:
        return job.input

    @once.register("parent")
    async def parent(job: RunningJob[Any]) -> None:
        await child.aenqueue(7)

    parent.enqueue()
    work()
    assert list(Job.objects.of_type("child").values_list("output", flat=True)) == [7]
