"""Whatever completes a job or a record passes through ``around_complete``, also if the handler just returns."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.exceptions import FailJob
from django_jobchains.middleware import LogContext, Middleware, QueryBudget
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Batch, JobType, Processors, RescheduleJob
from django_jobchains.testing import run_due_jobs
from tests.middleware.recording import Recording
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection

pytestmark = committed

KINDS = ("job", "atomic", "continued", "batch", "async", "record", "async record")


class Audit(Middleware):
    """Writes a row in the transaction of each completion."""

    def __init__(self, seen, error=None):
        self.seen = seen
        self.error = error

    @contextmanager
    def around_complete(self, job):
        assert connection.in_atomic_block
        assert job.signal.is_row_locked or isinstance(job, Batch)
        self.seen.append(job.type_name)
        yield
        Effect.objects.create(job_id=uuid4(), label="audit")
        if self.error is not None:
            raise self.error


def returning(kind, processors, steps):
    """Register a handler that just returns, and return a function that adds work for it and one that reads its end."""

    def handle(*args):
        steps.append("handler")

    async def ahandle(*args):
        steps.append("handler")
        await asyncio.sleep(0)

    def continues(job):
        steps.append("handler")
        return job.continue_with(JobType[Any, Any]("outside"))

    if kind.endswith("record"):
        processors.records(Upload, retry_after=None)(ahandle if kind.startswith("async") else handle)
        upload = Upload.objects.create()
        return lambda: Upload.objects.get(pk=upload.pk).state
    options = {"atomic": {"mode": "atomic"}, "batch": {"batch_limit": 5}}.get(kind, {})
    function = {"async": ahandle, "continued": continues}.get(kind, handle)
    chain = processors.register("returns", input=Any, output=Any, **options)(function).enqueue()
    return lambda: Job.objects.get(pk=chain.id).status


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_just_returns_passes_through_around_complete(work, kind):
    steps = []
    processors = Processors(middleware=[Recording("outer", steps), Recording("inner", steps)])
    status = returning(kind, processors, steps)
    work(processors, poll_seconds=0.05)
    assert status() == "completed"
    around_handler = {
        "atomic": ["> outer prepare in a transaction", "> inner prepare in a transaction"],
    }.get(kind, [])
    assert steps == [
        "> outer handler",
        "> inner handler",
        *around_handler,
        "handler",
        "> outer complete in a transaction",
        "> inner complete in a transaction",
        "< inner complete",
        "< outer complete",
        *(["< inner prepare", "< outer prepare"] if around_handler else []),
        "< inner handler",
        "< outer handler",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_its_writes_are_committed_with_the_completion_and_its_error_undoes_both(work, kind):
    seen = []
    good = Processors(middleware=[Audit(seen)])
    status = returning(kind, good, [])
    work(good, poll_seconds=0.05)
    assert (status(), len(seen), Effect.objects.count()) == ("completed", 1, 1)

    Job.objects.all().delete()
    Upload.objects.all().delete()
    bad = Processors(middleware=[Audit(seen, FailJob("no audit"))])
    status = returning(kind, bad, [])
    work(bad, poll_seconds=0.05)
    assert (status(), len(seen), Effect.objects.count()) == ("failed", 2, 1)


def test_what_does_not_complete_does_not_pass_through_it(work):
    seen = []
    processors = Processors(middleware=[Audit(seen)], backoff=Backoff(initial_seconds=100))

    @processors.register("reschedules")
    def reschedules(job):
        raise RescheduleJob(delay=100)

    @processors.register("fails")
    def fails(job):
        raise FailJob

    @processors.register("batch", batch_limit=5)
    def batch(jobs):
        for job in jobs:
            job.fail("no")

    @processors.records(Upload)
    def requeues(record, run):
        run.requeue()
        if run.record.num_failures == 0:
            Upload.objects.filter(pk=record.pk).update(num_failures=1)
        else:
            raise FailJob

    for job_type in (reschedules, fails, batch):
        job_type.enqueue()
    Upload.objects.create()
    work(processors, poll_seconds=0.05)
    assert seen == []


def test_an_explicit_completion_passes_through_it_once(work):
    seen = []
    processors = Processors(middleware=[Audit(seen)])

    @processors.register("completes")
    def completes(job):
        with job.complete():
            pass

    @processors.register("completes later")
    async def completes_later(job):
        await job.acomplete(lambda: None)

    completes.enqueue()
    completes_later.enqueue()
    work(processors)
    assert sorted(seen) == ["completes", "completes later"]


def test_a_lost_lease_is_noticed_before_its_writes(work):
    seen = []
    processors = Processors(middleware=[Audit(seen)])

    @processors.register("outside")
    def outside(job):
        on_own_connection(chains.complete, job.chain_id, "by a person")
        return "by the handler"

    chain = outside.enqueue()
    work(processors)
    assert (chain.refresh().output, seen, Effect.objects.count()) == ("by a person", [], 0)


def test_a_transaction_that_the_handler_left_open_is_reported_as_such(work):
    seen = []
    processors = Processors(middleware=[Audit(seen)], backoff=Backoff(initial_seconds=100))

    @processors.register("leaves")
    def leaves(job):
        transaction.atomic().__enter__()

    chain = leaves.enqueue()
    work(processors)
    assert "TransactionLeftOpen" in str(chain.refresh().current_job.last_error)
    assert seen == []


def test_a_phase_that_the_handler_did_not_await_is_still_its_error(work):
    seen = []
    tasks = []
    entered, may_go = threading.Event(), threading.Event()

    class Releasing(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            yield
            may_go.set()

    processors = Processors(middleware=[Releasing(), Audit(seen)], backoff=Backoff(initial_seconds=100))

    def prepare():
        entered.set()
        may_go.wait(20)

    @processors.register("forgets")
    async def forgets(job):
        task = asyncio.create_task(job.aprepare(prepare))
        await asyncio.to_thread(entered.wait, 20)
        tasks.append(task)

    chain = forgets.enqueue()
    work(processors)
    assert "await them" in str(chain.refresh().current_job.last_error)
    assert seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_middleware_without_the_hook_costs_no_statement(monkeypatch, registry, kind):
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)

    def statements(*middleware):
        registry.slices.clear()
        processors = Processors(middleware=middleware)
        status = returning(kind, processors, [])
        registry.add(processors)
        made = []

        def note(execute, sql, *args):
            made.append(sql)
            return execute(sql, *args)

        with connection.execute_wrapper(note):
            run_due_jobs()
        assert status() == "completed"
        return made

    assert statements(LogContext(), QueryBudget(100)) == statements() != statements(Audit([]))
