"""A result that is no JSON, too large, or of another type completes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from django_jobchains.processors import Processors, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed


def circular() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


@pytest.mark.parametrize("place", ["staged", "complete", "atomic"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (object, "At $: object is not JSON"),
        (lambda: {"sums": [1, Decimal("0.1")]}, "At $.sums[1]: Decimal is not JSON"),
        (lambda: {1, 2}, "At $: set is not JSON"),
        (lambda: (1, 2), "At $: tuple is not JSON"),
        (lambda: b"raw", "At $: bytes is not JSON"),
        (lambda: datetime(2026, 1, 1), "At $: datetime is not JSON"),  # noqa: DTZ001
        (lambda: float("nan"), "At $: nan is not JSON"),
        (lambda: (number for number in range(3)), "At $: generator is not JSON"),
        (lambda: "a\0b", "At $: a NUL character cannot be stored"),
        (lambda: {"\ud800": 1}, "a lone surrogate cannot be stored"),
        (lambda: {1: "one"}, "At $: a key must be a string, not 1"),
        (circular, "nested deeper than 100 levels"),
        (lambda: "x" * 2**20, "1,048,578 bytes of JSON; the limit is 1,048,576"),
        (lambda: 10**5000, "cannot be written as JSON"),
    ],
)
def test_what_cannot_be_stored_reschedules_the_job(
    processors: Processors, work: Work, place: str, make: Callable[[], Any], reason: str
) -> None:
    @processors.register("strange", mode="atomic" if place == "atomic" else "staged")
    def strange(job: RunningJob[Any]) -> Any:
        if place == "staged":
            return make()
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            return make()

    @processors.register("neighbour")
    def neighbour(job: RunningJob[Any]) -> str:
        return "fine"

    chain, other = strange.enqueue(), neighbour.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.output) == ("pending", None)
    assert job.last_error.startswith("InvalidOutput: ")  # type: ignore[union-attr]
    assert reason in job.last_error  # type: ignore[operator]
    assert not Effect.objects.exists()
    assert other.refresh().output == "fine"


def test_a_coroutine_that_nobody_awaited_reschedules_the_job(processors: Processors, work: Work) -> None:
    async def later() -> None: ...

    made = later()

    @processors.register("strange")
    def strange(job: RunningJob[Any]) -> Any:
        return made

    chain = strange.enqueue()
    work()
    made.close()
    assert "coroutine is not JSON" in chain.refresh().current_job.last_error  # type: ignore[operator]


@dataclass
class Receipt:
    number: int


def test_an_output_of_the_wrong_type_reschedules_the_job(processors: Processors, work: Work) -> None:
    @processors.register("typed")
    def typed(job: RunningJob[Any]) -> Receipt:
        return "no receipt"  # type: ignore[return-value]

    chain = typed.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.output) == ("pending", None)
    assert job.last_error.startswith("InvalidOutput: Not a Receipt: ")  # type: ignore[union-attr]


def test_an_output_of_the_right_type_is_stored_as_json(processors: Processors, work: Work) -> None:
    @processors.register("typed")
    def typed(job: RunningJob[Any]) -> Receipt:
        return Receipt(7)

    chain = typed.enqueue()
    work()
    assert chain.refresh().output == {"number": 7}


def test_an_output_just_under_the_limit_is_stored(processors: Processors, work: Work) -> None:
    @processors.register("large")
    def large(job: RunningJob[Any]) -> str:
        return "x" * (2**20 - 2)

    chain = large.enqueue()
    work()
    assert len(chain.refresh().output) == 2**20 - 2
