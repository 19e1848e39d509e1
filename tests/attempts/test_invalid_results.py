"""A result that is not JSON, too large, or of the wrong type does not complete the job."""

from dataclasses import dataclass
from decimal import Decimal

import pytest

from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


def circular():
    values = []
    values.append(values)
    return values


@pytest.mark.parametrize("place", ["staged", "complete", "atomic"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (object, "At $: object is not JSON"),
        (lambda: {"sums": [1, Decimal("0.1")]}, "At $.sums[1]: Decimal is not JSON"),
        (circular, "nested deeper than 100 levels"),
        (lambda: "x" * 2**20, "1,048,578 bytes of JSON; the limit is 1,048,576"),
        (lambda: 10**5000, "cannot be written as JSON"),
    ],
)
def test_result_that_cannot_be_stored_fails_the_attempt(processors, work, place, make, reason):
    @processors.register("returns", mode="atomic" if place == "atomic" else "staged")
    def returns(job):
        if place == "staged":
            return make()
        with job.complete():
            Effect.objects.create(job_id=job.id, label="half")
            return make()

    @processors.register("other")
    def other(job):
        return "fine"

    chain, good = returns.enqueue(), other.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.output) == ("pending", None)
    assert job.last_error.startswith("InvalidOutput: ")
    assert reason in job.last_error
    assert not Effect.objects.exists()
    assert good.refresh().output == "fine"


def test_coroutine_that_is_not_awaited_fails_the_attempt(processors, work):
    async def later(): ...

    coroutine = later()

    @processors.register("returns")
    def returns(job):
        return coroutine

    chain = returns.enqueue()
    work()
    coroutine.close()
    assert "coroutine is not JSON" in chain.refresh().current_job.last_error


@dataclass
class Receipt:
    number: int


def test_output_of_the_wrong_type_fails_the_attempt(processors, work):
    @processors.register("typed")
    def typed(job) -> Receipt:
        return "not a receipt"

    chain = typed.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.output) == ("pending", None)
    assert job.last_error.startswith("InvalidOutput: Not a Receipt: ")


def test_output_of_the_right_type_is_stored_as_json(processors, work):
    @processors.register("typed")
    def typed(job) -> Receipt:
        return Receipt(7)

    chain = typed.enqueue()
    work()
    assert chain.refresh().stored_output == {"number": 7}
    assert chain.output == Receipt(7)


def test_output_just_under_the_limit_is_stored(processors, work):
    @processors.register("large")
    def large(job):
        return "x" * (2**20 - 2)

    chain = large.enqueue()
    work()
    assert len(chain.refresh().output) == 2**20 - 2
