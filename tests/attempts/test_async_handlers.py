"""Async handlers: their context, their calls on threads, and the tasks that they leave running."""

import asyncio
import contextvars
import functools
import gc
import threading

import pytest
from django.utils import translation

from tests.support.attempts import committed
from tests.support.scenario import effects, write

pytestmark = committed

tenant = contextvars.ContextVar("tenant")


@pytest.fixture
def run(processors, work):
    """Return a function that runs a handler once."""

    def run(handler):
        chain = processors.register("tried")(handler).enqueue()
        work(slots=1)
        return chain.refresh()

    return run


def test_function_runs_on_a_thread_with_the_context_of_the_handler(run):
    seen = []

    async def handler(job):
        tenant.set("acme")
        with translation.override("de"):
            seen.append(await job.acomplete(lambda: (tenant.get(), translation.get_language())))
            seen.append(await asyncio.to_thread(threading.get_ident) != threading.get_ident())

    assert run(handler).status == "completed"
    assert seen == [("acme", "de"), True]


@pytest.mark.parametrize("is_async", [False, True])
def test_context_variables_of_one_handler_are_not_visible_to_the_next(processors, work, is_async):
    seen = []

    def sets(job):
        seen.append((tenant.get("unset"), translation.get_language()))
        tenant.set("acme")
        translation.activate("fr")

    async def asets(job):
        sets(job)

    job_type = processors.register("sets")(asets if is_async else sets)
    job_type.enqueue()
    job_type.enqueue()
    work(slots=1, async_slots=1)
    assert seen == [("unset", "en-us")] * 2


def test_complete_commits_when_the_handler_returns(run):
    """Nothing is visible to other connections before."""

    async def handler(job):
        await job.acomplete(write([job], "in complete"))
        return await asyncio.to_thread(lambda: len(effects()))

    assert (run(handler).output, effects()) == (0, ["in complete"])


def test_phases_started_together_run_one_after_the_other(run):
    async def handler(job):
        await asyncio.gather(job.aprepare(write([job], "a")), job.ablockers(), job.acomplete(write([job], "b")))

    assert (run(handler).status, effects()) == ("completed", ["a", "b"])


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_blockers_are_read_without_blocking_the_loop(processors, work, when):
    @processors.register("part")
    async def part(job):
        return job.input * 2

    @processors.register("sum")
    async def total(job):
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


def test_chain_may_have_async_and_plain_handlers(processors, work):
    last = processors.register("last")(lambda job: job.input + 1)

    @processors.register("middle")
    async def middle(job):
        await asyncio.sleep(0)
        return job.continue_with(last, job.input + 1)

    @processors.register("first")
    async def first(job):
        await job.acomplete(write([job], "first"))
        return job.continue_with(middle, job.input + 1)

    chain = first.enqueue(1)
    work()
    assert (chain.refresh().output, effects()) == (4, ["first"])


def test_plain_function_that_returns_a_coroutine_is_an_error(run):
    async def real(job):
        return "never awaited"

    @functools.wraps(real)
    def wrapper(job):
        coroutine = real(job)
        coroutine.close()
        return coroutine

    assert "InvalidOutput" in run(wrapper).current_job.last_error


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_error_in_a_task_of_the_handler_does_not_end_the_loop(run, error):
    async def part():
        raise error

    async def handler(job):
        task = asyncio.create_task(part())
        await asyncio.wait([task])
        await job.acomplete(write([job], "kept"))
        return repr(task.exception())

    assert (run(handler).output, effects()) == (f"{error.__name__}()", ["kept"])


def test_remaining_tasks_of_the_handler_are_cancelled(processors, work, caplog):
    left = []

    @processors.register("leaves")
    async def leaves(job):
        async def deeper():
            left.append(asyncio.create_task(asyncio.sleep(600)))
            await asyncio.sleep(600)

        left.append(asyncio.create_task(deeper()))
        await asyncio.sleep(0.01)
        return "done"

    @processors.register("checks")
    async def checks(job):
        await asyncio.wait(left, timeout=10)
        return [task.cancelled() for task in left]

    first, second = leaves.enqueue(priority=1), checks.enqueue()
    work(async_slots=1)
    assert (first.refresh().output, second.refresh().output) == ("done", [True, True])
    assert "left 2 tasks running; they are cancelled" in caplog.text


def test_ended_tasks_of_a_handler_are_freed(run):
    async def many(job):
        for _ in range(50):
            await asyncio.create_task(asyncio.sleep(0))
        gc.collect()
        return len(asyncio.all_tasks())

    assert run(many).output < 10
