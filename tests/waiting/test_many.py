"""However many wait: one listener, one look at a time, and everybody is told."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainCancelled, ChainTimeout
from django_jobchains.processors import JobType, Processors, RunningJob
from tests.attempts.work import committed
from tests.waiting.waiters import (
    ASKS,
    LONG,
    Looks,
    Waiting,
    approval,
    finish,
    sessions,
    threads,
    until_waiting,
)
from tests.worker.fixtures import StartWorker
from tests.worker.statements import Statements, statements_of_others
from tests.worker.waiting import stays, until

pytestmark = [committed, pytest.mark.slow]

MANY = 500


class Tasks(threading.Thread):
    """Asyncio tasks that wait on one event loop, on a thread of its own."""

    def __init__(self, created: list[Chain]) -> None:
        super().__init__(daemon=True)
        self._chains = created
        self.answers: list[Any] = []
        self.start()

    def run(self) -> None:
        self.answers = asyncio.run(self._wait())

    async def _wait(self) -> list[Any]:
        return await asyncio.gather(*(chain.aresult(LONG) for chain in self._chains), return_exceptions=True)


def in_tasks(created: list[Chain]) -> Callable[[], list[Any]]:
    tasks = Tasks(created)

    def answers() -> list[Any]:
        tasks.join(LONG)
        return tasks.answers

    return answers


def in_threads(created: list[Chain]) -> Callable[[], list[Any]]:
    waiters = [Waiting(chain.id, ask=answer) for chain in created]
    return lambda: [waiter.output() for waiter in waiters]


def answer(chain_id: UUID, timeout: float | None) -> Any:
    """The output, or the error as a value."""
    try:
        return chains.wait(chain_id, timeout)
    except Exception as error:
        return error


in_both = pytest.mark.parametrize("ask", [in_tasks, in_threads], ids=["tasks", "threads"])


@contextmanager
def counted() -> Iterator[Statements]:
    if connection.vendor == "postgresql":
        until(lambda: sessions() == 0, what="the sessions of an earlier test are closed")
    with statements_of_others() as statements:
        yield statements


@in_both
@pytest.mark.usefixtures("no_poll")
def test_500_waiters_cost_one_connection_and_one_look(ask: Any, looks: Looks) -> None:
    created = chains.enqueue_many([approval.item() for _ in range(MANY)])
    with counted() as statements:
        answers = ask(created)
        until_waiting(MANY)
        before = looks.until_settled(0.3)
        assert len(threads()) == 2  # one listens, one looks
        if connection.vendor == "postgresql":
            assert stays(lambda: sessions() <= 2, 0.2)
            until(sessions_are_one, what=sessions)  # the one that looked is not needed any more
            assert stays(sessions_are_one, 0.2)
        chains.cancel(chain.id for chain in created)
        assert [type(answer) for answer in answers()] == [ChainCancelled] * MANY
    assert len(looks) - before <= 3
    assert sum(map(len, looks.ids[before:])) <= 3 * MANY
    assert statements.connections <= 5
    assert len(looks) <= statements.count("jobchains_") <= 2 * len(looks)


def sessions_are_one() -> bool:
    return sessions() == 1


@pytest.mark.slow
@in_both
@pytest.mark.usefixtures("no_poll")
def test_500_waiters_are_all_told_of_what_a_worker_completes(
    ask: Any, processors: Processors, start_worker: StartWorker
) -> None:
    double: JobType[int, int] = processors.register("waiting.double")(lambda job: job.input * 2)
    created = chains.enqueue_many([double.item(number) for number in range(MANY)])
    answers = ask(created)
    until_waiting(MANY)
    start_worker(slots=4)
    assert answers() == [2 * number for number in range(MANY)]


@pytest.mark.usefixtures("no_poll")
def test_waiters_come_and_go_while_a_worker_completes_and_no_wake_up_is_lost(
    processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("waiting.step")
    def step(job: RunningJob[int]) -> Any:
        if job.input % 3 == 0:
            with job.complete():
                return job.input
        return job.input if job.input % 2 else job.continue_with("waiting.step", job.input + 1)

    start_worker(slots=4)
    for _ in range(3):
        created = chains.enqueue_many([step.item(number) for number in range(200)])
        leavers = [Waiting(chain.id, random.uniform(0, 0.05), answer) for chain in created[::4]]
        stayers = [Waiting(chain.id, LONG, ASKS["wait"]) for chain in created]
        outputs = [number if number % 3 == 0 or number % 2 else number + 1 for number in range(200)]
        assert [waiter.output() for waiter in stayers] == outputs
        left = [waiter.output() for waiter in leavers]
        assert all(given in (output, None) for given, output in zip(map(output_of, left), outputs[::4], strict=True))


def output_of(given: Any) -> Any:
    return None if isinstance(given, ChainTimeout) else given


@pytest.mark.usefixtures("no_poll")
def test_chains_that_end_one_by_one_are_each_told_of(looks: Looks) -> None:
    """Each hint matters: no later one comes to the rescue of a waiter that was passed over."""
    created = chains.enqueue_many([approval.item() for _ in range(30)])
    waiters = [Waiting(chain.id) for chain in created]
    until_waiting(30)
    for chain, waiter in zip(created, waiters, strict=True):
        finish(chain, "done")
        assert waiter.output() == "done"
