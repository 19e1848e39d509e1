"""A job type may be declared without a processor, and get one later, also in another app."""

from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import DuplicateJobType, InvalidInput, NotAnEntryType, RegistryError
from django_jobchains.processors import JobType, Processors, RunningJob
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


@committed
def test_a_processor_can_be_attached_later(approval, work):
    others, processors = Processors(), Processors()
    others.register("other")(lambda job: None)
    chain = approval.enqueue(Request(5))
    assert chain.input == {"amount": 5}
    work(others)
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)

    @processors.register(approval)
    def decide(job: RunningJob[Any]) -> Any:
        return Decision(is_approved=job.input.amount < 10)

    assert decide is approval
    work(processors)
    assert chain.refresh().output == Decision(is_approved=True)
    assert chain.stored_output == {"is_approved": True}
    with pytest.raises(InvalidInput):
        decide.item("x")  # the annotation does not replace the declared type


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
@pytest.mark.parametrize("declare", [JobType, lambda *args, **options: Processors().register(*args, **options)(print)])
def test_a_type_without_entry_cannot_be_enqueued(declare):
    inner = declare("shop.inner", entry=False)
    for enqueue in (inner.enqueue, inner.item, lambda: chains.enqueue(inner)):
        with pytest.raises(NotAnEntryType, match=r"'shop\.inner' is declared with entry=False"):
            enqueue()


def test_the_type_of_the_output_may_be_omitted():
    assert JobType[int]("shop.approval").name == JobType[int, Decision]("shop.approval").name
