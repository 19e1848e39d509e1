"""Labels of job types: what is accepted, and what is shown of an input."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from cryptography.fernet import Fernet

from django_jobchains.declare.job_types import JobType
from django_jobchains.declare.labels import MAX_INPUT_LENGTH, MAX_LENGTH, label_of
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.payloads.codecs import encode_json
from django_jobchains.payloads.strict_json import encode
from django_jobchains.processors import Processors, RunningJob


@dataclass
class Item:
    name: str
    price: Decimal = Decimal(1)


@dataclass
class Order:
    order_id: int
    item: Item
    placed_on: date | None = None
    api_key: str = ""


ORDER = {"order_id": 7, "item": {"name": "tea", "price": "2.5"}, "placed_on": "2026-11-26", "api_key": "s3cret"}


def shown(label, value=None, input=Order):
    return label_of(JobType("shop.order", input=input, label=label), encode(ORDER if value is None else value))


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("Order {order_id}", "Order 7"),
        ("{order_id:04} of {item.name}, {item.price!s}", "0007 of tea, 2.5"),
        ("{placed_on:%d.%m.}", "26.11."),
        ("plain, {{literal}}", "plain, {literal}"),
        (lambda order: f"{order.item.name.upper()} {order.order_id}", "TEA 7"),
        (lambda order: order.order_id, "7"),
        (lambda order: "two\nlines\x00\u202e", "two lines"),
        (lambda order: "x" * 100, f"{'x' * (MAX_LENGTH - 1)}…"),
        # Nothing to show: the first fields are.
        (lambda order: None, 'order_id: 7, item: {"name":"tea","price":"2.5"}, placed_on: 2026-11-26'),
    ],
)
def test_what_a_label_shows(label, text):
    assert shown(label) == text


def test_fields_of_mappings():
    assert shown("{a}/{b[1]}", {"a": 1, "b": [2, 3]}, dict[str, Any]) == "1/3"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"order_id": 7}, "order_id: 7"),
        ({"a": "x", "b": None, "c": True, "d": 4}, "a: x, b: null, c: true"),
        ([1, 2], "[1,2]"),
        ("text", "text"),
        (0, "0"),
        ("", ""),
        (None, ""),
        ({}, ""),
        ({"password": "x", "n": 1}, "password: ********, n: 1"),
    ],
)
def test_types_without_a_label_show_the_first_fields(value, text):
    assert label_of(None, encode(value)) == label_of(JobType("shop.any"), encode(value)) == text


def test_the_first_fields_are_in_the_order_of_their_declaration():
    """PostgreSQL sorts the names in ``jsonb`` by their length."""
    stored = encode(dict(sorted(ORDER.items(), key=lambda field: len(field[0]))))
    assert label_of(JobType("shop.order", input=Order), stored).startswith("order_id: 7, ")


@pytest.mark.parametrize("label", ["{api_key}", lambda order: order.api_key, lambda order: f"api_key={order.api_key}"])
def test_a_label_is_made_from_the_input_without_its_secrets(label):
    assert "********" in shown(label)
    assert "s3cret" not in shown(label)


def test_a_secret_that_a_label_adds_is_masked():
    assert shown(lambda order: "password=hunter2") == "password=********"


def test_an_error_of_a_label_shows_the_first_fields_and_is_logged_once(caplog):
    def fail(order):
        raise ZeroDivisionError("no reason")

    job_type = JobType("shop.failing-label", input=Order, label=fail)
    for _ in range(2):
        assert label_of(job_type, encode({**ORDER, "item": {"name": "tea"}})).startswith("order_id: 7, ")
    [record] = caplog.records
    assert record.getMessage().startswith("The label of shop.failing-label failed, so the first fields are shown:")


@pytest.mark.parametrize("stored", [None, "[", encode("x" * MAX_INPUT_LENGTH)])
def test_inputs_without_a_label(stored):
    assert label_of(JobType("shop.any", label=lambda value: "shown"), stored) == ""


def test_an_input_that_no_longer_fits_its_type():
    assert shown("Order {order_id}", {"order_id": "x"}) == "order_id: x"
    upgraded = JobType("shop.old", input=Order, label="{item.name}", upgrade_input=lambda old: {**ORDER, **old})
    assert label_of(upgraded, encode({"order_id": 8})) == "tea"


def test_an_encrypted_input_is_decrypted_or_has_no_label(settings):
    keys = {"BACKEND": "django_jobchains.payloads.codecs.FernetCodec", "OPTIONS": {"keys": [Fernet.generate_key()]}}
    plain = getattr(settings, "JOBCHAINS", {})
    settings.JOBCHAINS = {**plain, "PAYLOAD_CODEC": keys}
    stored = encode_json(encode(ORDER))
    job_type = JobType("shop.order", input=Order, label="Order {order_id}")
    assert "order_id" not in stored
    assert label_of(job_type, stored) == "Order 7"
    settings.JOBCHAINS = plain
    assert label_of(job_type, stored) == ""


@pytest.mark.parametrize(
    ("label", "input", "problem"),
    [
        ("Order {", Order, "is not a format string: Single '{' encountered"),
        ("Order {}", Order, "name the fields of the input, as in 'Order {order_id}'"),
        ("Order {0}", Order, "name the fields of the input"),
        ("Order {number}", Order, "names 'number', which is not a field of the input. It has order_id, item,"),
        ("{number}", int, "It has no fields: pass a function of the input."),
        (7, Order, "pass a plain function that takes one argument, the input"),
        (Order, Order, "pass a plain function"),
        (lambda: "x", Order, "must take one argument, the input"),
    ],
)
def test_labels_are_checked_when_the_type_is_declared(label, input, problem):
    with pytest.raises(InvalidDeclaration) as declared:
        JobType("shop.order", input=input, label=label)
    with pytest.raises(InvalidDeclaration) as registered:

        @Processors().register("shop.order", label=label)
        def handle(job: RunningJob[input]) -> None: ...

    assert str(declared.value) == str(registered.value)
    assert str(declared.value).startswith("Job type 'shop.order': ")
    assert problem in str(declared.value)


def test_the_label_of_a_registered_type_names_fields_of_the_annotation():
    @Processors().register("shop.order", label="Order {order_id}")
    def handle(job: RunningJob[Order]) -> None: ...

    assert label_of(handle, encode(ORDER)) == "Order 7"
