"""The one place that masks secrets in what is shown: values of sensitive names, in JSON and in texts.

A name is sensitive that contains one of ``JOBCHAINS["SENSITIVE_FIELDS"]``: ``user_password``, ``apiKey``. It is a net,
not a wall: a secret that no such name stands before is not recognised. Store keys of secrets in jobs, not secrets.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django_jobchains.conf import get_settings

MASK = "********"

#: Between the parts of a name: ``api_key``, ``api-key``, ``apiKey``.
_BETWEEN = r"[\s_.-]?"
#: From a sensitive word to its value: the rest of the name, a quote (escaped, in a text within a text), and ``=``,
#: ``:`` or the comma of a pair. Everything is bounded, so that no text takes longer than its length.
_TO_VALUE = (
    r"""[\w.-]{0,64}+(?:\\{0,4}["'])?\]?\s{0,8}"""
    r"""(?P<sign>=>|[:=]{1,2}|%3[ad]|(?<=["']),(?=\s{0,8}b?\\{0,4}["']))\s{0,8}"""
)
_ESCAPED = re.compile(r"""(?P<quote>\\{1,4}["'])(?:(?!(?P=quote)).)*+""", re.DOTALL)
_QUOTED = re.compile(
    r"""[brfu]{0,2}(?:"[^"\\]*+(?:\\.[^"\\]*+)*+|'[^'\\]*+(?:\\.[^'\\]*+)*+)""", re.DOTALL | re.IGNORECASE
)
_PART_OF_BRACKETS = re.compile(rf"""{_QUOTED.pattern}["']?|[^"'\[\](){{}}]++""", re.DOTALL | re.IGNORECASE)
_SCHEME = re.compile(r"(?:basic|bearer|digest|negotiate|token)\s{1,8}", re.IGNORECASE)
_WORD = re.compile(r"""[^\s,;&\[({"']++""")
_CLOSING_QUOTE = re.compile(r"""["']""")
_OPENING_QUOTE = re.compile(r"""[brfu]{0,2}\\{0,4}["']""", re.IGNORECASE)
_LINE = re.compile(r"[^\n]*+")
#: A password within an address.
_IN_ADDRESS = re.compile(r"(://[^\s/@:?#]{0,256}+:)[^\s/@]{1,512}+(?=@)")


def redacted(value: Any) -> Any:
    """A JSON value with the values of sensitive keys masked at any depth, and its texts as ``redacted_text``.

    True, false and null are no secrets. Nothing recurses: it may be nested as deeply as it likes.
    """
    names = _sensitive_names()
    result: list[Any] = [None]
    open_values: list[tuple[Any, Any, Any]] = [(result, 0, value)]
    while open_values:
        around, place, part = open_values.pop()
        if isinstance(part, dict):
            around[place] = copy = dict.fromkeys(map(_text_of, part))
            open_values.extend((copy, _text_of(key), _masked(names, key, member)) for key, member in part.items())
        elif isinstance(part, list | tuple):
            around[place] = items = [None] * len(part)
            open_values.extend((items, number, member) for number, member in enumerate(part))
        else:
            around[place] = _text_of(part)
    return result[0]


def _text_of(part: Any) -> Any:
    return redacted_text(part) if isinstance(part, str) else part


def redacted_text(text: str) -> str:
    """A text with the values masked in ``name=value``, ``name: value``, ``"name": "value"`` and ``//user:value@host``.

    After a colon without a quote it is the rest of the line. In time that is linear in the text's length.
    """
    text = str.__str__(text)  # a subclass may claim to be safe HTML
    if "://" in text:
        text = _IN_ADDRESS.sub(rf"\1{MASK}", text)
    names = _sensitive_names()
    if names is None or not names.may_be_in(text):
        return text
    parts, end = [], 0
    while found := names.before_value.search(text, end):
        start, begin = found.end(), end
        end = _end_of_value(text, start, found["sign"])
        parts += [text[begin:start], _mask_of(text[start:end])]
    return "".join([*parts, text[end:]])


class _Names:
    """The patterns of the sensitive names."""

    def __init__(self, words: Sequence[str]) -> None:
        any_word = "|".join(sorted(map(_pattern, words)))
        self.any_word = re.compile(any_word, re.IGNORECASE)
        self.before_value = re.compile(f"(?:{any_word}){_TO_VALUE}", re.IGNORECASE)
        self._beginnings = {_parts(word)[0].casefold() for word in words}

    def may_be_in(self, text: str) -> bool:
        """Asked first, for it is quick, and most texts have none."""
        text = text.casefold()
        return any(beginning in text for beginning in self._beginnings)


def _sensitive_names() -> _Names | None:
    words = tuple(get_settings().SENSITIVE_FIELDS)
    return _names(words) if words else None


_names = lru_cache(maxsize=8)(_Names)


def _pattern(word: str) -> str:
    return _BETWEEN.join(map(re.escape, _parts(word)))


def _parts(word: str) -> list[str]:
    return [part for part in re.split(r"[\s_.-]+", word) if part]


def _masked(names: _Names | None, key: Any, member: Any) -> Any:
    if names is None or member is None or isinstance(member, bool) or not names.any_word.search(str(key)):
        return member
    return MASK


def _end_of_value(text: str, start: int, sign: str) -> int:
    if start < len(text) and text[start] in "[({":
        return _end_of_brackets(text, start)
    for pattern in (_ESCAPED, _QUOTED):
        if found := pattern.match(text, start):
            return found.end()
    if sign.startswith(":") and (line := _LINE.match(text, start)):
        return line.end()
    return _end_of_word(text, start)


def _end_of_word(text: str, start: int) -> int:
    """Of a word with what is in its quotes and brackets: ``Secret("two words")``."""
    scheme = _SCHEME.match(text, start)
    place = scheme.end() if scheme else start
    while found := _WORD.match(text, place) or _QUOTED.match(text, place) or _CLOSING_QUOTE.match(text, place):
        place = found.end()
        if place < len(text) and text[place] in "[({":
            place = _end_of_brackets(text, place)
    return place


def _end_of_brackets(text: str, start: int) -> int:
    """Where they are all closed again; the end of the text when they are not."""
    depth, place = 0, start
    while place < len(text):
        if found := _PART_OF_BRACKETS.match(text, place):
            place = found.end()
            continue
        depth += 1 if text[place] in "[({" else -1
        place += 1
        if depth == 0:
            return place
    return place


def _mask_of(value: str) -> str:
    """The mask, between the quotes or brackets that stay: so masking it again changes nothing."""
    if value[:1] and value[0] in "[({":
        return f"{value[0]}{MASK}{value[-1] if value[-1] in '])}' and len(value) > 1 else ''}"
    quote = _OPENING_QUOTE.match(value)
    return f"{quote.group()}{MASK}" if quote else MASK if value else ""
