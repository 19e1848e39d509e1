"""What goes into a job and comes out of it: strict JSON, and typed values by pydantic when it is installed.

``encode``/``decode`` hold the rule that what is enqueued is read back equal: no NaN or Infinity, no NUL and no lone
surrogate (jsonb refuses them), only string keys, bounded depth and size. The error names the path.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from math import isfinite, log10
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from django.db import DatabaseError, InterfaceError

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidInput, InvalidPayload, RegistryError

_SCALARS = frozenset({str, int, float, bool, NoneType})
_JSON_TYPES = _SCALARS | {dict, list, object}
#: Every value of these types is JSON.
_PLAIN = frozenset({int, bool, NoneType})
#: From here on ``repr`` of a float has an exponent, which jsonb gives back as an integer: 1e+23 would change its value.
_FIRST_FLOAT_WITH_EXPONENT = 1e16
#: Below this one it has a negative exponent.
_LAST_FLOAT_WITH_EXPONENT = 1e-4
#: Whatever the setting said when it was written, a stored value is not read when it is nested deeper.
DEEPEST_READ = 900
_STRING_OR_EXPONENT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?e\+?\d+')

#: Errors of the process, the network or the database. A validator may raise them for a value that is right.
NOT_ABOUT_THE_VALUE = (MemoryError, OSError, DatabaseError, InterfaceError)

#: Made once: ``json.dumps`` makes one for each call that asks for anything unusual.
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(value: Any, error: type[InvalidPayload] = InvalidInput) -> str:
    """The JSON text of ``value``; raises ``error`` with the path of what is no JSON, too deep or too large."""
    has_large_float = _Check(error, get_settings().MAX_PAYLOAD_DEPTH).run(value)
    try:
        text = _write(value)
    except ValueError as problem:
        raise error(f"The value cannot be written as JSON: {problem}.") from problem
    if has_large_float:
        text = _STRING_OR_EXPONENT.sub(_write_out, text)
    limit = get_settings().MAX_PAYLOAD_BYTES
    if len(text) > limit or (not text.isascii() and len(text.encode()) > limit):
        raise error(
            f"The value is {len(text.encode()):,} bytes of JSON; the limit is {limit:,} "
            "(JOBCHAINS['MAX_PAYLOAD_BYTES']). Store the data elsewhere and give the job its key."
        )
    return text


def decode(text: str, error: type[InvalidPayload] = InvalidInput) -> Any:
    """The value of a stored text; ``error`` for one that something else than ``encode`` wrote."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"The stored value cannot be decoded: {type(problem).__name__}: {problem}") from problem
    if text.count("[") + text.count("{") > DEEPEST_READ:  # some versions of Python decode what others cannot
        _check_depth(value, error)
    return value


def _check_depth(value: Any, error: type[InvalidPayload]) -> None:
    level, depth = [value], 0
    while level := [part for part in level if part and isinstance(part, dict | list)]:
        if (depth := depth + 1) > DEEPEST_READ:
            raise error(f"At $: the stored value is nested deeper than {DEEPEST_READ} levels.", "$")
        level = [member for part in level for member in (part.values() if isinstance(part, dict) else part)]


def _write_out(match: re.Match[str]) -> str:
    token = match.group()
    return token if token.startswith('"') else f"{Decimal(float(token)):f}.0"


class _Check:
    """Walks a value without recursion and raises for the first part of it that would not be read back equal."""

    def __init__(self, error: type[InvalidPayload], depth_limit: int) -> None:
        self.error = error
        self.depth_limit = depth_limit
        self.has_large_float = False
        self._bytes_left = get_settings().MAX_PAYLOAD_BYTES

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
        """Check members up to the next dict or list that is not empty, and return that. Its depth is ``depth``."""
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
        if depth > self.depth_limit:
            self._refuse(f"nested deeper than {self.depth_limit} levels (JOBCHAINS['MAX_PAYLOAD_DEPTH'])", None)
        self._count(2 * len(part))  # so that a list that holds itself thousandfold is not walked to its end
        if not isinstance(part, dict):
            return iter(enumerate(part))
        self._keys(part, path)
        return iter(part.items())

    def _count(self, bytes_: int) -> None:
        """Counts what the value takes at least, before it is written."""
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
        elif 0 < size < _LAST_FLOAT_WITH_EXPONENT:  # PostgreSQL gives it back with all its zeros
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


#: The path of the value around it, and the key or index in that.
_Path = tuple[Any, str | int]
_Members = Iterator[tuple[str | int, Any]]


def _written(path: _Path | None) -> str:
    steps: list[str] = []
    while path is not None:
        path, key = path
        steps.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return "$" + "".join(reversed(steps))


Value = TypeVar("Value")


