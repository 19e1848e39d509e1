"""Async handlers use Django's async ORM on a few threads of the worker, which keeps their connections usable."""

import asyncio
import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connection
from django.db.utils import IntegrityError

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import Backoff
from tests.shop.models import Effect
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.scenario import effects, write
from tests.support.statements import statements_of_others
from tests.support.waiting import until_completed

pytestmark = committed


@pytest.fixture(autouse=True)
def _two_threads(settings):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "ASYNC_THREADS": 2}


@pytest.fixture
def run(processors, work):
    """Return a function that runs a handler for each of these inputs, and returns the outputs."""

    def run(handler, inputs=(None,), **options):
        job_type = processors.register("queries", max_attempts=1)(handler)
        made = chains.enqueue_many([job_type.item(given) for given in inputs])
        work(slots=1, **options)
        return [chain.refresh().output or chain.current_job.last_error for chain in made]

    return run


def names_of_threads(part):
    return {thread.name for thread in threading.enumerate() if part in thread.name}


def test_queries_of_many_handlers_share_a_few_connections(run):
    seen = set()

    async def handler(job):
        await Effect.objects.acreate(job_id=job.id, label="written")
        seen.update(names_of_threads("async-queries"))
        return len([effect.label async for effect in Effect.objects.filter(job_id=job.id)])

    with statements_of_others() as statements:
        assert run(handler, range(60)) == [1] * 60
    assert len(seen) <= 2
    # Two connections for the queries, and a few for the worker itself.
    assert statements.connections < 10
    assert names_of_threads("async") == set()


def test_all_queries_of_an_attempt_use_one_thread_so_that_it_can_iterate(run):
    async def handler(job):
        threads = []
        async for _ in Effect.objects.order_by("id").aiterator(chunk_size=2):
            await asyncio.sleep(0)
            threads.append(await sync_to_async(threading.current_thread)())
        return sorted({thread.name for thread in threads})

    Effect.objects.bulk_create(Effect(job_id=job_id, label="x") for job_id in [Job().id] * 9)
    outputs = run(handler, range(8))
    assert [len(output) for output in outputs] == [1] * 8
    assert len({name for output in outputs for name in output}) == 2


def test_plain_orm_on_the_event_loop_is_an_error(run):
    async def handler(job):
        return Effect.objects.count()

    [error] = run(handler)
    assert error.startswith("SynchronousOnlyOperation")


def test_handler_can_handle_a_database_error(run):
    async def handler(job):
        await Effect.objects.acreate(id=1, job_id=job.id, label="first")
        with pytest.raises(IntegrityError):
            await Effect.objects.acreate(id=1, job_id=job.id, label="second")
        return "known"

    assert (run(handler), effects()) == (["known"], ["first"])


@pytest.mark.parametrize("kind", ["query", "transaction"])
def test_closed_connection_is_replaced(processors, start_worker, kind):
    def cut():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor, pytest.raises(OperationalError):
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        else:
            connection.connection.close()

    @processors.register("cuts", backoff=Backoff(0, 1, 0, 0))
    async def cuts(job):
        if kind == "query":
            await Effect.objects.acreate(job_id=job.id, label=str(job.attempt))
            if job.attempt == 1:
                await sync_to_async(cut)()
            await Effect.objects.acount()
        else:
            await job.aprepare(write([job], "prepared"))
            await job.acomplete(cut if job.attempt == 1 else write([job], "completed"))
        return job.attempt

    chain = cuts.enqueue()
    start_worker(poll_seconds=0.05)
    until_completed(chain)
    assert chain.output in (1, 2)


def test_function_in_a_transaction_may_call_async_code(run):
    async def label(job):
        return (await Effect.objects.acreate(job_id=job.id, label="from within")).label

    async def handler(job):
        return await job.acomplete(lambda: async_to_sync(label)(job))

    assert (run(handler), effects()) == (["from within"], ["from within"])


def test_connections_of_other_threads_are_closed_after_each_call(run):
    """The threads of ``asyncio.to_thread`` have no owner, so an open connection there would leak."""

    async def handler(job):
        await asyncio.to_thread(Effect.objects.count)
        first = await asyncio.to_thread(lambda: connection.connection is None)
        await sync_to_async(Effect.objects.count, thread_sensitive=False)()
        return [first, await asyncio.to_thread(lambda: connection.connection is None)]

    assert run(handler) == [[True, True]]


def test_many_attempts_can_share_one_thread(run, settings):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "ASYNC_THREADS": 1}

    async def handler(job):
        await job.aprepare(write([job], "prepared"))
        await asyncio.sleep(0)
        await job.acomplete(write([job], "completed"))
        return "done"

    assert run(handler, range(30)) == ["done"] * 30
    assert Effect.objects.filter(label="completed").count() == 30
