"""The next job of a chain is created in the completion of the one before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed

after = JobType("after")


def test_a_continuation_carries_the_chain_on(processors: Processors, work: Work) -> None:
    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with(second, job.input + 1)

    @processors.register("second")
    def second(job: RunningJob[Any]) -> Any:
        return [job.input, str(job.chain_id)]

    chain = first.enqueue(1)
    work()
    one, two = chain.refresh().jobs
    assert (one.status, one.output, one.chain_index) == ("completed", None, 0)
    assert (two.status, two.chain_id, two.chain_index, two.chain_type_name) == ("completed", chain.id, 1, "first")
    assert (chain.status, chain.input, chain.output) == ("completed", 1, [2, str(chain.id)])


@pytest.mark.parametrize("target", [after, "second"])
def test_a_continuation_is_named_or_given_as_a_job_type(processors: Processors, work: Work, target: Any) -> None:
    processors.register("second")(lambda job: None)

    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with(target)

    chain = first.enqueue()
    work()
    assert chain.jobs.count() == 2


def test_a_continuation_in_complete_commits_with_its_writes(processors: Processors, work: Work) -> None:
    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="done")
            return job.continue_with(after, 2)

    chain = first.enqueue()
    work()
    assert [(job.status, job.input) for job in chain.refresh().jobs] == [("completed", None), ("pending", 2)]
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("place", ["staged", "complete", "atomic"])
def test_a_continuation_inherits_queue_and_priority(processors: Processors, work: Work, place: str) -> None:
    @processors.register("first", mode="atomic" if place == "atomic" else "staged")
    def first(job: RunningJob[Any]) -> Any:
        if place == "complete":
            with job.complete():
                return job.continue_with(after)
        return job.continue_with(after)

    chain = first.enqueue(queue="mail", priority=7)
    work()
    job = chain.refresh().current_job
    assert (job.type_name, job.queue, job.priority) == ("after", "mail", 7)


def test_a_queue_and_priority_of_its_own_win(processors: Processors, work: Work) -> None:
    @processors.register("own", queue="slow", priority=-3)
    def own(job: RunningJob[Any]) -> Any:
        return job.continue_with(own, queue="given", priority=5, delay=60) if job.queue == "slow" else None

    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with(own)

    chain = first.enqueue(queue="mail", priority=7)
    work()
    assert [(job.queue, job.priority) for job in chain.refresh().jobs] == [("mail", 7), ("slow", -3), ("given", 5)]


@pytest.mark.parametrize("place", ["staged", "complete"])
def test_a_continuation_waits_for_its_time(processors: Processors, work: Work, place: str) -> None:
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)

    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        options = {"run_at": run_at} if job.input == "run_at" else {"delay": timedelta(minutes=5)}
        if place == "complete":
            with job.complete():
                return job.continue_with(after, **options)
        return job.continue_with(after, **options)

    at, delayed = first.enqueue("run_at"), first.enqueue("delay")
    work()
    assert at.refresh().current_job.run_at == run_at
    job = delayed.refresh().current_job
    assert abs(job.run_at - job.created_at - timedelta(minutes=5)) < timedelta(milliseconds=2)


def test_a_chain_goes_on_after_a_failed_step(processors: Processors, work: Work) -> None:
    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with(second)

    @processors.register("second")
    def second(job: RunningJob[Any]) -> str:
        if job.attempt == 1:
            raise ValueError
        return "done"

    chain = first.enqueue()
    work()
    assert (chain.refresh().status, chain.jobs.count()) == ("pending", 2)
    Job.objects.update(run_at=chain.created_at)
    work()
    assert (chain.refresh().output, chain.jobs.count()) == ("done", 2)


def test_a_type_that_is_no_entry_may_be_continued_to(processors: Processors, work: Work) -> None:
    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with(inner, "in")

    @processors.register("inner", entry=False)
    def inner(job: RunningJob[Any]) -> Any:
        return job.input

    chain = first.enqueue()
    work()
    assert chain.refresh().output == "in"


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """The statements of every thread: of connections that are opened meanwhile, and of this one."""
    statements: list[str] = []
    watched: list[Any] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    def install(connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers.append(count)
        watched.append(connection)

    connection_created.connect(install)
    try:
        with connection.execute_wrapper(count):
            yield statements
    finally:
        connection_created.disconnect(install)
        for opened in watched:  # this thread's may be one of them, and stay
            opened.execute_wrappers.remove(count)


@pytest.mark.parametrize("place", ["staged", "complete"])
def test_each_link_of_a_long_chain_costs_the_same(processors: Processors, work: Work, place: str) -> None:
    @processors.register("link")
    def link(job: RunningJob[int]) -> Any:
        if place == "complete":
            with job.complete():
                return job.continue_with(link, job.input - 1) if job.input else "end"
        return job.continue_with(link, job.input - 1) if job.input else "end"

    costs = []
    for length in (50, 300):
        chain = link.enqueue(length - 1)
        with counted_statements() as statements:
            work()
        assert (chain.refresh().output, chain.jobs.count()) == ("end", length)
        costs.append(len(statements) / length)
    short, long = costs
    assert long <= short * 1.25
    assert long <= 14
