"""Strict JSON: inputs and outputs as texts that are read back equal.

No NaN or infinity, no NUL or lone surrogate (which jsonb refuses), only string keys, limited depth and size. Errors
name the path of the value.
"""

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from math import inf, isfinite, log10
from types import NoneType
from typing import Any

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidInput, InvalidPayload
from django_jobchains.payloads.codecs import ENCODED_JSON
from django_jobchains.text.errors import ENCODED
from django_jobchains.text.validation_errors import MAX_KEY_LENGTH

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


def json_writer(*, ensure_ascii: bool) -> Callable[[Any], str]:
    """Return a function that writes a value as JSON. It does not check whether the value contains itself.

    ``JSONEncoder.encode`` creates the encoder of the C module in each call, which takes longer than writing a payload.
    """
    python = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))
    write_text = json.encoder.encode_basestring_ascii if ensure_ascii else json.encoder.encode_basestring
    try:
        options = (write_text, None, ":", ",", False, False, False)
        parts = json.encoder.c_make_encoder(None, python.default, *options)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):  # another implementation or version of Python
        return python.encode
    return lambda value: "".join(parts(value, 0))


write_json = json_writer(ensure_ascii=False)
#: Takes a third of the time of ``json.loads``, which also skips the spaces around a value.
_read_json = json.JSONDecoder().raw_decode
_SPACES = " \t\n\r"


def encode(value: Any, error: type[InvalidPayload] = InvalidInput, *, is_limited: bool = True) -> str:
    """Return the JSON text of a value; raise ``error`` with the path of a part that is not JSON, or with the limit.

    ``is_limited=False`` is for a value that contains one that was stored before.
    """
    has_large_float = not (type(value) in _PLAIN or is_flat(value)) and _Check(error, is_limited=is_limited).run(value)
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


def is_flat(value: Any) -> bool:
    """Return whether a value is a small dict that needs no check, as most inputs are."""
    if type(value) is not dict or len(value) > _MAX_FLAT:
        return False
    for key, item in value.items():  # faster than all() with a generator
        if not _is_simple_text(key) or not (type(item) in _PLAIN or _is_simple_text(item)):
            return False
    return True


def is_flat_list(value: Any) -> bool:
    """Return whether a value is a small list that needs no check."""
    if type(value) is not list or len(value) > _MAX_FLAT:
        return False
    return all(type(item) in _PLAIN or _is_simple_text(item) for item in value)


def _is_simple_text(value: Any) -> bool:
    return type(value) is str and value.isascii() and "\0" not in value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # It contains the text, so it must not become the context of another error.
        return False
    return True


def decode(text: str, error: type[InvalidPayload] = InvalidInput) -> Any:
    """Return the value of a stored text; raise ``error`` if ``encode`` cannot have written it."""
    text = text.strip(_SPACES)
    problem = ""
    try:
        value, end = _read_json(text)
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except (ValueError, RecursionError) as found:
        problem = f"{type(found).__name__}: {found}"
    if problem:  # Raised after the except block: otherwise its error, which contains the text, would be the context.
        raise error(f"The stored value cannot be decoded: {problem}")
    # Some versions of Python decode more levels than others.
    if len(text) > MAX_STORED_DEPTH and text.count("[") + text.count("{") > MAX_STORED_DEPTH:
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
        if not (part.isascii() or _is_unicode(part)):
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
        steps.append(path_step(key))
    return "$" + "".join(reversed(steps))


def path_step(key: Any) -> str:
    """Return how a path shows a key or an index."""
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key if len(str(key)) <= MAX_KEY_LENGTH else '…'}"
