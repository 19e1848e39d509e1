"""Values that could not be read back equal are refused, with the path of the part that cannot be stored."""

import json
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from datetime import date, datetime
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

anything: JobType[Any, Any] = JobType("anything")


def error_of(value: Any) -> InvalidInput:
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
        ({"at": datetime(2026, 1, 1)}, "$.at", "datetime is not JSON"),  # noqa: DTZ001
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
        ({True: 1}, "$", "a key must be a string, not True"),
        ({1.5: 1}, "$", "a key must be a string, not 1.5"),
    ],
)
def test_a_value_that_is_not_json_is_refused_with_its_path(value, path, reason):
    error = error_of(value)
    assert error.path == path
    assert str(error).startswith(f"At {path}: {reason}")


def test_the_errors_are_value_errors_of_the_package():
    assert issubclass(InvalidInput, InvalidPayload)
    assert issubclass(InvalidPayload, JobchainsError)
    assert issubclass(InvalidPayload, ValueError)


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


def test_json_is_accepted():
    anything.item([None, True, 0, -1, 10**400, -0.0, 1e-300, "", 'ä \U0001f642 \u2028 \x7f \x01 " \\ /'])
    anything.item([[], {}, {"": {"": []}}, OrderedDict(b=1, a=2), Text("a text"), Colour.RED])
    for value in (None, 0, "", [], {}):
        anything.item(value)


def nested(levels: int, *, as_dict: bool = False) -> Any:
    value: Any = "the bottom"
    for _ in range(levels):
        value = {"deeper": value} if as_dict else [value]
    return value


@pytest.mark.parametrize("as_dict", [False, True])
def test_100_levels_are_accepted_and_101_are_not(as_dict):
    anything.item(nested(100, as_dict=as_dict))
    error = error_of(nested(101, as_dict=as_dict))
    assert "nested deeper than 100 levels (JOBCHAINS['MAX_PAYLOAD_DEPTH'])" in str(error)


def test_a_hundred_thousand_levels_are_refused_without_recursion():
    value = nested(100_000)
    assert "nested deeper" in str(error_of(value))
    while isinstance(value, list):  # otherwise Python frees it recursively
        value = value[0]


def test_circular_values_are_refused():
    around: list[Any] = [1]
    around.append({"and": around})
    assert "nested deeper" in str(error_of(around))


def test_a_value_that_is_small_in_memory_and_huge_as_json_is_refused():
    value: Any = "x"
    for _ in range(60):
        value = [value, value]
    assert "too many values" in str(error_of(value))


@pytest.mark.parametrize("as_dict", [False, True])
def test_values_are_counted_before_they_are_encoded(settings, as_dict):
    settings.JOBCHAINS = {"MAX_PAYLOAD_BYTES": 41}
    fits: Any = {str(number): 1 for number in range(6)} if as_dict else [1] * 20
    anything.item(fits)
    many: Any = {str(number): 1 for number in range(21)} if as_dict else [1] * 21
    assert "too many values" in str(error_of(many))


@pytest.mark.parametrize("number", [1e308, -1e308, 1e-308])
def test_the_digits_of_numbers_are_counted_before_they_are_encoded(monkeypatch, settings, number):
    """Numbers are stored without an exponent: five characters become three hundred."""
    settings.JOBCHAINS = {"MAX_PAYLOAD_BYTES": 10_000}
    anything.item([number] * 31)
    monkeypatch.setattr("django_jobchains.payloads.strict_json.write_json", None)
    assert "too many values, or too large ones, for 10,000 bytes" in str(error_of([number] * 33))
    assert "too many values, or too large ones" in str(error_of({str(key): number for key in range(33)}))


@pytest.mark.parametrize("annotation", [Any, list[float]])
def test_a_form_with_many_large_numbers_is_refused_without_much_memory(annotation):
    text = f"[{'1e308,' * 150_000}1]"
    form = PayloadForm({"payload": text}, codec=Codec(annotation), error=InvalidInput, json_label="", legend="")
    tracemalloc.start()
    try:
        assert "too large ones" in form.errors["payload"][0]
        assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("letter", ["x", "ä", "你", "\U0001f642"])
def test_a_mebibyte_of_json_is_accepted_and_a_byte_more_is_not(letter):
    room = 2**20 - len('""')
    letters, rest = divmod(room, len(letter.encode()))
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


def test_an_integer_that_python_cannot_parse_is_refused():
    assert "cannot be written as JSON" in str(error_of(10**5000))


def test_an_error_does_not_contain_the_value():
    assert len(str(error_of({"card": "4000 " * 10_000 + "\0"}))) < 200


@pytest.mark.slow
@pytest.mark.parametrize("part", ["[]", "{}", '""', "[0]"])
def test_many_small_values_take_little_memory(part):
    """A text below MAX_PAYLOAD_BYTES must not take many times its size."""
    text = f"[{','.join([part] * (300_000 // (len(part) + 1)))}]"
    value = json.loads(text)
    assert peak_bytes(lambda: encode(value)) < 5_000_000
    assert peak_bytes(lambda: decode(text)) < peak_bytes(lambda: json.loads(text)) + 5_000_000


def peak_bytes(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
