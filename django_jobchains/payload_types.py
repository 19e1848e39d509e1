"""The types of inputs and outputs: annotations, which pydantic converts, and objects that convert values themselves."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from traceback import extract_tb
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Protocol, Union, cast, get_args, get_origin

from django_jobchains.exceptions import RegistryError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: What a job or a chain returns. ``Chain`` without a type is ``Chain[Any]``.
    OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)
else:  # before Python 3.13, a TypeVar has no default
    from typing import TypeVar

    OutputT_co = TypeVar("OutputT_co", covariant=True)

ValueT = TypeVar("ValueT")

_JSON_TYPES = frozenset({str, int, float, bool, NoneType, dict, list, object})
#: The number of problems that are reported about a value: a user may send a value with any number of them.
MAX_PROBLEMS = 20
#: pydantic lists all problems or none. A longer list takes too long, so only their number is reported.
MAX_LISTED_PROBLEMS = 100_000
#: An error message is compared with the parts of its value. If that takes more steps, it is omitted instead.
_MAX_COMPARISONS = 2_000
_MAX_MESSAGE_LENGTH = 2_000
#: Locations contain the keys of a value. Long keys are replaced, and of long locations the middle is left out.
MAX_KEY_LENGTH = 100
_MAX_STEPS = 20

OMITTED = "the message is omitted, because it might quote the value"
SERIALIZATION_PROBLEM = "a part of it has another type than its annotation."

#: The location of a wrong part of a value, and what is wrong with it.
Problem = tuple[tuple[str | int, ...], str]


class PayloadType(Protocol[ValueT]):
    """Converts the inputs or outputs of a job type to JSON and back. Pass an instance as ``input=`` or ``output=``.

    It may also have a method ``schema()``, which returns the JSON Schema of the values that ``load`` accepts. The
    contract tests are ``django_jobchains.testing.contracts.PayloadTypeContract``.
    """

    def load(self, value: Any, /) -> ValueT:
        """Return the value that a JSON value stands for. Raise any exception if it does not fit the type."""

    def dump(self, value: ValueT, /) -> Any:
        """Return the JSON value that ``load`` converts back. Raise any exception if the value has another type."""


class PydanticType:
    """Converts values of an annotation with pydantic, which also validates them."""

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter
        from pydantic_core import SchemaValidator

        self._annotation = annotation
        # Strict mode accepts an int as a float, and JSON would keep it an int.
        self._is_json = _is_json_type(annotation) and not _has_float(annotation)
        self._adapter = adapter = TypeAdapter(cast("Any", annotation))
        # The adapter's method also checks options that are not used here. It is needed for types that are built later.
        is_built = isinstance(adapter.validator, SchemaValidator)
        self.load = adapter.validator.validate_python if is_built else adapter.validate_python
        self._load_strictly = partial(self.load, strict=True)
        self.dump = partial(adapter.dump_python, mode="json", warnings="error")

    def is_stored_unchanged(self, value: Any) -> bool:
        """Return whether the annotation is a JSON type and the value has it, so that no conversion is needed.

        The value may still contain something that JSON does not allow. A conversion takes several times as long as this
        check.
        """
        if not self._is_json:
            return False
        try:
            self._load_strictly(value)
        except Exception:  # of any part of the value
            return False
        return True

    def schema(self) -> dict[str, Any] | None:
        from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

        try:
            schema: dict[str, Any] = self._adapter.json_schema()
        except (PydanticInvalidForJsonSchema, PydanticUserError):  # a type with a validator in Python
            return None
        return schema

    def problem_with(self, value: Any, error: Exception) -> Exception | str:
        """Return what to pass instead of a value of another type, or the error that locates the wrong part."""
        if not _is_instance(value, self._annotation):
            given = "None" if value is None else type(value).__name__
            return f"pass {_written_call(self._annotation)}, not {given}."
        try:
            self.load(self._adapter.dump_python(value, mode="json", warnings=False))
            self._adapter.validate_json(self._adapter.dump_json(value, warnings=False), strict=True)
        except Exception as found:
            return found if number_of_problems(found) else error
        return error


def payload_type(annotation: Any) -> PayloadType[Any] | None:
    """Return the converter for values of a declared type, or None if they are JSON and pydantic is not installed.

    Raises ``RegistryError`` for a type that cannot be converted.
    """
    if is_payload_type(annotation):
        return cast("PayloadType[Any]", annotation)
    try:
        return PydanticType(annotation)
    except ImportError:
        if _is_json_type(annotation):
            return None
        raise RegistryError(
            f"{name_of_type(annotation)} as input or output needs pydantic: "
            "install django_jobchains[typed], or use JSON or an object with the methods load and dump."
        ) from None
    except Exception as problem:
        raise RegistryError(f"{name_of_type(annotation)} cannot be an input or output: {problem}") from problem


def is_payload_type(given: Any) -> bool:
    """Return whether this converts values itself. A class is an annotation, even if its instances convert values."""
    return not isinstance(given, type) and all(callable(getattr(given, name, None)) for name in ("load", "dump"))


def name_of_type(annotation: Any) -> str:
    described = type(annotation) if is_payload_type(annotation) else annotation
    return getattr(described, "__qualname__", str(described))


# Errors


def describe_without_values(error: BaseException, value: Any) -> str:
    """Return what is wrong with a value, without quoting it: it may be secret, and errors are stored and logged."""
    if is_quoting(error):
        return listed(problems_of(error)) or SERIALIZATION_PROBLEM
    frames = extract_tb(error.__traceback__)
    place = f" in {frames[-1].name}, line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
    message = str(error)
    return f"{type(error).__qualname__}{place}: {OMITTED if _is_quoted(value, message) else message}"


def message_without_values(error: BaseException) -> str | None:
    """Return the message of a pydantic error without the values that it quotes, or None for other errors."""
    if not is_quoting(error):
        return None
    if count := number_of_problems(error):
        errors = f"{count:,} validation error{'s' if count > 1 else ''} for {error.title}"  # type: ignore[attr-defined]
        return f"{errors}: {listed(problems_of(error))}"
    return SERIALIZATION_PROBLEM


def is_quoting(error: BaseException) -> bool:
    """Return whether this is an error of pydantic whose message quotes values."""
    if _is_error(error, "PydanticSerializationError"):
        return str(error).startswith("Pydantic serializer warnings")
    return _is_error(error, "ValidationError")


def number_of_problems(error: BaseException) -> int:
    """Return how many parts of a value pydantic rejected, or 0 for other errors."""
    return error.error_count() if _is_error(error, "ValidationError") else 0  # type: ignore[attr-defined]


def problems_of(error: BaseException) -> list[Problem]:
    """Return the parts of a value that pydantic rejected, each with its problem, or nothing for other errors.

    Only the first ones are returned, and then the number of the others, as a problem of the whole value.
    """
    count = number_of_problems(error)
    is_listed = 0 < count <= MAX_LISTED_PROBLEMS
    parts = error.errors(include_url=False, include_context=False)[:MAX_PROBLEMS] if is_listed else []  # type: ignore[attr-defined]
    problems: list[Problem] = [(_short(part["loc"]), _text_without_values(part)) for part in parts]
    if count > len(parts):
        problems.append(((), f"{count - len(parts):,} {'more ' if parts else ''}problems"))
    return problems


def listed(problems: Iterable[Problem]) -> str:
    """Return problems on one line: ``lines.0.price: Field required; …``."""
    return "; ".join(f"{'.'.join(map(str, path))}: {text}" if path else text for path, text in problems)


def _short(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    if len(path) > _MAX_STEPS:
        path = (*path[: _MAX_STEPS // 2], "…", *path[-_MAX_STEPS // 2 :])
    return tuple("…" if len(str(step)) > MAX_KEY_LENGTH else step for step in path)


def _text_without_values(part: dict[str, Any]) -> str:
    """Return pydantic's message about a part, or its kind only if a validator's message quotes the value."""
    message = str(part["msg"])
    return f"{part['type']}: {OMITTED}" if _is_quoted(part["input"], message) else message


def _is_quoted(value: Any, message: str) -> bool:
    """Return whether a message contains a part of the value as a word. True if it takes too long to find out."""
    if len(message) > _MAX_MESSAGE_LENGTH:
        return True
    return any(found or number == _MAX_COMPARISONS for number, found in enumerate(_comparisons(value, message)))


def _comparisons(value: Any, message: str) -> Iterator[bool]:
    """Yield whether the message contains a part as a word, in one or several steps for each part of the value."""
    for text in _texts_of(value):
        yield False
        start = message.find(text) if text else -1
        while start >= 0:
            end = start + len(text)
            yield not (_is_in_word(message[start - 1 : start]) or _is_in_word(message[end : end + 1]))
            start = message.find(text, start + 1)


def _is_in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _texts_of(value: Any) -> Iterator[str]:
    """Yield the scalar values in a value as texts, as a message might quote them, and "" before each part."""
    open_values, seen = [value], set()
    while open_values:
        part = open_values.pop()
        yield ""
        if part is None or isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, str | bytes):
            yield from dict.fromkeys((str(part), repr(part).lstrip("b")[1:-1]))
        elif isinstance(part, dict):
            open_values += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            open_values += part
        elif hasattr(part, "__dict__"):
            open_values += vars(part).values()
        else:
            yield str(part)


def _is_error(error: BaseException, name: str) -> bool:
    """Return whether the error is of this pydantic class. If pydantic is not imported, nothing can have raised it."""
    core = sys.modules.get("pydantic_core")
    return core is not None and isinstance(error, getattr(core, name))


# Annotations


def _is_json_type(annotation: Any) -> bool:
    if annotation is None or annotation is Any or annotation in _JSON_TYPES:
        return True
    origin = get_origin(annotation)
    return (origin in _JSON_TYPES or origin in (Union, UnionType)) and all(map(_is_json_type, get_args(annotation)))


def _has_float(annotation: Any) -> bool:
    return annotation is float or any(map(_has_float, get_args(annotation)))


def _is_instance(value: Any, annotation: Any) -> bool:
    try:
        return isinstance(value, annotation)
    except TypeError:  # isinstance() does not accept TypedDict or list[int]
        return True


def _written_call(annotation: Any) -> str:
    """Return ``Charge(order_id=…)``, or only the name of a type without fields."""
    fields = getattr(annotation, "__dataclass_fields__", None) or getattr(annotation, "model_fields", None) or ()
    return name_of_type(annotation) + (f"({', '.join(f'{field}=…' for field in fields)})" if fields else "")
