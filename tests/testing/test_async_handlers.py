"""``run_due_jobs`` runs async handlers in the thread, on the connection and in the transaction of a test."""

import asyncio
import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from django_jobchains.testing import aassert_enqueued, afire_schedules, arun_due_jobs
from tests.support.scenario import effects, write


def test_functions_and_queries_run_in_the_transaction_of_the_test(jobchains, processors):
    threads, left = [], []
    next_ = processors.register("kit.next")(lambda job: job.input)

    @processors.register("kit.async")
    async def handler(job):
        left.append(asyncio.create_task(asyncio.sleep(600)))
        threads.append(await job.aprepare(threading.get_ident))
        await asyncio.sleep(0)
        threads.append(await sync_to_async(threading.get_ident)())
        label = await job.acomplete(write([job], "completed"))
        return job.continue_with(next_, label)

    chain = handler.enqueue()
    outcomes = jobchains.run_due_jobs(raise_errors=True)
    assert [outcome.ending for outcome in outcomes] == ["continued", "completed"]
    assert threads == [threading.get_ident()] * 2
    assert (chain.result(timeout=0), effects()) == ("completed", ["completed"])
    assert connection.in_atomic_block
    assert left[0].cancelled()


def test_error_rolls_back_the_phase_and_keeps_the_transaction_of_the_test(jobchains, processors):
    @processors.register("kit.broken")
    async def broken(job):
        await job.aprepare(write([job], "prepared"))
        await job.acomplete(write([job], "completed"))
        raise SystemExit(3)

    broken.enqueue()
    [outcome] = jobchains.run_due_jobs()
    assert (outcome.ending, outcome.error, effects()) == ("retried", "SystemExit: 3", ["prepared"])
    assert connection.in_atomic_block


@pytest.mark.django_db
def test_run_due_jobs_can_be_called_from_an_async_test(processors):
    @processors.register("kit.async")
    async def handler(job):
        return await job.acomplete(write([job], "completed"))

    async def enqueue_and_run():
        chain = await handler.aenqueue()
        assert [job.id for job in await aassert_enqueued(handler)] == [chain.id]
        assert await afire_schedules() == []
        [outcome] = await arun_due_jobs(raise_errors=True)
        assert outcome.job.status == "completed"
        return await chain.aresult(timeout=0)

    assert async_to_sync(enqueue_and_run)() == "completed"
