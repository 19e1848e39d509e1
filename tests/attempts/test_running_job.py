"""The attributes of a running job, and its continuation, which is created in the transaction that completes it."""

import math
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_jobchains import chains
from django_jobchains.chains import DuplicateJobId
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, JobType, Processors
from tests.support.attempts import committed
from tests.support.scenario import complete

pytestmark = committed

after = JobType("after")


def continue_in(place, job, *args, **options):
    if place == "complete":
        with job.complete():
            return job.continue_with(*args, **options)
    return job.continue_with(*args, **options)


def test_job_has_the_attributes_of_its_chain_and_attempt(processors, work):
    seen = []

    def note(job):
        seen.append((job.chain_type_name, job.chain_index, job.type_name, job.attempt, job.worker))
        assert job.last_attempt_at >= job.created_at

    @processors.register("first")
    def first(job):
        note(job)
        return job.continue_with("second", job.input + 1)

    @processors.register("second")
    async def second(job):
        note(job)
        return job.continue_with("third", job.input + 1)

    @processors.register("third", batch_limit=5)
    def third(jobs):
        note(jobs[0])
        jobs[0].finish([jobs[0].input, str(jobs[0].chain_id)])

    chain = first.enqueue(1)
    work()
    one, two, three = chain.refresh().jobs
    worker = three.completed_by
    assert seen == [("first", number, name, 1, worker) for number, name in enumerate(["first", "second", "third"])]
    assert [(job.status, job.output, job.chain_id) for job in (one, two)] == [("completed", None, chain.id)] * 2
    assert (chain.status, chain.input, chain.output) == ("completed", 1, [3, str(chain.id)])


@pytest.mark.parametrize(("own", "limit"), [(None, 2), (1, 1), (3, 3), (math.inf, math.inf)])
@pytest.mark.parametrize("batch_limit", [None, 3])
def test_job_knows_its_limit_and_whether_this_is_its_last_attempt(registry, work, own, limit, batch_limit):
    seen = []
    part = Processors(backoff=Backoff(initial_seconds=0))

    @part.register("fails", max_attempts=2, batch_limit=batch_limit)
    def fails(given):
        job = given if batch_limit is None else given[0]
        seen.append((job.max_attempts, job.is_last_attempt))
        if job.attempt < 5:
            raise ValueError("no luck")

    chain = fails.enqueue(max_attempts=own)
    work(part)
    assert seen == [(limit, number == limit) for number in range(1, min(limit, 5) + 1)]
    assert chain.refresh().status == ("failed" if limit < 5 else "completed")


# Continuations


@pytest.mark.parametrize("place", ["staged", "complete", "atomic"])
def test_continuation_inherits_queue_and_priority_unless_given(processors, work, place):
    mode = "atomic" if place == "atomic" else "staged"

    @processors.register("own", queue="slow", priority=-3)
    def own(job):
        return job.continue_with(after, queue="given", priority=5, delay=60)

    @processors.register("second", mode=mode)
    def second(job):
        return continue_in(place, job, own)

    @processors.register("first", mode=mode)
    def first(job):
        return continue_in(place, job, second)

    chain = first.enqueue(queue="mail", priority=7)
    work()
    queues = [(job.queue, job.priority) for job in chain.refresh().jobs]
    assert queues == [("mail", 7), ("mail", 7), ("slow", -3), ("given", 5)]


@pytest.mark.parametrize("place", ["staged", "complete"])
def test_continuation_may_have_a_delay_or_a_date(processors, work, place):
    run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)

    @processors.register("first")
    def first(job):
        options = {"run_at": run_at} if job.input == "run_at" else {"delay": timedelta(minutes=5)}
        return continue_in(place, job, after, **options)

    at, delayed = first.enqueue("run_at"), first.enqueue("delay")
    work()
    assert at.refresh().current_job.run_at == run_at
    job = delayed.refresh().current_job
    assert abs(job.run_at - job.created_at - timedelta(minutes=5)) < timedelta(milliseconds=2)


def test_failed_step_is_retried_within_its_chain(processors, work):
    @processors.register("second", backoff=Backoff(0, 1, 0, 0))
    def second(job):
        if job.attempt == 1:
            raise ValueError
        return "done"

    chain = processors.register("first")(lambda job: job.continue_with(second)).enqueue()
    work()
    assert (chain.refresh().output, [job.attempt for job in chain.jobs]) == ("done", [1, 2])


@contextmanager
def counted_statements():
    """Record the statements of this connection, and of connections that other threads open."""
    statements, watched = [], []

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
        return continue_in(place, job, link, job.input - 1) if job.input else "end"

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


# Their ids


@pytest.mark.parametrize("completes", [False, True])
def test_handler_chooses_the_id_of_the_next_job(scenario, completes):
    ids = [new_id(), new_id()]

    def handler(jobs):
        def function():
            return [job.continue_with(after, id=id_) for job, id_ in zip(jobs, ids, strict=False)]

        continuations = (yield complete(function)) if completes else function()
        return continuations[0]

    made = scenario.enqueue(handler)
    scenario.run()
    assert [chain.refresh().current_job_id for chain in made] == ids[: len(made)]


@pytest.mark.parametrize("place", ["staged", "complete"])
def test_id_that_exists_fails_only_its_own_attempt(processors, work, place):
    taken = after.enqueue()

    @processors.register("plain")
    def plain(job):
        return continue_in(place, job, after, id=job.input and UUID(job.input))

    made = [plain.enqueue(), plain.enqueue(str(taken.id)), plain.enqueue()]
    work()
    assert [chain.refresh().current_job.chain_index for chain in made] == [1, 0, 1]
    failed = made[1].current_job
    assert (failed.status, failed.attempt) == ("pending", 1)
    assert failed.last_error.startswith("DuplicateJobId: ")
    assert Job.objects.get(pk=taken.id).status == "pending"


@pytest.mark.parametrize("wrong", ["x", 5])
def test_id_must_be_a_uuid(processors, work, wrong):
    chain = processors.register("plain", fail_on=(TypeError, ValueError))(
        lambda job: job.continue_with(after, id=wrong)
    ).enqueue()
    work()
    assert (chain.refresh().status, chain.jobs.count()) == ("failed", 1)
    assert "a uuid.UUID or its string" in chain.last_error


def test_id_may_be_chosen_without_a_worker():
    chain, taken, id_ = after.enqueue(), after.enqueue(), new_id()
    with chains.current_job(chain) as current:
        with pytest.raises(DuplicateJobId):
            current.continue_with(after, id=taken.id)
        current.continue_with(after, id=id_)
        assert current.job.id == id_
    assert [job.status for job in chain.refresh().jobs] == ["completed", "pending"]
