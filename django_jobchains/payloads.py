"""The inputs and outputs of jobs: strict JSON, and values of declared types (see ``payload_types``).

``encode`` and ``decode`` guarantee that values are read back equal: no NaN or infinity, no NUL or lone surrogate (which
jsonb refuses), only string keys, limited depth and size. Errors name the path of the value.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from math import inf, isfinite, log10
from types import NoneType
from typing import Any, Generic

from django.apps import apps
from django.db import DatabaseError, InterfaceError

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidInput, InvalidPayload, RegistryError
from django_jobchains.payload_codecs import ENCODED, ENCODED_JSON, write_json
from django_jobchains.payload_types import (
    MAX_KEY_LENGTH,
    OutputT_co,
    PayloadType,
    PydanticType,
    describe_without_values,
    listed,
    name_of_type,
    payload_type,
    problems_of,
)

_JSON = (dict, list, str, int, float, NoneType)
#: Every value of these types is JSON.
_PLAIN = frozenset({int, bool, NoneType})
#: The limit of members of a dict that are not counted before they are written.
_MAX_FLAT = 16
#: From this number on, ``repr`` of a float has an exponent, and jsonb returns an integer, so 1e+23 would change its
#: value.
_FIRST_FLOAT_WITH_EXPONENT = 1e16
#: Below this number ``repr`` of a float has a negative exponent.
_LAST_FLOAT_WITH_EXPONENT = 1e-4
#: Stored values with deeper nesting are not read, even if the setting allowed them when they were written.
MAX_STORED_DEPTH = 900
_STRING_OR_EXPONENT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?e\+?\d+')

#: Errors of the process, the network or the database, which validators may raise for valid values.
NOT_ABOUT_THE_VALUE = (MemoryError, OSError, DatabaseError, InterfaceError)


def encode(value: Any, error: type[InvalidPayload] = InvalidInput, *, is_limited: bool = True) -> str:
    """Return the JSON text of a value; raise ``error`` with the path of a part that is not JSON, or with the limit.

    ``is_limited=False`` is for a value that contains one that was stored before.
    """
    has_large_float = not _is_flat(value) and _Check(error, is_limited=is_limited).run(value)
    try:
        text = write_json(value)
    except ValueError as problem:
        raise error(f"The value cannot be written as JSON: {problem}.") from problem
    if has_large_float:
        text = _STRING_OR_EXPONENT.sub(_write_out, text)
    if text.startswith(ENCODED_JSON):
        raise error(f"At $: a string cannot begin with {ENCODED!r}, which marks values that a payload codec encoded.")
    if is_limited:
        check_size(text, error)
    return text


def check_size(text: str, error: type[InvalidPayload]) -> None:
    """Raise ``error`` if a JSON text is longer than the limit. Call it before decoding a text that a user sent."""
    limit = get_settings().MAX_PAYLOAD_BYTES
    if len(text) > limit or (not text.isascii() and len(text.encode(errors="replace")) > limit):
        raise error(
            f"The value is {len(text.encode(errors='replace')):,} bytes of JSON; the limit is {limit:,} "
            "(JOBCHAINS['MAX_PAYLOAD_BYTES']). Store the data elsewhere and give the job its key."
        )


def _is_flat(value: Any) -> bool:
    """Return whether a value is a scalar or a small dict that needs no check, as most payloads are."""
    if type(value) is not dict or len(value) > _MAX_FLAT:
        return type(value) in _PLAIN
    for key, item in value.items():  # faster than all() with a generator
        if not _is_simple_text(key) or not (type(item) in _PLAIN or _is_simple_text(item)):
            return False
    return True


def _is_simple_text(value: Any) -> bool:
    return type(value) is str and value.isascii() and "\0" not in value


def decode(text: str, error: type[InvalidPayload] = InvalidInput) -> Any:
    """Return the value of a stored text; raise ``error`` if ``encode`` cannot have written it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"The stored value cannot be decoded: {type(problem).__name__}: {problem}") from problem
    if text.count("[") + text.count("{") > MAX_STORED_DEPTH:  # some versions of Python decode more levels than others
        _check_depth(value, error)
    return value


def _check_depth(value: Any, error: type[InvalidPayload]) -> None:
    level, depth = [value], 0
    while level := [part for part in level if part and isinstance(part, dict | list)]:
        if (depth := depth + 1) > MAX_STORED_DEPTH:
            raise error(f"At $: the stored value is nested deeper than {MAX_STORED_DEPTH} levels.", "$")
        level = [member for part in level for member in (part.values() if isinstance(part, dict) else part)]


def _write_out(match: re.Match[str]) -> str:
    token = match.group()
    return token if token.startswith('"') else f"{Decimal(float(token)):f}.0"


