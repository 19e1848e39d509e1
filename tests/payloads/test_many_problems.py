"""A value with any number of wrong parts is cheap to report: the first problems are listed, the others are counted."""

import sys
from typing import Annotated, Any

import pydantic
import pytest

from django_jobchains.exceptions import InvalidInput
from django_jobchains.payloads.types import Codec
from django_jobchains.text.errors import describe, traceback_of
from django_jobchains.text.validation_errors import MAX_LISTED_PROBLEMS, MAX_PROBLEMS

#: A valid error has a few kB, however large the value is.
MAX_TEXT = 20_000
SECRET = "hunter2"


class Wide(pydantic.BaseModel):
    a: int
    b: int
    c: int
    d: int
    e: int


def refused(call, *arguments):
    with pytest.raises((InvalidInput, pydantic.ValidationError)) as caught:
        call(*arguments)
    return caught.value


def encoding(annotation=Any):
    return lambda value: Codec(annotation).encode(value, InvalidInput)


def rejected(annotation, value):
    """Return pydantic's own error."""
    return refused(pydantic.TypeAdapter(annotation).validate_python, value)


def calls_of(call, *arguments):
    """Return how many functions the package calls, in Python and in C."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call") and "django_jobchains/" in frame.f_code.co_filename

    sys.setprofile(profile)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("fails", [encoding(list[int]), lambda value: Codec(list[int]).validate(value, InvalidInput)])
def test_the_first_problems_are_reported_and_the_others_are_counted(fails):
    error = refused(fails, ["x"] * 30_000)
    assert len(error.problems) == MAX_PROBLEMS + 1
    assert error.problems[0][0] == (0,)
    assert error.problems[-1] == ((), "29,980 more problems")
    assert str(error).startswith("Not a list: 0: Input should be a valid integer")
    assert str(error).endswith("; 29,980 more problems.")
    assert len(str(error)) < MAX_TEXT


@pytest.mark.parametrize("report", [describe, traceback_of])
@pytest.mark.parametrize(
    ("annotation", "few", "many"),
    [
        (list[int], [f"x{number}" for number in range(30)], [f"x{number}" for number in range(30_000)]),
        # The value of a missing field is the object around it.
        (list[Wide], [{f"k{n}": f"v{n}" for n in range(1_000)}] * 30, [{f"k{n}": n for n in range(5_000)}] * 300),
        (Wide, {"x": [0] * 10_000}, {"x": [0] * 300_000}),
    ],
)
def test_the_work_does_not_depend_on_the_number_of_wrong_parts(report, annotation, few, many):
    errors = [rejected(annotation, value) for value in (few, few, many)]
    _, cost, cost_of_many = (calls_of(report, error) for error in errors)
    assert cost_of_many < 1.2 * cost + 100
    assert len(report(errors[-1])) < MAX_TEXT


def test_a_list_of_problems_that_is_too_long_is_not_created():
    count = MAX_LISTED_PROBLEMS // 5 + 1
    error = rejected(list[Wide], [{}] * count)
    for each in (error, ExceptionGroup("several", [error])):
        text = traceback_of(each)
        assert "Traceback" in text
        assert "Field required" not in text
    problems = f"{5 * count:,} problems"
    assert describe(error) == f"ValidationError: {5 * count:,} validation errors for list[Wide]: {problems}"
    assert str(refused(encoding(list[Wide]), [{}] * count)) == f"Not a list: {problems}."


def test_long_keys_and_deep_locations_are_shortened():
    tree, value = dict[str, int], {"k" * 500_000: "x"}
    for _ in range(30):
        tree, value = dict[str, tree], {"deep": value}
    error = refused(encoding(tree), value)
    [(path, text)] = error.problems
    assert path == (*["deep"] * 10, "…", *["deep"] * 9, "…")
    assert "valid integer" in text
    assert len(str(error)) < MAX_TEXT
    error = refused(encoding(), {"a": {"k" * 500_000: {"b": "\0"}}})
    assert (error.path, str(error)) == ("$.a.….b", "At $.a.….b: a NUL character cannot be stored.")


class Refusing(pydantic.BaseModel):
    name: str
    others: Any = None

    @pydantic.model_validator(mode="after")
    def _refuse(self):
        raise ValueError(self.name.lower())


@pytest.mark.parametrize(
    "value",
    [
        {"name": "A" * 500_000},
        {"name": "A" * 1_900, "others": ["a" * number for number in range(1, 1_000)]},
        {"name": "A-" * 900, "others": ["-a" * number + "b" for number in range(1, 1_000)]},
        {"name": "A", "others": [None] * 300_000},
    ],
)
def test_a_message_that_takes_long_to_compare_with_the_value_is_omitted(value):
    error = rejected(Refusing, value)
    assert describe(error).endswith("value_error: the message is omitted, because it might quote the value")
    assert calls_of(describe, error) < 50_000


@pytest.mark.parametrize(
    ("value", "message", "is_quoted"),
    [
        (SECRET, "{}", True),
        (SECRET, "unknown: {}", True),
        (SECRET, "{}, unknown", True),
        (SECRET, "'{}'", True),
        (SECRET, "={}=", True),
        (SECRET, "x{}", False),  # part of a longer word, such as a name of the schema
        (SECRET, "{}x x{} _{} {}_ ä{}", False),
        (SECRET, "x{} {}", True),
        (" spaced", "a{}", False),
        (" spaced", "a.{}", True),
        (5, "at least {}", True),
        (5, "at least 1{}", False),
        ("a\nb", "{}", True),
        *((f"{separator}a{separator}b", "unknown {}", True) for separator in "\n\r\x0b\x1c\u2028"),
        ("it's", "{!r}", True),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [1, {"key": [None, value]}], lambda v: {v: v}])
def test_a_message_is_omitted_if_it_quotes_a_part_as_a_word(value, message, is_quoted, wrap):
    text = message.replace("{}", str(value)).replace("{!r}", repr(value))

    def fail(given):
        raise ValueError(text)

    error = rejected(Annotated[Any, pydantic.AfterValidator(fail)], wrap(value))
    group = ExceptionGroup("outer", [ValueError("other"), ExceptionGroup("inner", [error])])
    for reported in (describe(error), traceback_of(error), traceback_of(group)):
        assert ("omitted" in reported) == is_quoted
        assert is_quoted or text in reported
