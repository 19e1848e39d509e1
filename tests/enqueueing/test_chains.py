"""The ``chains`` module enqueues by name, reads chains, and has async versions of its functions."""

from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound
from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, Registry, RunningJob, get_registry
from django_jobchains.worker import Worker
from tests.support.attempts import committed

pytestmark = pytest.mark.django_db

anything: JobType[Any, Any] = JobType("anything")
typed: JobType[int, Any] = JobType("typed", input=int)


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {"anything": anything, "typed": typed})


@pytest.mark.parametrize("job_type", ["anything", anything])
def test_chain_is_enqueued_by_name_or_type(job_type):
    chain = chains.enqueue(job_type, {"a": 1}, priority=3, queue="mail")
    job = chain.current_job
    assert isinstance(chain, Chain)
    assert (job.type_name, job.input, job.priority, job.queue) == ("anything", {"a": 1}, 3, "mail")


def test_input_is_validated_if_the_type_is_given_by_name():
    with pytest.raises(InvalidInput, match="Not a int"):
        chains.enqueue("typed", "x")


def test_chain_is_read_by_its_id():
    enqueued = anything.enqueue({"a": [1.5, None]})
    chain = chains.get(enqueued.id)
    assert chain == enqueued
    assert hash(chain) == hash(enqueued)
    assert (chain.id, chain.type_name, chain.input) == (enqueued.id, "anything", {"a": [1.5, None]})
    assert chain.created_at == enqueued.created_at
    assert (chain.status, chain.output, chain.finished_at, chain.deduplicated) == ("pending", None, None, False)


@pytest.mark.parametrize("in_transaction", [True, False], ids=["in atomic()", "in autocommit"])
@committed
def test_many_are_enqueued_from_a_generator(in_transaction):
    with transaction.atomic() if in_transaction else nullcontext():
        created = chains.enqueue_many(anything.item(number) for number in range(3))
    assert [chain.input for chain in created] == [0, 1, 2]
    assert [job.input for job in Job.objects.order_by("created_at", "id")] == [0, 1, 2]


@committed
def test_aenqueue_many_takes_a_generator():
    created = async_to_sync(chains.aenqueue_many)(anything.item(number) for number in range(3))
    assert [chain.input for chain in created] == [0, 1, 2]


@pytest.mark.parametrize(
    "items",
    [
        lambda: [anything.item(1), anything],
        lambda: [anything.item(1), {"a": 1}],
        lambda: anything.item(1),
        lambda: anything,
        lambda: None,
        lambda: "anything",
    ],
    ids=["a type", "an input", "one item", "one type", "nothing", "a name"],
)
@pytest.mark.parametrize("enqueue_many", [chains.enqueue_many, async_to_sync(chains.aenqueue_many)], ids=["", "a"])
def test_enqueue_many_takes_only_items(enqueue_many, items):
    with pytest.raises(TypeError, match=r"chains\.enqueue_many\(\) takes a list of items"):
        enqueue_many(items())
    assert not Job.objects.exists()


@committed
def test_error_in_the_generator_creates_nothing():
    with pytest.raises(InvalidInput):
        chains.enqueue_many(typed.item(value) for value in (1, 2, "x"))
    assert not Job.objects.exists()


def test_unknown_id_raises_an_error():
    id_ = uuid4()
    with pytest.raises(ChainNotFound, match=f"No chain {id_}") as caught:
        chains.get(id_)
    assert caught.value.chain_id == id_


def test_refreshing_a_deleted_chain_raises_an_error():
    chain = anything.enqueue()
    Job.objects.all().delete()
    with pytest.raises(ChainNotFound):
        chain.refresh()


@committed
def test_chain_is_a_snapshot_until_it_is_refreshed():
    processors, registry = Processors(), Registry()

    @processors.register("first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with("second", job.input + 1)

    @processors.register("second")
    def second(job: RunningJob[Any]) -> Any:
        return {"sum": job.input}

    registry.add(processors)
    chain = first.enqueue(1)
    assert chain.status == "pending"
    Worker(slots=1, registry=registry).run_until_idle()
    assert (chain.status, chain.output) == ("pending", None)
    assert chain.refresh() is chain
    assert (chain.status, chain.output, chain.input) == ("completed", {"sum": 2}, 1)
    assert [(job.type_name, job.chain_index) for job in chain.jobs] == [("first", 0), ("second", 1)]
    assert chain.current_job.type_name == "second"
    assert chain.finished_at == chain.current_job.finished_at is not None
    step = chain.jobs.last()
    assert step is not None
    assert chains.get(step.id).id == chain.id


def test_chain_of_an_undeclared_type_can_be_read():
    chain = JobType("undeclared").enqueue([1])
    assert chains.get(chain.id).input == [1]


def test_async_functions_do_the_same():
    async def use() -> tuple[list[Chain], Chain]:
        one = await anything.aenqueue(1, priority=2)
        two = await chains.aenqueue("anything", 2, queue="mail")
        three, four = await chains.aenqueue_many([anything.item(3), typed.item(4)])
        return [one, two, three, four], await chains.aget(two.id)

    created, read = async_to_sync(use)()
    assert [chain.input for chain in created] == [1, 2, 3, 4]
    assert read == created[1]
    assert [(job.input, job.priority, job.queue) for job in Job.objects.order_by("id")[:2]] == [
        (1, 2, "default"),
        (2, 0, "mail"),
    ]


def test_querysets_have_named_filters():
    one, two = anything.enqueue(1), typed.enqueue(2)
    Job.objects.filter(pk=two.id).update(status="completed")
    assert [job.id for job in Job.objects.of_type("anything")] == [one.id]
    assert [job.id for job in Job.objects.with_status("completed", "failed")] == [two.id]
    assert [job.id for job in Job.objects.incomplete()] == [one.id]
    assert Job.objects.of_type("anything", "typed").count() == 2