class _Check:
    """Walks a value without recursion, and raises an error for the first part that would not be read back equal."""

    def __init__(self, error: type[InvalidPayload], *, is_limited: bool = True) -> None:
        settings = get_settings()
        self.error = error
        self.has_large_float = False
        self._depth_limit: float = settings.MAX_PAYLOAD_DEPTH if is_limited else inf
        self._bytes_left: float = settings.MAX_PAYLOAD_BYTES if is_limited else inf

    def run(self, value: Any) -> bool:
        if not isinstance(value, dict | list):
            self._scalar(value, None)
            return self.has_large_float
        open_parts: list[tuple[_Members, _Path | None]] = [(self._members(value, None, 1), None)]
        while open_parts:
            members, path = open_parts[-1]
            if (inner := self._next_open(members, path, len(open_parts) + 1)) is None:
                open_parts.pop()
            else:
                open_parts.append(inner)
        return self.has_large_float

    def _next_open(self, members: "_Members", path: "_Path | None", depth: int) -> "tuple[_Members, _Path] | None":
        """Check members up to the next dict or list that is not empty, and return it. Its depth is ``depth``."""
        for key, item in members:
            if type(item) in _PLAIN:
                continue
            if isinstance(item, dict | list):
                inner = (path, key)
                inner_members = self._members(item, inner, depth)
                if item:
                    return inner_members, inner
            elif not (type(item) is str and item.isascii() and "\0" not in item):
                self._scalar(item, (path, key))
        return None

    def _members(self, part: Any, path: "_Path | None", depth: int) -> "_Members":
        if depth > self._depth_limit:
            self._refuse(f"nested deeper than {self._depth_limit} levels (JOBCHAINS['MAX_PAYLOAD_DEPTH'])", None)
        self._count(2 * len(part))  # stops at the limit for a list that contains itself many times
        if not isinstance(part, dict):
            return iter(enumerate(part))
        self._keys(part, path)
        return iter(part.items())

    def _count(self, bytes_: int) -> None:
        """Count the minimum size of the value before it is encoded."""
        self._bytes_left -= bytes_
        if self._bytes_left < 0:
            limit = get_settings().MAX_PAYLOAD_BYTES
            self._refuse(
                f"too many values, or too large ones, for {limit:,} bytes (JOBCHAINS['MAX_PAYLOAD_BYTES'])", None
            )

    def _keys(self, part: dict[Any, Any], path: "_Path | None") -> None:
        for key in part:
            if not isinstance(key, str):
                self._refuse(f"a key must be a string, not {key!r} (JSON would change it)", path)
            self._text(key, path)

    def _scalar(self, part: Any, path: "_Path | None") -> None:
        if isinstance(part, str):
            self._text(part, path)
        elif isinstance(part, float):
            self._float(part, path)
        elif not (part is None or isinstance(part, int)):
            self._refuse(f"{type(part).__name__} is not JSON: {self.error.remedy}", path)

    def _float(self, part: float, path: "_Path | None") -> None:
        if not isfinite(part):
            self._refuse(f"{part!r} is not JSON", path)
        size = abs(part)
        if size >= _FIRST_FLOAT_WITH_EXPONENT:
            self.has_large_float = True
            self._count(int(log10(size)))
        elif 0 < size < _LAST_FLOAT_WITH_EXPONENT:  # PostgreSQL returns it with all its zeros
            self._count(-int(log10(size)))

    def _text(self, part: str, path: "_Path | None") -> None:
        if "\0" in part:
            self._refuse("a NUL character cannot be stored", path)
        if not part.isascii():
            try:
                part.encode()
            except UnicodeEncodeError:
                self._refuse("a lone surrogate cannot be stored", path)

    def _refuse(self, reason: str, path: "_Path | None") -> None:
        place = _written(path)
        raise self.error(f"At {place}: {reason}.", place)


#: The path of the outer value, and the key or index in it.
_Path = tuple[Any, str | int]
_Members = Iterator[tuple[str | int, Any]]


def _written(path: _Path | None) -> str:
    steps: list[str] = []
    while path is not None:
        path, key = path
        steps.append(f"[{key}]" if isinstance(key, int) else f".{key if len(key) <= MAX_KEY_LENGTH else '…'}")
    return "$" + "".join(reversed(steps))


