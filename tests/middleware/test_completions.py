"""Whatever completes a job or a record passes through ``around_complete``, also if the handler just returns."""

import asyncio
import threading
from contextlib import contextmanager
from uuid import uuid4

import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.exceptions import FailJob
from django_jobchains.middleware import LogContext, Middleware, QueryBudget
from django_jobchains.models import Job
from django_jobchains.processors import Batch, JobType, Processors, RescheduleJob
from django_jobchains.testing import run_due_jobs
from tests.middleware.recording import Recording
from tests.records.models import Export
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.scenario import JOBS, RECORDS, Scenario, complete, effect, kinds, outside

pytestmark = committed

every_kind = kinds(*JOBS, *RECORDS)


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


def returns(jobs):
    yield outside(lambda: None)


def around(*steps):
    hooks = ["handler", *(["prepare"] if "prepare" in steps else [])]
    opened = [f"> {name} {hook}{'' if hook == 'handler' else ' in a transaction'}" for hook in hooks for name in "ab"]
    completed = ["> a complete in a transaction", "> b complete in a transaction", "< b complete", "< a complete"]
    return [*opened, "handler", *completed, *(f"< {name} {hook}" for hook in reversed(hooks) for name in "ba")]


@pytest.fixture
def run(scenario):
    """Return a function that runs a handler in a slice with this middleware, and returns the states."""

    def run(handler, *middleware, **options):
        used = scenario.with_middleware(*middleware)
        used.enqueue(handler, **({"retry_after": None} if used.kind in RECORDS else {}), **options)
        used.run()
        return used.states()

    return run


@every_kind
def test_a_handler_that_just_returns_passes_through_around_complete(run):
    steps = []

    def handler(jobs):
        steps.append("handler")
        yield from returns(jobs)

    assert run(handler, Recording("a", steps), Recording("b", steps)) == {"completed"}
    assert steps == around()


@pytest.mark.parametrize("is_atomic", [False, True])
@kinds("plain")
def test_an_atomic_handler_and_one_that_continues_pass_through_it(run, is_atomic):
    steps = []

    def handler(jobs):
        steps.append("handler")
        yield from returns(jobs)
        if not is_atomic:
            return jobs[0].continue_with(JobType("outside"))

    states = run(handler, Recording("a", steps), Recording("b", steps), mode="atomic" if is_atomic else "staged")
    assert states == {"completed" if is_atomic else "waiting"}
    assert steps == around(*(["prepare"] if is_atomic else []))


@every_kind
def test_its_writes_are_committed_with_the_completion_and_its_error_undoes_both(run):
    seen = []
    assert run(returns, Audit(seen)) == {"completed"}
    assert (len(seen), Effect.objects.count()) == (1, 1)
    Job.objects.all().delete()
    Export.objects.all().delete()
    assert run(returns, Audit(seen, FailJob("no audit"))) == {"failed"}
    assert (len(seen), Effect.objects.count()) == (2, 1)


@every_kind
@pytest.mark.parametrize("error", [RescheduleJob(delay=100), FailJob("no"), ValueError("no")])
def test_what_does_not_complete_does_not_pass_through_it(run, error):
    seen = []

    def handler(jobs):
        yield outside(lambda: None)
        raise error

    assert run(handler, Audit(seen)) != {"completed"}
    assert seen == []


@kinds("batch", "record")
def test_what_a_handler_ends_otherwise_does_not_pass_through_it(run, scenario):
    seen = []

    def handler(jobs):
        yield outside(lambda: None)
        for job in jobs:
            if scenario.kind == "batch":
                job.fail("no")
            elif Effect.objects.exists():
                raise FailJob
            else:
                effect(job)
                job.requeue()

    assert run(handler, Audit(seen)) == {"failed"}
    assert seen == []


@every_kind
def test_an_explicit_completion_passes_through_it_once(run):
    seen = []
    assert run(lambda jobs: (yield complete(lambda: None)), Audit(seen)) == {"completed"}
    assert len(seen) == 1


@kinds("plain")
def test_a_lost_lease_is_noticed_before_its_writes(run):
    seen = []

    def handler(jobs):
        yield outside(lambda: on_own_connection(chains.complete, jobs[0].id, "by a person"))

    assert run(handler, Audit(seen)) == {"completed"}
    assert (Job.objects.get().output, seen, Effect.objects.count()) == ("by a person", [], 0)


@kinds("plain", "batch", "record")
def test_a_transaction_that_the_handler_left_open_is_reported_as_such(scenario):
    seen = []
    used = scenario.with_middleware(Audit(seen))
    used.enqueue(lambda jobs: (yield outside(lambda: transaction.atomic().__enter__())))
    used.run()
    [error] = used.errors()
    assert ("TransactionLeftOpen" in error, seen) == (True, [])


def test_a_phase_that_the_handler_did_not_await_is_still_its_error(work):
    seen, tasks = [], []
    entered, may_go = threading.Event(), threading.Event()

    class Releasing(Middleware):
        @contextmanager
        def around_handler(self, job):
            yield
            may_go.set()

    processors = Processors(middleware=[Releasing(), Audit(seen)], max_attempts=1)

    @processors.register("forgets")
    async def forgets(job):
        tasks.append(asyncio.create_task(job.aprepare(lambda: (entered.set(), may_go.wait(20)))))
        await asyncio.to_thread(entered.wait, 20)

    chain = forgets.enqueue()
    work(processors)
    assert "await them" in chain.refresh().current_job.last_error
    assert seen == []


@every_kind
def test_middleware_without_the_hook_costs_no_statement(registry, scenario):

    def statements(*middleware):
        registry.slices.clear()
        used = Scenario(scenario.kind, Processors(middleware=middleware))
        used.enqueue(returns)
        registry.add(used.processors)
        made = []

        def note(execute, sql, *args):
            made.append(sql)
            return execute(sql, *args)

        with connection.execute_wrapper(note):
            run_due_jobs()
        assert used.states() == {"completed"}
        return made

    assert statements(LogContext(), QueryBudget(100)) == statements() != statements(Audit([]))
