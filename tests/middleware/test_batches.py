"""Middleware runs once around the handler of a batch."""

import logging
from contextlib import contextmanager

import pytest

from django_jobchains import context
from django_jobchains.handlers.batch import Batch
from django_jobchains.middleware import ActorContext, LogContext, Middleware, QueryBudget
from tests.middleware.recording import Recording, processors_with
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


def enqueue(job_type, *contexts):
    chains = []
    for number, values in enumerate(contexts):
        with context.bound(**values):
            chains.append(job_type.enqueue(number))
    return chains


def statuses(chains):
    return [chain.refresh().status for chain in chains]


def test_each_hook_runs_once_with_the_batch(work):
    seen = []
    batches = []

    class Reading(Middleware):
        @contextmanager
        def around_handler(self, job):
            batches.append((type(job), len(job), job.type_name))
            job.context["client"] = "client"
            yield

    processors = processors_with(Recording("it", seen), Reading())

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        with jobs.complete():
            seen.append(jobs.context["client"])

    chains = enqueue(handle, {}, {}, {})
    work(processors, slots=1)
    assert statuses(chains) == ["completed"] * 3
    assert batches == [(Batch, 3, "batch")]
    assert seen == [
        "> it handler",
        "> it complete in a transaction",
        "client",
        "< it complete",
        "< it handler",
    ]


def test_context_of_a_batch_contains_what_its_jobs_have_in_common(work):
    seen = []
    processors = processors_with(ActorContext())

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        seen.append((jobs.context, dict(context.current()), [job.context for job in jobs]))

    own = [{"tenant": "acme", "flag": 1, "r": n, f"only{n}": n} for n in range(2)]
    enqueue(handle, *own)
    work(processors, slots=1)
    assert seen == [({"tenant": "acme", "flag": 1}, {"tenant": "acme", "flag": 1}, own)]


@pytest.mark.parametrize("others", [{"tenant": "umbrella"}, {"tenant": True}, {}])
def test_context_is_empty_if_the_jobs_differ(work, others):
    seen = []
    processors = processors_with(ActorContext())

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        seen.append((len(jobs), dict(context.current()), jobs.context))

    enqueue(handle, {"tenant": 1}, others)
    work(processors, slots=1)
    assert seen == [(2, {}, {})]


def test_job_without_required_values_fails_alone_and_is_not_passed_to_the_handler(work):
    seen = []
    processors = processors_with(ActorContext(require=["tenant"]))

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        with jobs.complete():
            for job in jobs:
                seen.append((job.input, context.current()["tenant"]))
                job.finish()

    chains = enqueue(handle, {"tenant": "acme"}, {"actor": 1}, {"tenant": "acme"})
    work(processors, slots=1)
    assert statuses(chains) == ["completed", "failed", "completed"]
    assert "Its context has no tenant" in str(chains[1].current_job.last_error)
    assert sorted(seen) == [(0, "acme"), (2, "acme")]


def test_handler_does_not_run_if_no_job_is_left(work):
    processors = processors_with(ActorContext(require=["tenant"]))

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        raise AssertionError("The handler ran.")

    chains = enqueue(handle, {}, {})
    work(processors, slots=1)
    assert statuses(chains) == ["failed", "failed"]


def test_log_records_contain_what_the_jobs_of_a_batch_have_in_common(work, caplog):
    processors = processors_with(LogContext("tenant"))

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        logging.getLogger("tests.middleware").warning("in the batch")

    enqueue(handle, {"tenant": "acme"}, {"tenant": "acme", "r": 1})
    work(processors, slots=1)
    (record,) = (record for record in caplog.records if record.getMessage() == "in the batch")
    fields = record
    assert (fields.job_type, fields.job_id, fields.attempt, fields.tenant) == ("batch", "", "", "acme")


def test_batch_has_one_budget_and_queries_of_the_library_are_not_counted(work, caplog):
    processors = processors_with(QueryBudget(2))

    @processors.register("batch", batch_limit=10)
    def handle(jobs):
        with jobs.prepare():
            Effect.objects.count()
        assert [list(job.blockers) for job in jobs] == [[], [], []]
        with jobs.complete():
            for job in jobs:
                Effect.objects.create(job_id=job.id, label="batch")

    enqueue(handle, {}, {}, {})
    work(processors, slots=1)
    assert "batch made 4 queries; its budget is 2." in caplog.text
