"""Errors about wrong values, without the values that they quote: these may be secret."""

import sys
from collections.abc import Iterable, Iterator
from traceback import extract_tb
from typing import Any

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
