"""Middleware runs on the event loop around an ``async def`` handler, and on a thread around its phases."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from django_jobchains import context
from django_jobchains.middleware import ActorContext, LogContext, Middleware, QueryBudget
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors
from tests.middleware.recording import Failing, Recording, Swallowing, processors_with
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed

other = JobType("other")


def query(times=1):
    for _ in range(times):
        list(Effect.objects.filter(label="none"))


def test_hooks_run_in_order_on_the_thread_of_their_phase(work):
    seen = []
    threads = {"handler": set(), "phases": set()}

    class Threads(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            threads["handler"].add(threading.get_ident())
            yield
            threads["handler"].add(threading.get_ident())

        @contextmanager
        def around_prepare(self, job) -> Iterator[None]:
            threads["phases"].add(threading.get_ident())
            seen.append(f"in a transaction: {connection.in_atomic_block}")
            yield

        around_complete = around_prepare

    processors = processors_with(Recording("outer", seen), Threads())

    @processors.register("talks")
    async def talks(job):
        threads["handler"].add(threading.get_ident())
        await job.aprepare(lambda: seen.append("prepare"))
        await job.acomplete(lambda: seen.append("complete"))

    chain = talks.enqueue()
    work(processors)
    assert chain.refresh().status == "completed"
    assert seen == [
        "> outer handler",
        "> outer prepare in a transaction",
        "in a transaction: True",
        "prepare",
        "< outer prepare",
        "> outer complete in a transaction",
        "in a transaction: True",
        "complete",
        "< outer complete",
        "< outer handler",
    ]
    assert len(threads["handler"]) == 1
    assert not threads["handler"] & threads["phases"]


@pytest.mark.parametrize("phase", ["handler", "prepare", "complete"])
@pytest.mark.parametrize("when", ["called", "entered", "left"])
def test_error_of_middleware_fails_the_attempt(work, phase, when):
    processors = processors_with(Failing(phase, when, RuntimeError("no tenant")))

    @processors.register("good")
    async def good(job):
        await job.aprepare(lambda: None)
        await job.acomplete(lambda: Effect.objects.create(job_id=job.id, label="complete"))

    chain = good.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error) == ("pending", "RuntimeError: no tenant")
    assert not Effect.objects.exists()


@pytest.mark.parametrize("phase", ["handler", "prepare", "complete"])
def test_error_that_middleware_swallows_fails_the_attempt(work, phase):
    processors = processors_with(Swallowing(phase))

    def fail():
        raise RuntimeError("declined")

    @processors.register("fails")
    async def fails(job):
        if phase == "prepare":
            await job.aprepare(fail)
        if phase == "complete":
            await job.acomplete(fail)
        fail()

    chain = fails.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error) == ("pending", "RuntimeError: declined")


def test_included_middleware_keeps_concurrent_handlers_apart(work, caplog):
    processors = Processors(middleware=[LogContext("tenant"), ActorContext(), QueryBudget(3)])
    logger = logging.getLogger("tests.middleware.together")
    count, arrived, all_arrived = 100, [0], asyncio.Event()

    @processors.register("together")
    async def together(job):
        arrived[0] += 1
        if arrived[0] == count:
            all_arrived.set()
        await all_arrived.wait()
        for _ in range(3):
            await asyncio.sleep(0)
            assert context.current() == {"tenant": job.input}
            logger.warning("%s %s", job.id, job.input)

    for number in range(count):
        with context.bound(tenant=number):
            together.enqueue(number)
    work(processors)
    assert Job.objects.with_status("completed").count() == count
    records = [record for record in caplog.records if record.name == logger.name]
    assert len(records) == 3 * count
    assert all(record.getMessage() == f"{record.job_id} {record.tenant}" for record in records)


def test_log_records_of_a_phase_and_of_a_task_have_the_fields(work, caplog):
    processors = processors_with(LogContext())
    logger = logging.getLogger("tests.middleware.phases")

    @processors.register("talks")
    async def talks(job):
        async def log():
            logger.warning("in a task")

        async with asyncio.TaskGroup() as group:
            group.create_task(log())
        await job.aprepare(lambda: logger.warning("in prepare"))
        await job.acomplete(lambda: logger.warning("in complete"))

    chain = talks.enqueue()
    work(processors)
    records = [record for record in caplog.records if record.name == logger.name]
    assert [(record.getMessage(), record.job_id) for record in records] == [
        (text, str(chain.id)) for text in ("in a task", "in prepare", "in complete")
    ]


@pytest.mark.parametrize("is_warm", [False, True])
def test_queries_of_all_threads_are_counted_once(work, caplog, is_warm):
    """The connections may have been opened before, by handlers without a budget."""
    plain, limited = processors_with(), processors_with(QueryBudget(0))

    async def queries(job):
        await Effect.objects.acount()
        await job.aprepare(lambda: query(2))
        assert list(await job.ablockers()) == []
        await other.aenqueue()
        await job.acomplete(lambda: query(4))
        await Effect.objects.acount()

    first, second = plain.register("plain")(queries), limited.register("limited")(queries)
    if is_warm:
        first.enqueue(priority=9)
    chain = second.enqueue()
    work(plain, limited, async_slots=1)
    assert chain.refresh().status == "completed"
    assert f"limited {chain.id} made 8 queries; its budget is 0." in caplog.text


def test_budget_may_fail_an_async_handler_in_its_transaction(work):
    processors = processors_with(QueryBudget(2, action="fail"))

    @processors.register("queries")
    async def queries(job):
        def write():
            Effect.objects.create(job_id=job.id, label="own")
            query(5)

        await job.acomplete(write)

    chain = queries.enqueue()
    work(processors)
    assert "more than 2 queries" in str(chain.refresh().current_job.last_error)
    assert not Effect.objects.exists()


def test_chains_that_an_async_handler_enqueues_have_its_context(work):
    processors = processors_with(ActorContext())

    @processors.register("acts")
    async def acts(job):
        await other.aenqueue(1)
        await job.acomplete(lambda: other.enqueue(2))

    with context.bound(tenant="acme"):
        acts.enqueue()
    work(processors)
    assert list(Job.objects.of_type("other").values_list("context", flat=True)) == [{"tenant": "acme"}] * 2