class Codec:
    """Converts values of one declared type to JSON text and back.

    Annotations other than JSON types need pydantic, which also validates the values. Without pydantic, such an
    annotation is an error when the job type is declared.
    """

    def __init__(self, annotation: Any = Any) -> None:
        if isinstance(annotation, str):
            raise RegistryError(f"{annotation!r:.50} as input or output is a string: pass the type itself.")
        self.annotation = annotation
        self._type = None if annotation in (Any, object) else payload_type(annotation)

    @property
    def name(self) -> str:
        return name_of_type(self.annotation)

    def encode(self, value: Any, error: type[InvalidPayload]) -> str:
        """Return the JSON text of a value of the type, or of JSON that fits the type, or raise ``error``."""
        if self._type is None or (isinstance(self._type, PydanticType) and self._type.is_stored_unchanged(value)):
            return encode(value, error)
        try:
            return self._dump(self._type, value, error)
        except Exception as problem:  # errors of pydantic, of custom validators and of other types' methods
            if isinstance(value, _JSON):
                return self._encode_json(self._type, value, problem, error)
            raise self._error(value, problem, error) from None

    def _encode_json(self, type_: PayloadType[Any], value: Any, problem: Exception, error: type[InvalidPayload]) -> str:
        """Return the text of JSON that ``load`` accepts. ``problem``: why it is not already a value of the type."""
        try:
            encode(value, error)
            return self._dump(type_, type_.load(value), error)
        except InvalidPayload:
            raise self._error(value, problem, error) from None
        except Exception as found:
            if isinstance(value, dict | list):
                raise self._error_of(found, value, error) from None
            raise self._error(value, problem, error) from None

    def _dump(self, type_: PayloadType[Any], value: Any, error: type[InvalidPayload]) -> str:
        plain = type_.dump(value)
        text = encode(plain, error)
        back = type_.load(plain)
        # If two equal texts are read back as different values, a difference proves nothing.
        if not _is_same(value, back) and _is_same(back, type_.load(plain)):
            raise error("It would be read back as another value: annotate the part that changes with its type.")
        return text

    def decode(self, text: str, error: type[InvalidPayload]) -> Any:
        return self.validate(decode(text, error), error)

    def validate(self, value: Any, error: type[InvalidPayload]) -> Any:
        """Return the value that a JSON value stands for. Raise ``error`` if it does not fit the type."""
        if self._type is None:
            return value
        try:
            return self._type.load(value)
        except NOT_ABOUT_THE_VALUE:
            raise
        except Exception as problem:
            raise self._error_of(problem, value, error) from None

    def json_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the values that ``decode`` accepts, or None if there is none."""
        schema = getattr(self._type, "schema", None)
        return schema() if callable(schema) else None

    def _error(self, value: Any, problem: Exception, error: type[InvalidPayload]) -> InvalidPayload:
        """Return the error for a value that could not be dumped."""
        if isinstance(problem, InvalidPayload):
            return problem
        if not isinstance(self._type, PydanticType):
            return self._error_of(problem, value, error)
        found = self._type.problem_with(value, problem)
        return error(f"Not a {self.name}: {found}") if isinstance(found, str) else self._error_of(found, value, error)

    def _error_of(self, problem: Exception, value: Any, error: type[InvalidPayload]) -> InvalidPayload:
        problems = problems_of(problem)
        text = listed(problems) or describe_without_values(problem, value)
        return error(f"Not a {self.name}: {text}", problems=problems)


def _is_same(value: Any, back: Any) -> bool:
    """Return whether a value was read back unchanged.

    Python calls a time that a change of clocks repeats or omits unequal to the same time with another time zone object,
    and every two instances of a dataclass with ``eq=False``.
    """
    if value == back:
        return True
    if isinstance(value, datetime) and isinstance(back, datetime):
        return value.isoformat() == back.isoformat()
    parts, others = _parts(value), _parts(back)
    if type(value) is not type(back) or parts.keys() != others.keys():
        return False
    different = [name for name in parts if parts[name] != others[name]]
    can_differ_only_in_parts = bool(different) or _is_compared_by_identity(value)
    return can_differ_only_in_parts and all(_is_same(parts[name], others[name]) for name in different)


def _is_compared_by_identity(value: Any) -> bool:
    return is_dataclass(value) and type(value).__eq__ is object.__eq__


def _parts(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return getattr(value, "__dict__", {})


class HasOutput(Generic[OutputT_co]):
    """A job type whose jobs return this."""

    name: str
    output_codec: Codec


def output_codec(type_name: str, expected: HasOutput[Any] | None = None) -> Codec:
    """Return the codec for a type's outputs, from ``expected`` if it is this JobType, or else from the registered type.

    Outputs of types that no app declares are JSON values.
    """
    if expected is None or expected.name != type_name:
        config: Any = apps.get_app_config("django_jobchains")
        expected = config.registry.find(type_name)
    return Codec() if expected is None else expected.output_codec
