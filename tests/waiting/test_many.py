"""Many waiters share one listener and one query at a time, and all of them are notified."""

import asyncio
import random
import threading

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import ChainCancelled, ChainTimeout
from tests.support.attempts import committed
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until
from tests.waiting.waiters import LONG, WaitingThread, approval, sessions, threads, until_waiting

pytestmark = [committed, pytest.mark.slow, pytest.mark.usefixtures("no_poll")]

MANY = 500


def in_tasks(created):
    """Wait in asyncio tasks on one event loop, which runs on a separate thread."""

    async def wait_for_all():
        return await asyncio.gather(*(chain.aresult(LONG) for chain in created), return_exceptions=True)

    results = []
    thread = threading.Thread(target=lambda: results.extend(asyncio.run(wait_for_all())), daemon=True)
    thread.start()
    return lambda: thread.join(LONG) or results


def in_threads(created):
    waiters = [WaitingThread(chain.id, wait=output_or_error) for chain in created]
    return lambda: [waiter.output() for waiter in waiters]


def output_or_error(chain_id, timeout):
    try:
        return chains.wait(chain_id, timeout)
    except Exception as error:
        return error


@pytest.mark.parametrize("wait_for_all", [in_tasks, in_threads])
def test_500_waiters_use_one_connection_and_one_query(wait_for_all, queries):
    created = chains.enqueue_many([approval.item() for _ in range(MANY)])
    if connection.vendor == "postgresql":
        until(lambda: sessions() == 0, what="the sessions of an earlier test are closed")
    with statements_of_others() as statements:
        results = wait_for_all(created)
        until_waiting(MANY)
        before = queries.until_idle()
        assert len(threads()) == 2  # the listener and the watcher
        if connection.vendor == "postgresql":
            assert stays(lambda: sessions() <= 2, 0.2)
            until(lambda: sessions() == 1, what=sessions)  # the watcher closes its connection when it is idle
            assert stays(lambda: sessions() == 1, 0.2)
        chains.cancel(chain.id for chain in created)
        assert [type(result) for result in results()] == [ChainCancelled] * MANY
    assert len(queries) - before <= 3
    assert sum(map(len, queries.ids[before:])) <= 3 * MANY
    assert statements.connections <= 5
    assert len(queries) <= statements.count("jobchains_") <= 2 * len(queries)


def test_no_wake_up_is_lost_while_waiters_come_and_go(processors, start_worker):
    @processors.register("waiting.step")
    def step(job):
        if job.input % 3 == 0:
            with job.complete():
                return job.input
        return job.input if job.input % 2 else job.continue_with("waiting.step", job.input + 1)

    start_worker(slots=4)
    for _ in range(3):
        created = chains.enqueue_many([step.item(number) for number in range(200)])
        impatient = [WaitingThread(chain.id, random.uniform(0, 0.05), output_or_error) for chain in created[::4]]
        patient = [WaitingThread(chain.id) for chain in created]
        outputs = [number if number % 3 == 0 or number % 2 else number + 1 for number in range(200)]
        assert [waiter.output() for waiter in patient] == outputs
        for waiter, output in zip(impatient, outputs[::4], strict=True):
            result = waiter.output()
            assert isinstance(result, ChainTimeout) or result == output
