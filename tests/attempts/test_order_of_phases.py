"""``prepare()`` and ``complete()`` may each be used once and in this order, and a continuation must be returned."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.exceptions import ContinuationNotAllowed, InvalidInput, JobTypeNotFound, LeaseLost, PhaseError
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.telemetry.events import AttemptAbandoned
from tests.support.attempts import committed
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, prepare, write
from tests.support.waiting import until

pytestmark = committed

after = JobType("after")


def nothing():
    pass


def prepare_twice(jobs):
    yield prepare(write(jobs, "prepared"), "atomic")
    yield prepare(nothing)


def prepare_after_complete(jobs):
    yield complete(write(jobs, "completed"))
    yield prepare(nothing)


def prepare_in_an_unknown_mode(jobs):
    yield prepare(write(jobs, "prepared"), "whatever")


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (prepare_twice, "prepare() can be used once, and before complete()"),
        (prepare_after_complete, "prepare() can be used once, and before complete()"),
        (prepare_in_an_unknown_mode, "prepare(mode='whatever') takes one of the modes 'staged' and 'atomic'."),
    ],
)
def test_prepare_is_used_once_and_first(scenario, handler, words):
    scenario.enqueue(handler)
    scenario.run()
    [error] = scenario.errors()
    assert (scenario.states(), error.startswith(f"PhaseError: {words}"), effects()) == ({"retried"}, True, [])


@kinds(*JOBS, *RECORDS)
def test_complete_is_used_once(scenario):
    def complete_twice(jobs):
        yield complete(write(jobs, "first"))
        yield complete(write(jobs, "second"))

    scenario.enqueue(complete_twice)
    scenario.run()
    assert (scenario.states(), effects()) == ({"retried"}, [])
    [error] = scenario.errors()
    assert error == "PhaseError: complete() can be used once in an attempt: write everything in one block."


def complete_in_complete(job):
    with job.complete():
        effect(job)
        with job.complete():
            pass


def prepare_in_complete(job):
    with job.complete():
        effect(job)
        with job.prepare():
            pass


def complete_in_an_open_transaction(job):
    with transaction.atomic():
        effect(job)
        with job.complete():
            effect(job)


def prepare_in_an_open_transaction(job):
    with transaction.atomic():
        effect(job)
        with job.prepare():
            effect(job)


def complete_in_an_open_transaction_and_swallow_the_error(job):
    with transaction.atomic(), suppress(PhaseError), job.complete():
        effect(job)


def on_another_thread(job, phase):
    def use():
        with phase():
            effect(job)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(use).result()


def complete_on_another_thread(job):
    on_another_thread(job, job.complete)


def complete_on_another_thread_than_prepare(job):
    with job.prepare(mode="atomic"):
        effect(job)
    with suppress(PhaseError):
        on_another_thread(job, job.complete)


def prepare_on_another_thread(job):
    with suppress(PhaseError):
        on_another_thread(job, job.prepare)


def continue_twice(job):
    job.continue_with(after, 1)
    return job.continue_with(after, 2)


def continue_without_returning_it(job):
    job.continue_with(after, 1)


def continue_in_complete_without_returning_it(job):
    with job.complete():
        effect(job)
        job.continue_with(after, 1)


async def prepare_as_a_plain_handler(job):
    with job.prepare():
        pass


async def complete_as_a_plain_handler(job):
    with job.complete():
        pass


async def complete_with_a_coroutine(job):
    async def function():
        pass

    await job.acomplete(function)


async def complete_with_a_function_that_returns_an_awaitable(job):
    awaitable = asyncio.get_running_loop().create_future()
    with suppress(TypeError):
        await job.acomplete(lambda: write([job], "not awaited")() and awaitable)


async def read_blockers_on_the_loop(job):
    job.blockers  # noqa: B018


async def wait_on_the_loop(job):
    job.signal.wait(60)


async def complete_without_awaiting(job):
    task = asyncio.create_task(job.acomplete(write([job], "not awaited")))
    await asyncio.sleep(0)
    assert not task.done()


async def complete_without_beginning(job):
    job.acomplete(write([job], "not awaited"))


async def complete_in_a_task_that_does_not_begin(job):
    task = asyncio.create_task(job.acomplete(write([job], "not awaited")))
    assert not task.done()


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (complete_in_complete, "PhaseError: complete() can be used once"),
        (prepare_in_complete, "PhaseError: prepare() can be used once, and before complete()"),
        (complete_in_an_open_transaction, "PhaseError: Close your own transaction"),
        (prepare_in_an_open_transaction, "PhaseError: Close your own transaction"),
        (complete_in_an_open_transaction_and_swallow_the_error, "PhaseError: Close your own transaction"),
        (complete_on_another_thread, "PhaseError: job.prepare() and job.complete() were used on a thread other than"),
        (complete_on_another_thread_than_prepare, "PhaseError: job.prepare() and job.complete() were used on a thread"),
        (prepare_on_another_thread, "PhaseError: job.prepare() and job.complete() were used on a thread other than"),
        (continue_twice, "PhaseError: continue_with() can be used once"),
        (continue_without_returning_it, "PhaseError: job.continue_with(…) must be returned"),
        (continue_in_complete_without_returning_it, "PhaseError: job.continue_with(…) must be returned"),
        (prepare_as_a_plain_handler, "PhaseError: In an 'async def' handler use 'await job.aprepare(function)'"),
        (complete_as_a_plain_handler, "PhaseError: In an 'async def' handler use 'await job.acomplete(function)'"),
        (complete_with_a_coroutine, "TypeError: job.acomplete() takes a plain function without arguments"),
        (read_blockers_on_the_loop, "SynchronousOnlyOperation: job.blockers would read the database on the event loop"),
        (wait_on_the_loop, "SynchronousOnlyOperation: job.signal.wait() would block the event loop"),
        (complete_without_awaiting, "PhaseError: The handler ended before its job.aprepare() or job.acomplete() did"),
        pytest.param(
            complete_without_beginning,
            "PhaseError: The handler ended before its job.aprepare() or job.acomplete() did",
            marks=pytest.mark.filterwarnings("ignore:coroutine 'AsyncCalls.call' was never awaited"),
        ),
        (complete_in_a_task_that_does_not_begin, "PhaseError: The handler ended before its job.aprepare() or job"),
        (
            complete_with_a_function_that_returns_an_awaitable,
            "TypeError: The function of job.aprepare() or job.acomple",
        ),
        (lambda job: job.aprepare(nothing), "PhaseError: job.aprepare() is for 'async def' handlers"),
        (lambda job: job.acomplete(nothing), "PhaseError: job.acomplete() is for 'async def' handlers"),
        (lambda job: job.ablockers(), "PhaseError: job.ablockers() is for 'async def' handlers"),
    ],
)
def test_misused_phases_fail_the_attempt_and_are_rolled_back(processors, work, handler, error):
    chain = processors.register("misuses")(handler).enqueue()
    work()
    [job] = chain.refresh().jobs
    assert job.status == "pending"
    assert job.last_error.startswith(error)
    assert effects() == []


@pytest.mark.parametrize(
    "end",
    [
        lambda job: chains.complete(job.chain_id),
        lambda job: chains.delete(job.chain_id),
        lambda job: Job.objects.filter(id=job.id).update(status="completed"),
        lambda job: Job.objects.filter(id=job.id).delete(),
    ],
    ids=["complete", "delete chain", "update", "delete"],
)
@kinds(*JOBS)
def test_handler_must_not_end_its_job_inside_complete(scenario, events, end):
    def handler(jobs):
        yield complete(lambda: (write(jobs, "written")(), end(jobs[0])))

    scenario.enqueue(handler)
    scenario.run()
    [error] = scenario.errors()
    assert error.startswith("PhaseError: The handler changed the state")
    assert (scenario.states(), effects(), events.of(AttemptAbandoned)) == ({"retried"}, [], [])


def test_continuation_of_another_job_is_refused(processors, work):
    kept = []

    @processors.register("greedy")
    def greedy(job):
        kept.append(job.continue_with(after, 1))
        return kept[0]

    first, second = greedy.enqueue(), greedy.enqueue(priority=-1)
    work(slots=1)
    assert [job.type_name for job in first.refresh().jobs] == ["greedy", "after"]
    [job] = second.refresh().jobs
    assert (job.status, "the continuation of another job" in job.last_error) == ("pending", True)


def test_job_that_outlives_its_handler_cannot_complete_again(processors, work):
    kept = []

    @processors.register("kept")
    def keep(job):
        if kept:
            until(lambda: Job.objects.get(pk=kept[0].id).status == "completed")
            with pytest.raises(LeaseLost), kept[0].complete():
                effect(kept[0], "too late")
        kept.append(job)

    keep.enqueue()
    keep.enqueue()
    work(slots=1)
    with pytest.raises(PhaseError), kept[0].complete():
        effect(kept[0], "too late")
    assert (len(kept), effects()) == (2, [])


@pytest.mark.parametrize(
    ("target", "input", "error", "allowed"),
    [
        ("other", 1, ContinuationNotAllowed, ["after"]),
        ("unknown", 1, JobTypeNotFound, None),
        (after, {1, 2}, InvalidInput, None),
    ],
)
def test_invalid_continuation_raises_an_error_in_the_handler(processors, work, target, input, error, allowed):
    processors.register("other")(lambda job: None)

    @processors.register("asks", continues_with=allowed)
    def asks(job):
        with pytest.raises(error):
            job.continue_with(target, input)
        return "without it"

    chain = asks.enqueue()
    work()
    assert (chain.refresh().output, Job.objects.count()) == ("without it", 1)
