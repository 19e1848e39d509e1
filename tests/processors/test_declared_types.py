"""A job type may be declared without a processor, and get one later, also from another app."""

from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import DuplicateJobType, InvalidInput, NotAnEntryType, RegistryError
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.worker import Worker
from tests.attempts.work import committed


@dataclass(frozen=True)
class Request:
    amount: int


@dataclass(frozen=True)
class Decision:
    is_approved: bool


@pytest.fixture
def approval() -> JobType[Request, Decision]:
    return JobType("shop.approval", input=Request, output=Decision)


@pytest.mark.django_db
def test_jobs_of_a_type_without_processor_are_enqueued_and_wait(approval: JobType[Request, Decision]) -> None:
    chain = approval.enqueue(Request(5))
    assert (chain.status, chain.input) == ("pending", {"amount": 5})


@committed
def test_a_processor_may_be_attached_later(approval: JobType[Request, Decision]) -> None:
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
    assert chain.refresh().output == {"is_approved": True}


@committed
def test_a_worker_leaves_jobs_of_a_type_without_processor_alone(approval: JobType[Request, Decision]) -> None:
    processors = Processors()
    processors.register("other")(lambda job: None)
    registry = Registry()
    registry.add(approval)
    registry.add(processors)
    chain = approval.enqueue(Request(5))
    Worker(slots=1, registry=registry).run_until_idle()
    assert (chain.refresh().status, chain.current_job.attempt) == ("pending", 0)


def test_the_types_are_those_of_the_declaration(approval: JobType[Request, Decision]) -> None:
    processors = Processors()

    @processors.register(approval)
    def decide(job: RunningJob[Any]) -> Any: ...

    with pytest.raises(InvalidInput):
        decide.item("x")  # type: ignore[arg-type]


def test_a_declared_type_gets_one_processor(approval: JobType[Request, Decision]) -> None:
    Processors().register(approval)(lambda job: Decision(True))
    with pytest.raises(DuplicateJobType, match=r"'shop\.approval' is declared twice"):
        Processors().register(approval)(lambda job: Decision(True))


@pytest.mark.parametrize(
    "options",
    [{"entry": False}, {"continues_with": ["a"]}, {"input": int}, {"output": int}],
    ids=lambda o: next(iter(o)),
)
def test_what_a_declaration_says_cannot_be_said_again(
    approval: JobType[Request, Decision], options: dict[str, Any]
) -> None:
    """Silently ignored, ``entry=False`` would leave the door open."""
    with pytest.raises(RegistryError):
        Processors().register(approval, **options)(lambda job: Decision(True))


@pytest.mark.django_db
def test_a_type_that_is_no_entry_cannot_be_enqueued() -> None:
    inner = JobType("shop.inner", entry=False)
    for enqueue in (inner.enqueue, inner.item, lambda: chains.enqueue(inner)):
        with pytest.raises(NotAnEntryType, match=r"'shop\.inner' is declared with entry=False"):
            enqueue()


@pytest.mark.django_db
def test_entry_may_be_said_at_registration() -> None:
    inner = Processors().register("shop.inner", entry=False)(lambda job: None)
    with pytest.raises(NotAnEntryType):
        inner.enqueue()
