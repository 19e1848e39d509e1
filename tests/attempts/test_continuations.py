"""A continuation is created in the transaction that completes the job before it."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.support.attempts import committed

pytestmark = committed

after = JobType("after")


def test_chain_continues_with_the_next_job(processors, work):
    @processors.register("first")
    def first(job):
        return job.continue_with(second, job.input + 1)

    @processors.register("second")
    def second(job):
        return [job.input, str(job.chain_id)]

    chain = first.enqueue(1)
    work()
    one, two = chain.refresh().jobs
    assert (one.status, one.output, one.chain_index) == ("completed", None, 0)
    assert (two.status, two.chain_id, two.chain_index, two.chain_type_name) == ("completed", chain.id, 1, "first")
    assert (chain.status, chain.input, chain.output) == ("completed", 1, [2, str(chain.id)])


@pytest.mark.parametrize("place", ["staged", "complete", "atomic"])
def test_continuation_inherits_queue_and_priority(processors, work, place):
    @processors.register("first", mode="atomic" if place == "atomic" else "staged")
    def first(job):
        if place == "complete":
            with job.complete():
                return job.continue_with(after)
        return job.continue_with(after)

    chain = first.enqueue(queue="mail", priority=7)
    work()
    job = chain.refresh().current_job
    assert (job.type_name, job.queue, job.priority) == ("after", "mail", 7)


def test_explicit_queue_and_priority_take_precedence(processors, work):
    @processors.register("own", queue="slow", priority=-3)
    def own(job):
        return job.continue_with(own, queue="given", priority=5, delay=60) if job.queue == "slow" else None

    @processors.register("first")
    def first(job):
        return job.continue_with(own)

    chain = first.enqueue(queue="mail", priority=7)
    work()
    assert [(job.queue, job.priority) for job in chain.refresh().jobs] == [("mail", 7), ("slow", -3), ("given", 5)]


@pytest.mark.parametrize("place", ["staged", "complete"])
def test_continuation_may_have_a_delay_or_a_date(processors, work, place):
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)

    @processors.register("first")
    def first(job):
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


def test_failed_step_is_retried_within_its_chain(processors, work):
    @processors.register("first")
    def first(job):
        return job.continue_with(second)

    @processors.register("second")
    def second(job):
        if job.attempt == 1:
            raise ValueError
        return "done"

    chain = first.enqueue()
    work()
    assert (chain.refresh().status, chain.jobs.count()) == ("pending", 2)
    Job.objects.update(run_at=chain.created_at)
    work()
    assert (chain.refresh().output, chain.jobs.count()) == ("done", 2)


@contextmanager
def counted_statements():
    """Record the statements of this connection, and of connections that other threads open."""
    statements = []
    watched = []

    def count(execute, sql, params, many, context):
        statements.append(sql)
        return execute(sql, params, many, context)

    def install(connection, **kwargs):
        connection.execute_wrappers.append(count)
        watched.append(connection)

    connection_created.connect(install)
    try:
        with connection.execute_wrapper(count):
            yield statements
    finally:
        connection_created.disconnect(install)
        for opened in watched:  # includes this thread's connection if it was reopened
            opened.execute_wrappers.remove(count)


@pytest.mark.parametrize("place", ["staged", "complete"])
def test_number_of_statements_does_not_grow_with_the_length_of_the_chain(processors, work, place):
    @processors.register("link")
    def link(job):
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
