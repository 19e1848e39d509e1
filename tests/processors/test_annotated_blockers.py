"""A handler's annotation of its blockers must have the types, and the order, that its type declares."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from django_jobchains.chains import Chain
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.processors import Continuation, JobType, Processors, Registry, RunningJob


@dataclass(frozen=True)
class Receipt:
    number: int


@dataclass(frozen=True)
class Refund(Receipt):
    pass


charge = JobType("charge", input=int, output=Receipt)
refund = JobType("refund", input=int, output=Refund)
pack = JobType("pack", input=int, output=str | None)
untyped: JobType[Any, Any] = JobType("untyped")


@pytest.fixture
def processors():
    return Processors()


def in_declared_order(job: RunningJob[None, tuple[Chain[Receipt], Chain[str | None]]]) -> None: ...


def in_another_order(job: RunningJob[None, tuple[Chain[str | None], Chain[Receipt]]]) -> None: ...


def with_one_missing(job: RunningJob[None, tuple[Chain[Receipt]]]) -> None: ...


async def awaited(job: RunningJob[None, tuple[Chain[str | None], Chain[Receipt]]]) -> None: ...


def with_an_option(job: RunningJob[None, tuple[Chain[str | None], Chain[Receipt]]], option: int) -> None: ...


@pytest.mark.parametrize("function", [in_another_order, awaited, partial(with_an_option, option=1)])
@pytest.mark.parametrize("is_declared", [False, True])
def test_another_order_is_refused_with_both_orders(processors, function, is_declared):
    if is_declared:
        register = processors.register(JobType("ship", input=Any, output=Any, blockers=(charge, pack)))
    else:
        register = processors.register("ship", blockers=(charge, pack))
    with pytest.raises(InvalidDeclaration) as caught:
        register(function)
    assert "'ship'" in str(caught.value)
    assert (
        " expects the blockers (Chain[str | None], Chain[Receipt]), but blockers= declares "
        "('charge': Chain[Receipt], 'pack': Chain[str | None]). Annotate it with "
        "RunningJob[…, tuple[Chain[Receipt], Chain[str | None]]], or correct the order of blockers=."
    ) in str(caught.value)


def test_another_number_is_refused(processors):
    with pytest.raises(InvalidDeclaration, match=r"'with_one_missing' expects the blockers \(Chain\[Receipt\]\), but"):
        processors.register("ship", blockers=(charge, pack))(with_one_missing)


def test_types_that_are_named_are_checked_when_their_slice_is_added(processors):
    registry, others = Registry(), Processors()

    @processors.register("both", blockers=("count", "tell"))
    def both(job: RunningJob[None, tuple[Chain[str], Chain[int]]]) -> None: ...

    @others.register("count")
    def count(job: RunningJob[None]) -> int:
        return 1

    registry.add(processors)
    registry.add(JobType("tell", input=None, output=Any))
    message = (
        r"'both'.*expects the blockers \(Chain\[str\], Chain\[int\]\), but blockers= declares \('count': Chain\[int\]"
    )
    with pytest.raises(InvalidDeclaration, match=message):
        registry.add(others)


def test_annotations_that_fit_are_accepted(processors):
    register = processors.register
    register("1", blockers=(charge, pack))(in_declared_order)
    register("2", blockers=(refund, pack))(in_declared_order)  # a Refund is a Receipt
    register("3", blockers=("elsewhere", "of another app"))(in_declared_order)
    register("4", blockers=(untyped, pack))(in_declared_order)
    register("5", blockers=[pack, charge])(in_declared_order)
    register("6")(in_declared_order)

    @register("continues")
    def continues(job: RunningJob[None]) -> Continuation:
        return job.continue_with(charge, 1)

    register("7", blockers=(continues, pack))(in_declared_order)

    @register("8", blockers=(charge, pack))
    def without_types(job: RunningJob[None, tuple[Chain, Chain[Any]]]) -> None: ...

    @register("9", blockers=(charge, charge))
    def of_any_length(job: RunningJob[None, tuple[Chain[Receipt], ...]]) -> None: ...

    @register("10", blockers=(charge, pack))
    def unannotated(job: Any) -> None: ...
