"""The ``chains`` module enqueues by name, reads chains, and has async versions of its functions."""

from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound
from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, get_registry
from tests.support.attempts import committed

pytestmark = pytest.mark.django_db

anything, typed = JobType("anything"), JobType("typed", input=int)
enqueue_many = pytest.mark.parametrize(
    "enqueue_many", [chains.enqueue_many, async_to_sync(chains.aenqueue_many)], ids=["", "a"]
)


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
    with pytest.raises(InvalidInput, match="not an int"):
        chains.enqueue("typed", "x")


def test_chain_is_read_by_its_id():
    enqueued = anything.enqueue({"a": [1.5, None]})
    chain = chains.get(enqueued.id)
    assert chain == enqueued
    assert hash(chain) == hash(enqueued)
    assert (chain.id, chain.type_name, chain.input) == (enqueued.id, "anything", {"a": [1.5, None]})
    assert chain.created_at == enqueued.created_at
    assert (chain.status, chain.output, chain.finished_at, chain.deduplicated) == ("pending", None, None, False)


def test_chain_of_an_undeclared_type_can_be_read():
    chain = JobType("undeclared").enqueue([1])
    assert chains.get(chain.id).input == [1]


@committed
@enqueue_many
def test_many_are_enqueued_from_a_generator(enqueue_many):
    created = enqueue_many(anything.item(number) for number in range(3))
    assert [chain.input for chain in created] == [0, 1, 2]
    assert [job.input for job in Job.objects.order_by("created_at", "id")] == [0, 1, 2]
    with pytest.raises(InvalidInput):
        enqueue_many(typed.item(value) for value in (1, 2, "x"))
    assert Job.objects.count() == 3


@pytest.mark.parametrize(
    "items",
    [[anything.item(1), anything], [anything.item(1), {"a": 1}], anything.item(1), anything, None, "anything"],
    ids=["a type", "an input", "one item", "one type", "nothing", "a name"],
)
@enqueue_many
def test_enqueue_many_takes_only_items(enqueue_many, items):
    with pytest.raises(TypeError, match=r"chains\.enqueue_many\(\) takes a list of items"):
        enqueue_many(items)
    assert not Job.objects.exists()


def test_unknown_id_raises_an_error():
    id_ = uuid4()
    with pytest.raises(ChainNotFound, match=f"No chain {id_}") as caught:
        chains.get(id_)
    assert caught.value.chain_id == id_
    chain = anything.enqueue()
    Job.objects.all().delete()
    with pytest.raises(ChainNotFound):
        chain.refresh()


@committed
def test_chain_is_a_snapshot_until_it_is_refreshed(work):
    processors = Processors()

    @processors.register("first")
    def first(job):
        return job.continue_with("second", job.input + 1)

    @processors.register("second")
    def second(job):
        return {"sum": job.input}

    chain = first.enqueue(1)
    assert chain.status == "pending"
    work(processors)
    assert (chain.status, chain.output) == ("pending", None)
    assert chain.refresh() is chain
    assert (chain.status, chain.output, chain.input) == ("completed", {"sum": 2}, 1)
    assert [(job.type_name, job.chain_index) for job in chain.jobs] == [("first", 0), ("second", 1)]
    assert chain.current_job.type_name == "second"
    assert chain.finished_at == chain.current_job.finished_at is not None
    assert chains.get(chain.jobs.last().id).id == chain.id


def test_async_functions_do_the_same():
    async def use():
        one = await anything.aenqueue(1, priority=2)
        two = await chains.aenqueue("anything", 2, queue="mail")
        return one, two, await chains.aget(two.id)

    one, two, read = async_to_sync(use)()
    assert (one.input, two.input, read) == (1, 2, two)
    assert (one.current_job.priority, two.current_job.queue) == (2, "mail")
