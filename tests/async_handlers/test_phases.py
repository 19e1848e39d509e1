"""The phases of async handlers: their order, their threads, and the errors for other orders."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import translation

from django_jobchains.models import Chain
from django_jobchains.processors import RunningJob
from tests.async_handlers.effects import effects, write
from tests.support.attempts import committed

pytestmark = committed

Handler = Callable[[RunningJob[Any]], Any]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


@pytest.fixture
def run(once, work):
    """Return a function that runs a handler once."""

    def run(handler: Handler) -> Chain:
        chain = once.register("tried")(handler).enqueue()
        work()
        return chain.refresh()

    return run


def error_of(chain: Chain) -> str:
    assert chain.status == "pending"
    assert effects() == []
    return str(chain.current_job.last_error)


async def prepares_as_a_plain_handler(job: RunningJob[Any]) -> None:
    with job.prepare():
        pass


async def completes_as_a_plain_handler(job: RunningJob[Any]) -> None:
    with job.complete():
        pass


async def completes_with_a_coroutine(job: RunningJob[Any]) -> None:
    async def complete() -> None: ...

    await job.acomplete(complete)


async def reads_blockers(job: RunningJob[Any]) -> None:
    job.blockers  # noqa: B018


async def waits_on_the_loop(job: RunningJob[Any]) -> None:
    job.signal.wait(60)


async def completes_without_awaiting(job: RunningJob[Any]) -> None:
    task = asyncio.create_task(job.acomplete(write(job, "not awaited")))
    await asyncio.sleep(0)
    assert not task.done()


def prepares_as_an_async_handler(job: RunningJob[Any]) -> None:
    job.aprepare(lambda: None)


def completes_as_an_async_handler(job: RunningJob[Any]) -> None:
    job.acomplete(lambda: None)


def reads_blockers_as_an_async_handler(job: RunningJob[Any]) -> None:
    job.ablockers()


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (prepares_as_a_plain_handler, "PhaseError: In an 'async def' handler use 'await job.aprepare(function)'"),
        (completes_as_a_plain_handler, "PhaseError: In an 'async def' handler use 'await job.acomplete(function)'"),
        (completes_with_a_coroutine, "TypeError: job.acomplete() takes a plain function without arguments"),
        (reads_blockers, "SynchronousOnlyOperation: job.blockers would read the database on the event loop"),
        (waits_on_the_loop, "SynchronousOnlyOperation: job.signal.wait() would block the event loop"),
        (completes_without_awaiting, "PhaseError: The handler ended before its job.aprepare() or job.acomplete() did"),
        (prepares_as_an_async_handler, "PhaseError: job.aprepare() is for 'async def' handlers"),
        (completes_as_an_async_handler, "PhaseError: job.acomplete() is for 'async def' handlers"),
        (reads_blockers_as_an_async_handler, "PhaseError: job.ablockers() is for 'async def' handlers"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_misused_phases_raise_an_error_that_says_what_to_do(run, handler, error):
    assert error_of(run(handler)).startswith(error)


def test_function_runs_on_a_thread_with_the_context_of_the_handler(run):
    seen: list[Any] = []

    async def handler(job: RunningJob[Any]) -> None:
        tenant.set("acme")
        with translation.override("de"):
            seen.append(await job.acomplete(lambda: (tenant.get(), translation.get_language())))
            seen.append(await asyncio.to_thread(threading.get_ident) != threading.get_ident())

    assert run(handler).status == "completed"
    assert seen == [("acme", "de"), True]


def test_context_variables_of_one_handler_are_not_visible_to_the_next(once, work):
    seen: list[str] = []

    @once.register("sets")
    async def sets(job: RunningJob[str]) -> None:
        seen.append(tenant.get("unset"))
        tenant.set(job.input)

    for name in ("acme", "zenith"):
        sets.enqueue(name)
    work(async_slots=1)
    assert seen == ["unset", "unset"]


def test_complete_commits_when_the_handler_returns(run):
    """Nothing is visible to other connections before."""

    async def handler(job: RunningJob[Any]) -> int:
        await job.acomplete(write(job, "in complete"))
        return await asyncio.to_thread(lambda: len(effects()))

    assert run(handler).output == 0
    assert effects() == ["in complete"]


def test_phases_started_together_run_one_after_the_other(run):
    async def handler(job: RunningJob[Any]) -> None:
        await asyncio.gather(job.aprepare(write(job, "a")), job.ablockers(), job.acomplete(write(job, "b")))

    assert run(handler).status == "completed"
    assert effects() == ["a", "b"]


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_blockers_are_read_without_blocking_the_loop(once, work, when):
    @once.register("part")
    async def part(job: RunningJob[int]) -> int:
        return job.input * 2

    @once.register("sum")
    async def total(job: RunningJob[Any]) -> list[Any]:
        if when == "before":
            await job.ablockers()
        elif when == "in":
            await job.acomplete(lambda: len(job.blockers))
        else:
            await job.acomplete(lambda: None)
            await job.ablockers()
        return [blocker.output for blocker in job.blockers]

    chain = total.enqueue(blockers=[part.enqueue(1), part.enqueue(2)])
    work()
    assert chain.refresh().output == [2, 4]


def test_many_attempts_can_share_one_thread(once, work, settings):
    @once.register("shares")
    async def shares(job: RunningJob[Any]) -> None:
        await job.aprepare(write(job, "prepared"))
        await asyncio.sleep(0)
        await job.acomplete(write(job, "completed"))

    for _ in range(30):
        shares.enqueue()
    settings.JOBCHAINS = {"ASYNC_THREADS": 1}
    work()
    assert sorted(effects()) == ["completed"] * 30 + ["prepared"] * 30
