"""Inputs and outputs with custom payload types, without pydantic."""

from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains.exceptions import InvalidInput, InvalidOutput, RegistryError
from django_jobchains.processors import JobType, PayloadType, Processors, Registry, RunningJob
from django_jobchains.testing.contracts import PayloadTypeContract
from django_jobchains.text.errors import traceback_of
from django_jobchains.worker import Worker
from tests.support.attempts import committed

SECRET = "hunter2"


@dataclass(frozen=True)
class Money:
    amount: int
    currency: str


class MoneyType:
    """Converts to a list, which the annotations of the class do not show."""

    def load(self, value: Any, /) -> Money:
        amount, currency = value
        if not (isinstance(amount, int) and isinstance(currency, str)):
            raise ValueError(f"not money: {value}")
        return Money(amount, currency)

    def dump(self, value: Money, /) -> list[Any]:
        return [value.amount, value.currency]

    def schema(self) -> dict[str, Any]:
        return {"type": "array"}


class Silent(MoneyType):
    schema = None


@pytest.fixture(autouse=True)
def _no_pydantic(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydantic", None)


class TestMoneyType(PayloadTypeContract):
    values = (Money(5, "EUR"), Money(0, "USD"))
    invalid_values = ("5 EUR", None, {"amount": 5}, object())
    invalid_json = ({}, ["much", "EUR"], None)

    def make(self) -> PayloadType[Money]:
        return MoneyType()


class TestWithoutASchema(TestMoneyType):
    def make(self) -> PayloadType[Money]:
        return Silent()


@committed
def test_handlers_and_readers_get_the_value():
    seen: list[Any] = []
    processors, registry = Processors(), Registry()

    @processors.register("pay", input=MoneyType(), output=MoneyType())
    def pay(job: RunningJob[Money]) -> Money:
        seen.append(job.input)
        return Money(job.input.amount - 1, job.input.currency)

    registry.add(processors)
    chains = [pay.enqueue(Money(5, "EUR")), pay.enqueue([5, "EUR"])]
    Worker(slots=1, registry=registry).run_until_idle()
    assert seen == [Money(5, "EUR")] * 2
    for chain in chains:
        assert chain.refresh().stored_output == [4, "EUR"]
        assert chain.output == chain.result(1) == Money(4, "EUR")


def test_an_error_message_that_quotes_the_value_is_omitted():
    job_type = JobType("pay", input=MoneyType(), output=MoneyType())
    with pytest.raises(InvalidInput, match=r"^Not a MoneyType: ValueError in load, line \d+ of .*omitted") as caught:
        job_type.item([SECRET, "EUR"])
    assert SECRET not in traceback_of(caught.value)
    with pytest.raises(InvalidOutput, match=r"AttributeError in dump.*has no attribute"):
        job_type.encode_output(object())


def test_a_schema_is_optional():
    assert JobType("pay", input=MoneyType()).input_codec.json_schema() == {"type": "array"}
    assert JobType("pay", input=Silent()).input_codec.json_schema() is None


def test_a_class_instead_of_an_instance_needs_pydantic():
    with pytest.raises(RegistryError, match="MoneyType as input or output needs pydantic"):
        JobType("pay", input=MoneyType)
