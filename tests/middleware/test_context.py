"""What is bound where a chain is enqueued goes along with it, through every step."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, context
from django_jobchains.batches import Batch
from django_jobchains.chains import Deduplicate
from django_jobchains.exceptions import InvalidContext
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.testing import run_due_jobs

Context = dict[str, Any] | None


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch, db: None) -> Processors:
    """The only slice of the project, for one test."""
    registry, processors = Registry(), Processors()
    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return processors


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def look(processors: Processors, seen: list[dict[str, Any]]) -> JobType[Any, Any]:
    @processors.register("look")
    def look(job: RunningJob[Any]) -> None:
        seen.append(job.context)

    return look


def stored() -> list[Context]:
    return list(Job.objects.order_by("chain_index", "created_at", "id").values_list("context", flat=True))


def test_a_job_has_what_was_bound_when_it_was_enqueued(look: JobType[Any, Any], seen: list[Any]) -> None:
    with context.bound(tenant="acme", actor=7):
        look.enqueue()
    run_due_jobs(raise_errors=True)
    assert stored() == seen == [{"tenant": "acme", "actor": 7}]


def test_nothing_is_stored_when_nothing_is_bound(look: JobType[Any, Any], seen: list[Any]) -> None:
    look.enqueue()
    with context.bound():
        look.enqueue()
    assert Job.objects.filter(context__isnull=True).count() == 2
    run_due_jobs(raise_errors=True)
    assert seen == [{}, {}]


def test_what_is_bound_inside_adds_to_and_replaces_what_is_bound_around_it(look: JobType[Any, Any]) -> None:
    with context.bound(tenant="acme", actor=1):
        with context.bound(actor=2, request="r"):
            assert context.current() == {"tenant": "acme", "actor": 2, "request": "r"}
        assert context.current() == {"tenant": "acme", "actor": 1}
    assert context.current() == {}


def test_it_ends_with_the_block_also_after_an_error() -> None:
    with pytest.raises(RuntimeError), context.bound(tenant="acme"):
        raise RuntimeError
    assert context.current() == {}


def test_it_is_a_decorator_too(look: JobType[Any, Any]) -> None:
    @context.bound(tenant="acme")
    def view() -> None:
        look.enqueue()

    view()
    view()
    assert stored() == [{"tenant": "acme"}] * 2


def test_values_are_read_when_they_are_bound(look: JobType[Any, Any]) -> None:
    roles = ["admin"]
    with context.bound(roles=roles):
        roles.append("root")
        look.enqueue()
        assert context.current() == {"roles": ["admin"]}
    assert stored() == [{"roles": ["admin"]}]


def test_what_is_current_cannot_be_changed() -> None:
    with context.bound(tenant="acme"), pytest.raises(TypeError):
        context.current()["tenant"] = "other"  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"At \$\.tenant: object is not JSON: bind a string or number that stands for it"),
        ({"id": float("nan")}, r"At \$\.tenant\.id: nan is not JSON"),
        (["\0"], r"At \$\.tenant\[0\]: a NUL character"),
        ({1: "a"}, r"At \$\.tenant: a key must be a string"),
    ],
)
def test_a_value_that_is_no_json_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(InvalidContext, match=message), context.bound(tenant=value):
        raise AssertionError("it was bound")
    assert context.current() == {}


def test_continuations_have_the_context_of_the_job_before_them(
    processors: Processors, look: JobType[Any, Any], seen: list[Any]
) -> None:
    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with("second")

    @processors.register("second")
    def second(job: RunningJob[Any]) -> Any:
        with context.bound(step=2, actor="job"), job.complete():
            return job.continue_with(look)

    with context.bound(tenant="acme", actor="ada"):
        first.enqueue()
    run_due_jobs(raise_errors=True)
    own = {"tenant": "acme", "actor": "ada"}
    assert stored() == [own, own, own | {"step": 2, "actor": "job"}]
    assert seen == [own | {"step": 2, "actor": "job"}]


def test_a_continuation_that_a_person_makes_has_it_and_what_is_bound_for_them(look: JobType[Any, Any]) -> None:
    approval = JobType[Any, Any]("approval")
    with context.bound(tenant="acme", actor="ada"):
        chain = approval.enqueue()
    with context.bound(actor="grace"), chains.complete(chain.id) as current:
        current.continue_with(look)
    assert stored() == [{"tenant": "acme", "actor": "ada"}, {"tenant": "acme", "actor": "grace"}]


def test_what_a_handler_adds_to_its_context_is_not_stored(processors: Processors, look: JobType[Any, Any]) -> None:
    @processors.register("adds")
    def adds(job: RunningJob[Any]) -> Any:
        job.context["client"] = object()
        job.context["tenant"] = "other"
        return job.continue_with(look)

    with context.bound(tenant="acme"):
        adds.enqueue()
    run_due_jobs(raise_errors=True)
    assert stored() == [{"tenant": "acme"}, {"tenant": "acme"}]


def test_each_item_of_a_batch_has_what_was_bound_where_it_was_described(look: JobType[Any, Any]) -> None:
    items = [look.item(0)]
    for tenant in ("acme", "umbrella"):
        with context.bound(tenant=tenant):
            items.append(look.item(tenant))
    with context.bound(tenant="none", actor="importer"):
        chains.enqueue_many(items)
    found = dict(Job.objects.values_list("input", "context"))
    assert found == {
        0: {"tenant": "none", "actor": "importer"},
        "acme": {"tenant": "acme", "actor": "importer"},
        "umbrella": {"tenant": "umbrella", "actor": "importer"},
    }


def test_a_deduplicated_chain_keeps_its_own(look: JobType[Any, Any]) -> None:
    with context.bound(tenant="acme"):
        look.enqueue(deduplicate=Deduplicate("k"))
    with context.bound(tenant="other"):
        assert look.enqueue(deduplicate=Deduplicate("k")).deduplicated
    assert stored() == [{"tenant": "acme"}]


def test_what_is_bound_where_a_job_runs_is_not_the_jobs(processors: Processors, look: JobType[Any, Any]) -> None:
    currents: list[dict[str, Any]] = []

    @processors.register("nested")
    def nested(job: RunningJob[Any]) -> None:
        currents.append(dict(context.current()))
        look.enqueue()

    @processors.register("batch", batch_limit=5)
    def batch(jobs: Batch[Any]) -> None:
        currents.append(dict(context.current()))

    @processors.register("task")
    async def task(job: RunningJob[Any]) -> None:
        currents.append(dict(context.current()))

    nested.enqueue()
    batch.enqueue()
    task.enqueue()
    with context.bound(tenant="of the test"):
        run_due_jobs(raise_errors=True)
        assert context.current() == {"tenant": "of the test"}
    assert currents == [{}, {}, {}]
    assert stored() == [None, None, None, None]


@pytest.mark.parametrize("value", ["[1]", '"text"', "1"])
def test_a_stored_context_that_is_none_fails_its_job_only(look: JobType[Any, Any], seen: list[Any], value: str) -> None:
    spoiled, good = look.enqueue(), look.enqueue()
    Job.objects.filter(pk=spoiled.id).update(context=json.loads(value))
    run_due_jobs()
    assert (spoiled.refresh().status, good.refresh().status, seen) == ("failed", "completed", [{}])
    assert "The stored context is a" in str(spoiled.current_job.last_error)


def test_it_follows_async_code(look: JobType[Any, Any]) -> None:
    async def enqueue(tenant: str) -> None:
        with context.bound(tenant=tenant):
            await asyncio.sleep(0)
            await look.aenqueue()
            assert await sync_to_async(context.current)() == {"tenant": tenant}

    async def main() -> None:
        await asyncio.gather(enqueue("acme"), enqueue("umbrella"))

    async_to_sync(main)()
    assert sorted(str(part) for part in stored()) == ["{'tenant': 'acme'}", "{'tenant': 'umbrella'}"]


def test_it_costs_no_statement(look: JobType[Any, Any]) -> None:
    with CaptureQueriesContext(connection) as plain:
        look.enqueue()
    with CaptureQueriesContext(connection) as carrying, context.bound(tenant="acme"):
        look.enqueue()
    assert len(plain) == len(carrying)


@pytest.mark.parametrize("text", ["é", "1e400", "\\", '"'])
def test_what_is_bound_is_read_back_equal(look: JobType[Any, Any], seen: list[Any], text: str) -> None:
    values = {"text": text, "float": 1e22, "nested": {"a": [1, None, True]}}
    with context.bound(**values):
        look.enqueue()
    run_due_jobs(raise_errors=True)
    assert seen == [values]
