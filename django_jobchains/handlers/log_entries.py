"""The arguments of ``job.log`` and ``job.set_progress``, checked and converted to values that every database can store.

The fields of an entry are not checked: whatever they contain, writing them does not fail.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django_jobchains.models import PROGRESS_TEXT_LENGTH, LogLine
from django_jobchains.payloads.strict_json import write_json
from django_jobchains.text.errors import clean

MAX_TEXT_BYTES = 8 * 1024
#: The limit of characters of all fields, keys and values together. The rest is omitted.
MAX_CHARACTERS = 8 * 1024
#: Values that are nested deeper are written as text.
MAX_DEPTH = 8
LEFT_OUT = "…"
#: The number of characters that a number counts as.
_SCALAR_CHARACTERS = 8
_ARRAYS = (list, tuple, set, frozenset)
#: Larger integers are written as text, because other JSON parsers would round them.
_INT_LIMIT = 2**63
#: PostgreSQL returns larger floats with all their digits, so they are written as text, like infinity and NaN.
_FIRST_FLOAT_WITH_EXPONENT = 1e16

_LEVELS = {level.name.lower(): level.value for level in LogLine.Level}
#: A sum of fractions may exceed 1 by this rounding error.
_ROUNDING = 1e-9


def level_number(given: str | int) -> int:
    """Return the number of a level; raise ``ValueError`` if there is no such level."""
    number = _LEVELS.get(given.lower()) if isinstance(given, str) else given
    if number is None or number not in _LEVELS.values():
        known = ", ".join(_LEVELS)
        raise ValueError(f"level={given!r} of job.log() is not one of {known}, or their numbers in logging.")
    return int(number)


def clean_log_text(given: str) -> str:
    """Return the text cleaned and, if it is too long, cut in the middle; raise ``TypeError`` for other types."""
    return clean(_text(given, "log"), MAX_TEXT_BYTES)


def clean_progress_text(given: str) -> str:
    """Return the text cleaned and, if it is too long, cut at its end; raise ``TypeError`` for other types."""
    text = clean(_text(given, "set_progress"))
    return text if len(text) <= PROGRESS_TEXT_LENGTH else text[: PROGRESS_TEXT_LENGTH - 1] + LEFT_OUT


def checked_fraction(given: float) -> float:
    """Return the fraction; raise ``TypeError`` or ``ValueError`` if it is not a number from 0 to 1."""
    if not isinstance(given, int | float):
        raise TypeError(f"job.set_progress() takes a number from 0 to 1, not {type(given).__name__}.")
    if not 0 <= given <= 1 + _ROUNDING:
        raise ValueError(f"fraction={given!r} is not a number from 0 to 1: divide the finished part by the total.")
    return min(float(given), 1.0)


def _text(given: str, name: str) -> str:
    if not isinstance(given, str):
        raise TypeError(f"job.{name}() takes a text, not {type(given).__name__}: convert it by str().")
    return str.__str__(given)


def encode_fields(fields: Mapping[str, Any]) -> str | None:
    """Return the fields as a JSON text, with ``str`` of values that are not JSON, or None if there are no fields."""
    if not fields:
        return None
    try:
        return write_json(_Plain().value(fields))
    except Exception as problem:  # such as a mapping that another thread changes
        return write_json({LEFT_OUT: f"<the fields could not be read: {type(problem).__name__}>"})


class _Plain:
    """Copies values as JSON, up to the limit of characters."""

    def __init__(self) -> None:
        self._left = MAX_CHARACTERS

    def value(self, given: Any, depth: int = 0) -> Any:
        if isinstance(given, str) or depth == MAX_DEPTH:
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
    """Return ``str`` of a value, or a placeholder if that raises an error."""
    try:
        return str.__str__(str(given))  # a subclass of str may have its own __str__
    except Exception as problem:
        return f"<{type(given).__name__} that could not be written: {type(problem).__name__}>"


def _is_scalar(given: Any) -> bool:
    if isinstance(given, float):
        return abs(given) < _FIRST_FLOAT_WITH_EXPONENT
    return given is None or isinstance(given, bool) or (isinstance(given, int) and -_INT_LIMIT <= given < _INT_LIMIT)
