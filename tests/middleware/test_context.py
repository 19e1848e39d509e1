"""The context that is bound when a chain is enqueued is stored with all its jobs."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, context
from django_jobchains.chains import Deduplicate
from django_jobchains.exceptions import InvalidContext
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors
from django_jobchains.testing import run_due_jobs

Context = dict[str, Any] | None


@pytest.fixture
def processors(db, registry):
    """The only processors of the project during the test."""
    registry.add(processors := Processors())
    return processors


@pytest.fixture
def seen():
    return []


@pytest.fixture
def reads(processors, seen):
    @processors.register("reads")
    def reads(job):
        seen.append(job.context)

    return reads


def stored():
    return list(Job.objects.order_by("chain_index", "created_at", "id").values_list("context", flat=True))


def test_job_has_the_context_that_was_bound_when_it_was_enqueued(reads, seen):
    with context.bound(tenant="acme", actor=7):
        reads.enqueue()
    run_due_jobs(raise_errors=True)
    assert stored() == seen == [{"tenant": "acme", "actor": 7}]


def test_nothing_is_stored_when_nothing_is_bound(reads, seen):
    reads.enqueue()
    with context.bound():
        reads.enqueue()
    assert Job.objects.filter(context__isnull=True).count() == 2
    run_due_jobs(raise_errors=True)
    assert seen == [{}, {}]


def test_inner_context_extends_the_outer_one_until_its_block_ends():
    with pytest.raises(RuntimeError), context.bound(tenant="acme", actor=1):
        with context.bound(actor=2, request="r"):
            assert context.current() == {"tenant": "acme", "actor": 2, "request": "r"}
        assert context.current() == {"tenant": "acme", "actor": 1}
        raise RuntimeError
    assert context.current() == {}


def test_bound_can_be_used_as_a_decorator(reads):
    @context.bound(tenant="acme")
    def view():
        reads.enqueue()

    view()
    view()
    assert stored() == [{"tenant": "acme"}] * 2


def test_bound_decorates_async_functions():
    @context.bound(tenant="acme")
    async def view():
        await asyncio.sleep(0)
        return dict(context.current())

    assert asyncio.run(view()) == {"tenant": "acme"}
    assert context.current() == {}


def test_threads_and_nested_blocks_can_share_a_scope():
    """Steps two threads: the second one enters the scope while the first one is inside, and leaves it last."""
    scope = context.bound(tenant="acme")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for thread in (first, second):
            thread.submit(scope.__enter__).result()
        for thread in (first, second):
            thread.submit(scope.__exit__, None, None, None).result()
            assert thread.submit(context.current).result() == {}
    with scope:
        with scope:
            pass
        assert context.current() == {"tenant": "acme"}
    assert context.current() == {}


def test_values_are_copied_when_they_are_bound_and_read_only(reads):
    roles = ["admin"]
    with context.bound(roles=roles):
        roles.append("root")
        reads.enqueue()
        assert context.current() == {"roles": ["admin"]}
        with pytest.raises(TypeError):
            context.current()["roles"] = "other"
    assert stored() == [{"roles": ["admin"]}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"At \$\.tenant: object is not JSON: bind a string or number that stands for it"),
        ({"id": float("nan")}, r"At \$\.tenant\.id: nan is not JSON"),
        (["\0"], r"At \$\.tenant\[0\]: a NUL character"),
        ({1: "a"}, r"At \$\.tenant: a key must be a string"),
    ],
)
def test_error_for_a_value_that_is_not_json_names_the_value(value, message):
    with pytest.raises(InvalidContext, match=message), context.bound(tenant=value):
        raise AssertionError("The value was bound.")
    assert context.current() == {}


def test_continuation_has_the_context_of_the_previous_job(processors, reads, seen):
    @processors.register("first")
    def first(job):
        return job.continue_with("second")

    @processors.register("second")
    def second(job):
        with context.bound(step=2, actor="job"), job.complete():
            return job.continue_with(reads)

    with context.bound(tenant="acme", actor="ada"):
        first.enqueue()
    run_due_jobs(raise_errors=True)
    own = {"tenant": "acme", "actor": "ada"}
    assert stored() == [own, own, own | {"step": 2, "actor": "job"}]
    assert seen == [own | {"step": 2, "actor": "job"}]


def test_continuation_without_a_worker_has_the_context_of_the_job_and_of_the_caller(reads):
    approval = JobType[Any, Any]("approval")
    with context.bound(tenant="acme", actor="ada"):
        chain = approval.enqueue()
    with context.bound(actor="grace"), chains.current_job(chain.id) as current:
        current.continue_with(reads)
    assert stored() == [{"tenant": "acme", "actor": "ada"}, {"tenant": "acme", "actor": "grace"}]


def test_changes_of_a_handler_to_its_context_are_not_stored(processors, reads):
    @processors.register("adds")
    def adds(job):
        job.context["client"] = object()
        job.context["tenant"] = "other"
        return job.continue_with(reads)

    with context.bound(tenant="acme"):
        adds.enqueue()
    run_due_jobs(raise_errors=True)
    assert stored() == [{"tenant": "acme"}, {"tenant": "acme"}]


def test_item_has_the_context_in_which_it_was_created(reads):
    items = [reads.item(0)]
    for tenant in ("acme", "umbrella"):
        with context.bound(tenant=tenant):
            items.append(reads.item(tenant))
    with context.bound(tenant="none", actor="importer"):
        chains.enqueue_many(items)
    found = dict(Job.objects.values_list("input", "context"))
    assert found == {
        0: {"tenant": "none", "actor": "importer"},
        "acme": {"tenant": "acme", "actor": "importer"},
        "umbrella": {"tenant": "umbrella", "actor": "importer"},
    }


def test_deduplicated_chain_keeps_its_context(reads):
    with context.bound(tenant="acme"):
        reads.enqueue(deduplicate=Deduplicate("k"))
    with context.bound(tenant="other"):
        assert reads.enqueue(deduplicate=Deduplicate("k")).deduplicated
    assert stored() == [{"tenant": "acme"}]


def test_context_of_the_worker_is_not_bound_for_its_jobs(processors, reads):
    currents = []

    @processors.register("nested")
    def nested(job):
        currents.append(dict(context.current()))
        reads.enqueue()

    @processors.register("batch", batch_limit=5)
    def batch(jobs):
        currents.append(dict(context.current()))

    @processors.register("task")
    async def task(job):
        currents.append(dict(context.current()))

    nested.enqueue()
    batch.enqueue()
    task.enqueue()
    with context.bound(tenant="test"):
        run_due_jobs(raise_errors=True)
        assert context.current() == {"tenant": "test"}
    assert currents == [{}, {}, {}]
    assert stored() == [None, None, None, None]


@pytest.mark.parametrize("value", ["[1]", '"text"', "1"])
def test_invalid_stored_context_fails_only_its_own_job(reads, seen, value):
    invalid, good = reads.enqueue(), reads.enqueue()
    Job.objects.filter(pk=invalid.id).update(context=json.loads(value))
    run_due_jobs()
    assert (invalid.refresh().status, good.refresh().status, seen) == ("failed", "completed", [{}])
    assert "The stored context is a" in str(invalid.current_job.last_error)


def test_tasks_have_separate_contexts(reads):
    async def enqueue(tenant):
        with context.bound(tenant=tenant):
            await asyncio.sleep(0)
            await reads.aenqueue()
            assert await sync_to_async(context.current)() == {"tenant": tenant}

    async def main():
        await asyncio.gather(enqueue("acme"), enqueue("umbrella"))

    async_to_sync(main)()
    assert sorted(str(part) for part in stored()) == ["{'tenant': 'acme'}", "{'tenant': 'umbrella'}"]


def test_context_takes_no_additional_statement(reads):
    with CaptureQueriesContext(connection) as plain:
        reads.enqueue()
    with CaptureQueriesContext(connection) as carrying, context.bound(tenant="acme"):
        reads.enqueue()
    assert len(plain) == len(carrying)
