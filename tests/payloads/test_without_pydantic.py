"""JSON types and objects that convert values need no pydantic; other types name the extra that they need."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import pytest
from typing_extensions import TypedDict

from django_jobchains.exceptions import InvalidInput, InvalidOutput, RegistryError
from django_jobchains.processors import Continuation, JobType, Processors, RunningJob
from django_jobchains.testing.contracts import PayloadTypeContract
from django_jobchains.text.errors import traceback_of
from tests.support.attempts import committed

SECRET = "hunter2"


@dataclass
class Charge:
    order_id: int


class Address(TypedDict):
    street: str


@dataclass(frozen=True)
class Money:
    amount: int
    currency: str


class MoneyType:
    """Converts to a list, which the annotations of the class do not show."""

    def load(self, value, /):
        amount, currency = value
        if not (isinstance(amount, int) and isinstance(currency, str)):
            raise ValueError(f"not money: {value}")
        return Money(amount, currency)

    def dump(self, value, /):
        return [value.amount, value.currency]

    def schema(self):
        return {"type": "array"}


class Silent(MoneyType):
    schema = None


@pytest.fixture(autouse=True)
def _no_pydantic(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)


class TestMoneyType(PayloadTypeContract):
    values = (Money(5, "EUR"), Money(0, "USD"))
    invalid_values = ("5 EUR", None, {"amount": 5}, object())
    invalid_json = ({}, ["much", "EUR"], None)

    def make(self):
        return MoneyType()


@committed
def test_handlers_and_readers_get_the_value_of_a_payload_type(processors, work):
    @processors.register("pay", input=MoneyType(), output=MoneyType())
    def pay(job):
        return Money(job.input.amount - 1, job.input.currency)

    for value in (Money(5, "EUR"), [5, "EUR"]):
        chain = pay.enqueue(value)
        work()
        assert chain.refresh().stored_output == [4, "EUR"]
        assert chain.output == chain.result(1) == Money(4, "EUR")


def test_a_message_of_a_payload_type_is_omitted_if_it_quotes_the_value():
    job_type = JobType("pay", input=MoneyType(), output=MoneyType())
    with pytest.raises(InvalidInput, match=r": not a MoneyType: ValueError in load, line \d+ of .*omitted") as caught:
        job_type.item([SECRET, "EUR"])
    assert SECRET not in traceback_of(caught.value)
    with pytest.raises(InvalidOutput, match=r"AttributeError in dump.*has no attribute"):
        job_type.encode_output(object())


def test_the_schema_of_a_payload_type_is_optional():
    assert JobType("pay", input=MoneyType()).input_codec.json_schema() == {"type": "array"}
    assert JobType("pay", input=Silent()).input_codec.json_schema() is None


@pytest.mark.parametrize("value", [Charge, Address, MoneyType, list[Charge], dict[str, Charge], dict[int, str]])
def test_a_type_that_is_not_json_is_refused_where_it_is_declared(value):
    for declare in (
        lambda: JobType("charge", input=value),
        lambda: JobType("charge", output=value),
        lambda: Processors().register("charge", input=value)(lambda job: None),
    ):
        with pytest.raises(RegistryError, match=r"needs pydantic: install django_jobchains\[typed\], or use JSON"):
            declare()


@pytest.mark.parametrize("annotation", [Charge, Annotated[Charge, "of an order"]])
def test_an_annotation_that_is_not_json_is_refused_where_it_is_declared(annotation):
    with pytest.raises(RegistryError, match="'charge': Charge as input or output needs pydantic"):

        @Processors().register("charge")
        def charge(job: RunningJob[annotation]): ...


@pytest.mark.parametrize(
    "annotation",
    [Any, None, type(None), object, str, int, float, bool, list, dict, list[int], dict[str, list[float]],
     Annotated[dict[str, int], "by tenant"], list[Annotated[int, "an amount"]], dict[Annotated[str, "a name"], Any],
     list[dict[str, Any]], str | None, dict[str, str | int | None],
     Optional[int]],  # noqa: UP045
    ids=str,
)  # fmt: skip
def test_json_types_need_no_pydantic(annotation):
    JobType("plain", input=annotation, output=annotation)


def test_json_annotations_need_no_pydantic():
    @Processors().register("plain")
    def plain(job: RunningJob[dict[str, int]]) -> int | Continuation:
        return 1

    plain.item({"a": 1})
    plain.item({"a": "one"})  # Annotations are checked with pydantic only.
    with pytest.raises(InvalidInput, match=r"at \$\.a: set is not JSON"):
        plain.item({"a": {1}})