class Codec:
    """Turns values of one annotation into JSON text and back.

    JSON's own types (and no annotation) need nothing. Anything else, and checking of what is annotated, is pydantic's
    ``TypeAdapter``: without it a dataclass annotation is an error when the job type is declared.
    """

    def __init__(self, annotation: Any = Any) -> None:
        if isinstance(annotation, str):
            raise RegistryError(f"{annotation!r:.50} as input or output is a string: pass the type itself.")
        self.annotation = annotation
        self._adapter: Any = None if annotation in (Any, object) else _type_adapter(annotation)

    def encode(self, value: Any, error: type[InvalidPayload]) -> str:
        if self._adapter is None:
            return encode(value, error)
        try:
            plain = self._adapter.dump_python(value, mode="json", warnings="error")
            text = encode(plain, error)
            self._check_read_back(value, plain, error)
        except InvalidPayload:
            raise
        except Exception as problem:  # pydantic's own errors, and whatever a user's validator raises
            raise error(f"Not a {_name(self.annotation)}: {self._reason(value, problem)}") from _cause(problem)
        return text

    def _reason(self, value: Any, problem: Exception) -> str:
        """What to pass instead of a value of another type, or which part of the value is wrong."""
        if not _is_instance(value, self.annotation):
            given = "None" if value is None else type(value).__name__
            return f"pass {_written_call(self.annotation)}, not {given}."
        try:
            self._adapter.validate_python(self._adapter.dump_python(value, mode="json", warnings=False))
            self._adapter.validate_json(self._adapter.dump_json(value, warnings=False), strict=True)
        except Exception as found:
            return _without_values(found if _has_details(found) else problem)
        return _without_values(problem)

    def _check_read_back(self, value: Any, plain: Any, error: type[InvalidPayload]) -> None:
        """A datetime in a field of Any, say, would come back as a string."""
        back = self._adapter.validate_python(plain)
        if back != value and back == self._adapter.validate_python(plain):  # else it has no equality to go by
            raise error("It would be read back as another value: annotate the part that changes with its type.")

    def decode(self, text: str, error: type[InvalidPayload]) -> Any:
        value = decode(text, error)
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_python(value)
        except NOT_ABOUT_THE_VALUE:
            raise
        except Exception as problem:
            raise error(f"Not a {_name(self.annotation)}: {_without_values(problem)}") from _cause(problem)

    def json_schema(self) -> dict[str, Any] | None:
        """What ``decode`` takes, for people who write it by hand; None when any JSON will do, or it cannot be said."""
        if self._adapter is None:
            return None
        from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

        try:
            schema: dict[str, Any] = self._adapter.json_schema()
        except (PydanticInvalidForJsonSchema, PydanticUserError):  # a type with a validator in Python alone
            return None
        return schema


def _type_adapter(annotation: Any) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        if _is_json_type(annotation):
            return None
        raise RegistryError(
            f"{_name(annotation)} as input or output needs pydantic: install django_jobchains[typed], or use JSON."
        ) from None
    try:
        return TypeAdapter(cast("Any", annotation))
    except Exception as problem:
        raise RegistryError(f"{_name(annotation)} cannot be an input or output: {problem}") from problem


def _is_json_type(annotation: Any) -> bool:
    if annotation is None or annotation is Any or annotation in _JSON_TYPES:
        return True
    origin = get_origin(annotation)
    return (origin in _JSON_TYPES or origin in (Union, UnionType)) and all(map(_is_json_type, get_args(annotation)))


def _is_instance(value: Any, annotation: Any) -> bool:
    try:
        return isinstance(value, annotation)
    except TypeError:  # a TypedDict or a list[int], say, cannot be asked
        return True


def _written_call(annotation: Any) -> str:
    """``Charge(order_id=…)``, or the name alone of what has no fields."""
    fields = getattr(annotation, "__dataclass_fields__", None) or getattr(annotation, "model_fields", None) or ()
    return _name(annotation) + (f"({', '.join(f'{field}=…' for field in fields)})" if fields else "")


def _has_details(problem: Exception) -> bool:
    from pydantic_core import ValidationError

    return isinstance(problem, ValidationError)


def _without_values(problem: Any) -> str:
    """Return what is wrong, without the values that pydantic quotes: they may be secrets, and errors are logged."""
    if _has_details(problem):
        parts = problem.errors(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{_location(part['loc'])}{part['msg']}" for part in parts)
    return "a part of it has another type than its annotation." if _quotes_values(problem) else str(problem)


def _cause(problem: Exception) -> Exception | None:
    """Return the error to chain: none of those whose traceback would quote values."""
    return None if _has_details(problem) or _quotes_values(problem) else problem


def _quotes_values(problem: Exception) -> bool:
    from pydantic_core import PydanticSerializationError

    return isinstance(problem, PydanticSerializationError) and str(problem).startswith("Pydantic serializer warnings")


def _location(steps: Iterable[object]) -> str:
    """``lines.0.price: `` of an error of pydantic; "" of the value itself."""
    where = ".".join(map(str, steps))
    return f"{where}: " if where else ""


def _name(annotation: Any) -> str:
    return getattr(annotation, "__qualname__", str(annotation))
