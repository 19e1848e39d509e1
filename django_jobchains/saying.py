"""What a handler may say by ``job.log`` and ``job.set_progress``, as any database takes it.

Its own arguments are checked. The fields that a handler adds are not: whatever they are, writing them does not fail.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django_jobchains.models import PROGRESS_TEXT_LENGTH, LogLine
from django_jobchains.texts import clean

MOST_TEXT_BYTES = 8 * 1024
#: Of all fields together, keys and values; what comes after them is left out.
MOST_CHARACTERS = 8 * 1024
#: Values nested deeper are written as text.
DEEPEST = 8
LEFT_OUT = "…"
#: What a number takes of the room.
_SCALAR_CHARACTERS = 8
_ARRAYS = (list, tuple, set, frozenset)
#: Larger numbers are written as text: other readers of JSON would round them.
_LARGEST = 2**63
#: These come back from PostgreSQL with all their digits. Infinity and NaN are no JSON.
_FIRST_FLOAT_WITH_EXPONENT = 1e16

_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


_LEVELS = {level.name.lower(): level.value for level in LogLine.Level}
#: A sum of parts may be as much above 1.
_ROUNDING = 1e-9


def level_of(given: str | int) -> int:
    """The number of a level; raises ``ValueError``."""
    number = _LEVELS.get(given.lower()) if isinstance(given, str) else given
    if number is None or number not in _LEVELS.values():
        known = ", ".join(_LEVELS)
        raise ValueError(f"job.log(level={given!r}): {known}, or one of their numbers in logging.")
    return int(number)


def said_text(given: str) -> str:
    """Cleaned, and cut in the middle; raises ``TypeError``."""
    return clean(_text(given, "log"), MOST_TEXT_BYTES)


def short_text(given: str) -> str:
    """One line beside a progress, cut at its end; raises ``TypeError``."""
    text = _text(given, "set_progress")
    if len(text) > PROGRESS_TEXT_LENGTH:
        text = text[: PROGRESS_TEXT_LENGTH - 1] + LEFT_OUT
    return clean(text)


def fraction_of(given: float) -> float:
    """Raises ``TypeError`` and ``ValueError``."""
    if not isinstance(given, int | float):
        raise TypeError(f"job.set_progress() takes a number from 0 to 1, not {type(given).__name__}.")
    if not 0 <= given <= 1 + _ROUNDING:
        raise ValueError(f"job.set_progress({given!r}): a number from 0 to 1. Divide what is done by all there is.")
    return min(float(given), 1.0)


def _text(given: str, name: str) -> str:
    if not isinstance(given, str):
        raise TypeError(f"job.{name}() takes a text, not {type(given).__name__}: convert it by str().")
    return str.__str__(given)


def said_fields(fields: Mapping[str, Any]) -> str | None:
    """The JSON text; what is no JSON as its ``str``. None without any."""
    if not fields:
        return None
    try:
        return _write(_Plain().value(fields))
    except Exception as problem:  # a mapping that another thread changes, say
        return _write({LEFT_OUT: f"<the fields could not be read: {type(problem).__name__}>"})


class _Plain:
    """Copies values as JSON has them, as many as there is room for."""

    def __init__(self) -> None:
        self._left = MOST_CHARACTERS

    def value(self, given: Any, depth: int = 0) -> Any:
        if isinstance(given, str) or depth == DEEPEST:
            return self._text(given)
        if _is_scalar(given):
            self._left -= _SCALAR_CHARACTERS
            return given
        if isinstance(given, _ARRAYS):
            return self._array(given, depth)
        return self._object(given, depth) if isinstance(given, Mapping) else self._text(given)

    def _object(self, given: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in given.items():
            if self._left <= 0:
                written[LEFT_OUT] = LEFT_OUT
                break
            written[self._text(key)] = self.value(value, depth + 1)
        return written

    def _array(self, given: Iterable[Any], depth: int) -> list[Any]:
        written: list[Any] = []
        for value in given:
            if self._left <= 0:
                written.append(LEFT_OUT)
                break
            self._left -= 1
            written.append(self.value(value, depth + 1))
        return written

    def _text(self, given: Any) -> str:
        text = _written(given)
        room = max(self._left, 0)
        self._left -= len(text) + 1
        return clean(text if len(text) <= room else text[:room] + LEFT_OUT)


def _written(given: Any) -> str:
    """Its ``str``, also when that cannot be made."""
    try:
        return str.__str__(str(given))  # a subclass of str may bring a format of its own
    except Exception as problem:
        return f"<{type(given).__name__} that could not be written: {type(problem).__name__}>"


def _is_scalar(given: Any) -> bool:
    if isinstance(given, float):
        return abs(given) < _FIRST_FLOAT_WITH_EXPONENT
    return given is None or isinstance(given, bool) or (isinstance(given, int) and -_LARGEST <= given < _LARGEST)
