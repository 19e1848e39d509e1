"""Values that could not be read back equal are refused, with the path of the part that cannot be stored."""

import json
import tracemalloc
from datetime import date
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest

from django_jobchains.admin.actions.forms import PayloadForm
from django_jobchains.exceptions import InvalidInput, InvalidPayload, JobchainsError
from django_jobchains.payloads.strict_json import decode, encode
from django_jobchains.payloads.types import Codec
from django_jobchains.processors import JobType

anything = JobType("anything")


def error_of(value):
    with pytest.raises(InvalidInput) as caught:
        anything.item(value)
    return caught.value


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (float("nan"), "$", "nan is not JSON"),
        ([1, float("inf")], "$[1]", "inf is not JSON"),
        ({"a": {"b": float("-inf")}}, "$.a.b", "-inf is not JSON"),
        ({"items": [{}, {}, {}, {"price": Decimal("0.1")}]}, "$.items[3].price", "Decimal is not JSON"),
        ({"on": date(2026, 1, 1)}, "$.on", "date is not JSON"),
        ([UUID(int=1)], "$[0]", "UUID is not JSON"),
        ({"raw": b"bytes"}, "$.raw", "bytes is not JSON"),
        ({"many": {1, 2}}, "$.many", "set is not JSON"),
        ({"pair": (1, 2)}, "$.pair", "tuple is not JSON"),
        ([[], [object()]], "$[1][0]", "object is not JSON"),
        ({"class": int}, "$.class", "type is not JSON"),
        ({"number": 1 + 2j}, "$.number", "complex is not JSON"),
        ("a\0b", "$", "a NUL character cannot be stored"),
        ({"text": ["\0"]}, "$.text[0]", "a NUL character cannot be stored"),
        ({"a": {"\0": 1}}, "$.a", "a NUL character cannot be stored"),
        ({"text": "half \ud83d"}, "$.text", "a lone surrogate cannot be stored"),
        ({"a": {"\udc00": 1}}, "$.a", "a lone surrogate cannot be stored"),
        ({1: "one"}, "$", "a key must be a string, not 1"),
        ({"a": [{None: 1}]}, "$.a[0]", "a key must be a string, not None"),
        ({"card": "4000 " * 10_000 + "\0"}, "$.card", "a NUL character"),
    ],
)
def test_a_value_that_is_not_json_is_refused_with_its_path_and_not_quoted(value, path, reason):
    error = error_of(value)
    assert error.path == path
    assert str(error).startswith(f"Input of 'anything': at {path}: {reason}")
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "call", [lambda: encode({"card": "4000 \ud83d"}), lambda: decode('{"card": "4000'), lambda: decode('"4000" 1')]
)
def test_an_error_has_no_context_that_contains_the_value(call):
    with pytest.raises(InvalidInput) as caught:
        call()
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)


def test_the_errors_are_value_errors_of_the_package():
    assert issubclass(InvalidInput, InvalidPayload)
    assert issubclass(InvalidPayload, JobchainsError)
    assert issubclass(InvalidPayload, ValueError)


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [None, 0, "", [], {}, [[], {}, {"": {"": []}}, 10**400, Text("a text"), Colour.RED]])
def test_json_is_accepted(value):
    anything.item(value)


def nested(levels, *, as_dict=False):
    value = "the bottom"
    for _ in range(levels):
        value = {"deeper": value} if as_dict else [value]
    return value


@pytest.mark.parametrize("as_dict", [False, True])
def test_100_levels_are_accepted_and_101_are_not(as_dict):
    anything.item(nested(100, as_dict=as_dict))
    error = error_of(nested(101, as_dict=as_dict))
    assert "nested deeper than 100 levels (JOBCHAINS['MAX_PAYLOAD_DEPTH'])" in str(error)


def test_deep_and_circular_values_are_refused_without_recursion():
    around = [1]
    around.append({"and": around})
    assert "nested deeper" in str(error_of(around))
    value = nested(100_000)
    assert "nested deeper" in str(error_of(value))
    while isinstance(value, list):  # otherwise Python frees it recursively
        value = value[0]


def test_a_value_that_is_small_in_memory_and_huge_as_json_is_refused():
    value = "x"
    for _ in range(60):
        value = [value, value]
    assert "too many values" in str(error_of(value))


@pytest.mark.parametrize("of", [list, lambda numbers: {str(key): number for key, number in enumerate(numbers)}])
@pytest.mark.parametrize(
    ("limit", "number", "fits", "many"), [(41, 1, 6, 21), *((10_000, each, 30, 33) for each in (1e308, -1e308, 1e-308))]
)
def test_values_and_digits_are_counted_before_they_are_encoded(settings, monkeypatch, of, limit, number, fits, many):
    """Numbers are stored without an exponent: five characters become three hundred."""
    settings.JOBCHAINS = {"MAX_PAYLOAD_BYTES": limit}
    anything.item(of([number] * fits))
    monkeypatch.setattr("django_jobchains.payloads.strict_json.write_json", None)
    assert f"too many values, or too large ones, for {limit:,} bytes" in str(error_of(of([number] * many)))


@pytest.mark.parametrize("annotation", [Any, list[float]])
def test_a_form_with_many_large_numbers_is_refused_without_much_memory(annotation):
    text = f"[{'1e308,' * 150_000}1]"
    form = PayloadForm({"payload": text}, codec=Codec(annotation), error=InvalidInput, json_label="", legend="")
    assert peak_bytes(lambda: form.errors) < 20 * len(text)
    assert "too large ones" in form.errors["payload"][0]


@pytest.mark.parametrize("letter", ["x", "ä", "你", "\U0001f642"])
def test_a_mebibyte_of_json_is_accepted_and_a_byte_more_is_not(letter):
    letters, rest = divmod(2**20 - len('""'), len(letter.encode()))
    fits = letter * letters + "x" * rest
    anything.item(fits)
    error = error_of(fits + "x")
    assert "1,048,577 bytes of JSON; the limit is 1,048,576 (JOBCHAINS['MAX_PAYLOAD_BYTES'])" in str(error)


def test_escaped_characters_count_as_they_are_encoded():
    anything.item("\n" * (2**19 - 1))
    assert "1,048,578 bytes" in str(error_of("\n" * 2**19))


def test_the_limits_are_settings(settings):
    settings.JOBCHAINS = {"MAX_PAYLOAD_BYTES": 10, "MAX_PAYLOAD_DEPTH": 2}
    anything.item("12345678")
    anything.item([[1]])
    assert "limit is 10 " in str(error_of("123456789"))
    assert "deeper than 2 levels" in str(error_of([[[1]]]))


@pytest.mark.parametrize("text", [" 1", "1 ", '\t{"a": [1]}\r\n'])
def test_spaces_around_a_stored_value_are_accepted(text):
    assert decode(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", " ", "1 2", "{} {}", "[1]]", "\ufeff1", "\xa01", "nope"])
def test_a_stored_text_that_is_not_one_value_is_refused(text):
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode(text)


def test_an_integer_that_python_cannot_parse_is_refused():
    assert "cannot be written as JSON" in str(error_of(10**5000))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["[]", "{}", '""', "[0]"])
def test_many_small_values_take_little_memory(part):
    """A text below MAX_PAYLOAD_BYTES must not take many times its size."""
    text = f"[{','.join([part] * (300_000 // (len(part) + 1)))}]"
    value = json.loads(text)
    assert peak_bytes(lambda: encode(value)) < 5_000_000
    assert peak_bytes(lambda: decode(text)) < peak_bytes(lambda: json.loads(text)) + 5_000_000


def peak_bytes(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
