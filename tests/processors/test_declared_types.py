"""A job type may be declared without a processor, and get one later, also in another app."""

from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import DuplicateJobType, InvalidInput, NotAnEntryType, RegistryError
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.worker import Worker
from tests.support.attempts import committed


@dataclass(frozen=True)
class Request:
    amount: int


@dataclass(frozen=True)
class Decision:
    is_approved: bool


@pytest.fixture
def approval():
    return JobType("shop.approval", input=Request, output=Decision)


@pytest.mark.django_db
def test_jobs_of_a_type_without_a_processor_can_be_enqueued(approval):
    chain = approval.enqueue(Request(5))
    assert (chain.status, chain.input) == ("pending", {"amount": 5})


@committed
def test_a_processor_can_be_attached_later(approval):
    processors = Processors()

    @processors.register(approval)
    def decide(job: RunningJob[Request]) -> Decision:
        return Decision(is_approved=job.input.amount < 10)

    assert decide is approval
    registry = Registry()
    registry.add(approval)
    registry.add(processors)
    chain = approval.enqueue(Request(5))
    Worker(slots=1, registry=registry).run_until_idle()
    assert chain.refresh().output == Decision(is_approved=True)
    assert chain.stored_output == {"is_approved": True}


@committed
def test_a_worker_skips_jobs_of_a_type_without_a_processor(approval):
    processors = Processors()
    processors.register("other")(lambda job: None)
    registry = Registry()
    registry.add(approval)
    registry.add(processors)
    chain = approval.enqueue(Request(5))
    Worker(slots=1, registry=registry).run_until_idle()
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)


def test_the_input_type_is_that_of_the_declaration(approval):
    processors = Processors()

    @processors.register(approval)
    def decide(job: RunningJob[Any]) -> Any: ...

    with pytest.raises(InvalidInput):
        decide.item("x")


def test_a_declared_type_has_only_one_processor(approval):
    Processors().register(approval)(lambda job: Decision(True))
    with pytest.raises(DuplicateJobType, match=r"'shop\.approval' is declared twice"):
        Processors().register(approval)(lambda job: Decision(True))


@pytest.mark.parametrize(
    "options",
    [{"entry": False}, {"continues_with": ["a"]}, {"input": int}, {"output": int}],
    ids=lambda o: next(iter(o)),
)
def test_options_of_the_declaration_cannot_be_repeated(approval, options):
    """Ignoring ``entry=False`` silently would let anyone enqueue the type."""
    with pytest.raises(RegistryError):
        Processors().register(approval, **options)(lambda job: Decision(True))


@pytest.mark.django_db
def test_a_type_without_entry_cannot_be_enqueued():
    inner = JobType("shop.inner", entry=False)
    for enqueue in (inner.enqueue, inner.item, lambda: chains.enqueue(inner)):
        with pytest.raises(NotAnEntryType, match=r"'shop\.inner' is declared with entry=False"):
            enqueue()


@pytest.mark.django_db
def test_entry_can_be_set_at_registration():
    inner = Processors().register("shop.inner", entry=False)(lambda job: None)
    with pytest.raises(NotAnEntryType):
        inner.enqueue()
