"""Masks secrets wherever data is shown: the values of sensitive names, in JSON and in texts, and passwords in URLs.

A name is sensitive if it contains one of ``JOBCHAINS["SENSITIVE_FIELDS"]``, as ``user_password`` and ``apiKey`` do.
This is a safety net, not a guarantee: a secret without such a name is not recognized. Store references to secrets in
jobs, not the secrets themselves.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from django_jobchains.conf import get_settings

MASK = "********"

#: Between the parts of a name: ``api_key``, ``api-key``, ``apiKey``.
_BETWEEN = r"[\s_.-]?"
#: A quote, which is escaped if the text is inside another text.
_QUOTE = r"""\\{0,7}["']"""
#: The keys of a pair that is an object: ``{"name": "Authorization", "value": "Bearer x"}``.
_NAME_KEYS = frozenset({"name", "key", "header", "field"})
_VALUE_KEYS = frozenset({"value", "values"})
_TO_NAME = rf"(?:{_QUOTE})?(?:{'|'.join(sorted(_NAME_KEYS))})(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}}"
_TO_SECOND = rf"values?(?:{_QUOTE})?\s{{0,8}}[:=]"
_KEY_PATTERN = rf"\s{{0,8}}{_QUOTE}[\w.-]{{1,64}}+{_QUOTE}\s{{0,8}}:"
#: What may be between the name and the value in a text: ``"in": "header",``.
_MEMBERS = rf"(?={_KEY_PATTERN})[^{{}}()\[\]]{{0,200}}?"
#: ``password[]=``, ``password[0]=``, and their forms in a URL.
_INDEX = rf"(?:(?:\[|%5b)(?:{_QUOTE})?[\w.-]{{0,32}}(?:{_QUOTE})?(?:\]|%5d))"
#: Words after ``--password`` in a sentence about this option, rather than in a command.
_ABOUT_OPTION = (
    "and|are|argument|as|at|but|can|cannot|could|does|flag|for|from|has|have|if|in|instead|is|may|must|needs|not|of|on|"
    "option|or|parameter|required|requires|should|to|value|was|when|will|with|without|would"
)
#: The space between an option and its value.
_SPACE = rf"""(?<=[ \t])(?=[^\s\-(\[{{])(?!(?:{_ABOUT_OPTION})\b)"""
#: From a sensitive word to its value: the rest of the name, a quote, and ``=``, ``:``, the comma of a pair, or a space.
#: All repetitions are bounded, so that the time is linear in the length of the text.
_TO_VALUE = (
    rf"[\w.-]{{0,64}}+(?:{_QUOTE})?(?:\]|%5d)?{_INDEX}{{0,4}}\s{{0,8}}"
    rf"""(?P<sign>=>|[:=]{{1,2}}|%3[ad]|(?<=["']),(?:\s{{0,8}}{_TO_SECOND}|{_MEMBERS}{_QUOTE}{_TO_SECOND})?|{_SPACE})"""
    r"\s{0,8}"
)
#: What comes before the sensitive word in ``["X-Api-Key", "..."]``.
_BEFORE_PAIR = re.compile(rf"(?P<bracket>[\[(]\s{{0,8}})?[brfu]{{0,2}}{_QUOTE}[\w.-]{{0,64}}+\Z", re.IGNORECASE)
_MAX_BEFORE_PAIR = 90
#: What precedes the word in ``--db-password x``. In ``[--password PASSWORD]`` of a usage message, there is no value.
_BEFORE_OPTION = re.compile(r"(?<![\w.\[-])--?(?!-)[\w.-]{0,64}+\Z")
#: What follows in ``"name": "Authorization", "in": ...`` is not the second of a pair.
_KEY = re.compile(_KEY_PATTERN)
_MAX_NAME_LENGTH = 100


def _escaped(count: int) -> str:
    r"""Return the pattern of a value in quotes that are escaped by ``count`` backslashes, without the last quote.

    The number of backslashes before a quote shows whether it ends the value. In JSON within JSON, the value ``a"`` is
    ``\"a\\\"\"``, because a quote within it is escaped more deeply, and ``a\`` is ``\"a\\\\\"``.
    """
    every = 2 << count.bit_length()
    end = rf"(?<!\\)(?:\\{{{every}}})*+\\{{{count}}}(?P=quote{count})"
    return rf"""\\{{{count}}}(?P<quote{count}>["'])(?:(?!{end}).)*+"""


_ESCAPED = re.compile("|".join(map(_escaped, range(1, 8))), re.DOTALL)
_QUOTED = re.compile(
    r"""[brfu]{0,2}(?:"[^"\\]*+(?:\\.[^"\\]*+)*+|'[^'\\]*+(?:\\.[^'\\]*+)*+)""", re.DOTALL | re.IGNORECASE
)
_PART_OF_BRACKETS = re.compile(rf"""{_QUOTED.pattern}["']?|[^"'\[\](){{}}]++""", re.DOTALL | re.IGNORECASE)
_SCHEME = re.compile(r"(?:basic|bearer|digest|negotiate|token)\s{1,8}", re.IGNORECASE)
_WORD = re.compile(r"""[^\s,;&\[({"']++""")
#: Separators inside a value, as in ``password=aa,bb``. In ``password=aa,user=bb`` they end it.
_WITHIN_WORD = re.compile(r"""[,;&]++(?![\s"')\]}]|\Z|[\w.-]{1,64}+\s{0,8}(?:=(?![=\s,;&]|\Z)|%3d))""", re.IGNORECASE)
_CLOSING_QUOTE = re.compile(r"""["']""")
_CLOSING_BRACKETS = ")]}"
_OPENING_QUOTE = re.compile(rf"[brfu]{{0,2}}{_QUOTE}", re.IGNORECASE)
_LINE = re.compile(r"[^\n]*+")
_BLANK_LINES = re.compile(r"(?:[ \t\r]*+\n)*+")
#: The first line of a block in YAML, which may have several more: ``password: |``.
_BEGIN_BLOCK = re.compile(rf"[|>][+\d-]{{0,2}}[ \t\r]*+(?:#[^\n]*+)?\n{_BLANK_LINES.pattern}(?P<indent>[ \t]++)(?=\S)")
_KEY_INDENT = re.compile(r"(?:[ \t]|-(?=[ \t]))*+")
_LINE_IN_BRACKETS = re.compile(r"[^\n)\]}]*+")
_BEGIN_PEM, _END_PEM = "-----BEGIN ", "-----END "
_BEGIN_KEY = re.compile(r"-----BEGIN [A-Z\d ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_LAST_LINE_OF_PEM = re.compile(r"-----END [A-Z\d ]{0,60}(?:-----)?")
#: The lines of a key whose end is missing, because the text was cut.
_LINES_OF_KEY = re.compile(r"(?:[\w+/=:,\s-]|\\[rn])*+")


def redacted(value: Any) -> Any:
    """Return a JSON value with the values of sensitive keys masked at any depth, and its texts redacted.

    The second of a pair is masked too: ``["Authorization", x]`` and ``{"name": "Authorization", "value": x}``. So is
    what follows an option in a list: ``["mysql", "--password", x]``. True, false and null are not secrets. It does not
    recurse, so the depth of the value does not matter.
    """
    names = _sensitive_names()
    result: list[Any] = [None]
    open_values: list[tuple[Any, Any, Any]] = [(result, 0, value)]
    while open_values:
        around, place, part = open_values.pop()
        if isinstance(part, dict):
            around[place] = copy = dict.fromkeys(map(_text_of, part))
            secret = names.secret_keys(part) if names else ()
            for key, member in part.items():
                open_values.append((copy, _text_of(key), _masked(member) if key in secret else member))
        elif isinstance(part, list | tuple):
            around[place] = items = [None] * len(part)
            secret = names.secret_indexes(part) if names else ()
            for number, member in enumerate(part):
                open_values.append((items, number, _masked(member) if number in secret else member))
        else:
            around[place] = _text_of(part)
    return result[0]


def _text_of(part: Any) -> Any:
    return redacted_text(part) if isinstance(part, str) else part


def _masked(member: Any) -> Any:
    return member if member is None or isinstance(member, bool) else MASK


def redacted_text(text: str) -> str:
    """Return a text with masked secrets: values after sensitive names, passwords in URLs, and private keys.

    A value is recognized in ``name=value``, ``name: value``, ``"name": "value"``, ``--name value``, and in pairs such
    as ``["name", "value"]`` and ``{"name": "name", "value": "value"}``. After a colon without a quote, the rest of the
    line is masked, or the block in YAML that begins there. The user in an address such as ``https://token@host`` is
    masked too. Redact a text before you cut it: a value whose name was cut off is not recognized.

    The time it takes is linear in the length of the text.
    """
    text = str.__str__(text)  # a subclass may claim to be safe HTML
    text = _without_keys(_without_url_secrets(text))
    names = _sensitive_names()
    return names.masked(text) if names is not None and names.may_be_in(text) else text


def may_hold_secrets(text: str) -> bool:
    """Return False if ``redacted_text`` would certainly return the text unchanged. Faster than redacting."""
    names = _sensitive_names()
    return _may_have_url(text) or _BEGIN_PEM in text or (names is not None and names.may_be_in(text))


def _without_keys(text: str) -> str:
    """Mask private keys in PEM format."""
    if _BEGIN_PEM not in text:
        return text
    last_end = text.rfind(_END_PEM)
    parts, copied, place = [], 0, 0
    while found := _BEGIN_KEY.search(text, place):
        start, place = found.span()
        place = _end_of_pem(text, place) if place <= last_end else _LINES_OF_KEY.match(text, place).end()  # type: ignore[union-attr]
        if place > found.end():
            parts += [text[copied:start], MASK]
            copied = place
    return "".join([*parts, text[copied:]])


class _Names:
    def __init__(self, words: Sequence[str]) -> None:
        any_word = "|".join(sorted(map(_pattern, words)))
        self._any_word = re.compile(any_word, re.IGNORECASE)
        self._name = re.compile(rf"[\w.-]*(?:{any_word})[\w.-]*", re.IGNORECASE)
        self._before_value = re.compile(f"(?:{any_word}){_TO_VALUE}", re.IGNORECASE)
        self._value_before_name = re.compile(
            rf"(?P<before>{_TO_SECOND}\s{{0,8}})(?P<value>{_QUOTED.pattern})"
            rf"(?={_QUOTE},\s{{0,8}}{_TO_NAME}{_QUOTE}[\w.-]{{0,64}}(?:{any_word}))",
            re.DOTALL | re.IGNORECASE,
        )
        self._beginnings = {_parts(word)[0].casefold() for word in words}

    def may_be_in(self, text: str) -> bool:
        """Return whether the text may contain a sensitive name. A quick check, as most texts do not."""
        text = text.casefold()
        return any(beginning in text for beginning in self._beginnings)

    def is_name(self, value: Any) -> bool:
        """Return whether it is a sensitive name, and not a sentence that contains one."""
        return isinstance(value, str) and len(value) <= _MAX_NAME_LENGTH and bool(self._name.fullmatch(value))

    def secret_keys(self, part: Mapping[Any, Any]) -> set[Any]:
        """Return the keys of an object whose values are secret."""
        secret = {key for key in part if self._any_word.search(str(key))}
        if any(_is_one_of(_NAME_KEYS, key) and self._is_label(member) for key, member in part.items()):
            secret.update(key for key in part if _is_one_of(_VALUE_KEYS, key))
        return secret

    def secret_indexes(self, part: Sequence[Any]) -> set[int]:
        """Return the indexes of secrets in a list: the second of a pair, and the item after an option of a command."""
        secret = {index for index, member in enumerate(part, 1) if _is_option(member) and self.is_name(member)}
        return secret | {1} if len(part) == 2 and self.is_name(part[0]) else secret

    def _is_label(self, value: Any) -> bool:
        return isinstance(value, str) and len(value) <= _MAX_NAME_LENGTH and bool(self._any_word.search(value))

    def masked(self, text: str) -> str:
        text = self._value_before_name.sub(lambda found: found["before"] + _mask_of(found["value"]), text)
        parts, copied, place = [], 0, 0
        while found := self._before_value.search(text, place):
            start = place = found.end()
            if found["sign"] == "," and not _is_pair(text, found.start(), start):
                continue
            if not found["sign"] and not _is_in_option(text, found.start()):
                continue
            has_scheme = "authorization" in found.group().casefold()
            place = _end_of_value(text, start, found["sign"], has_scheme=has_scheme)
            if place < len(text) or text[start:] not in ("'", '"'):  # not if "password=" in quotes ends the text
                parts += [text[copied:start], _mask_of(text[start:place])]
                copied = place
        return "".join([*parts, text[copied:]])


def _sensitive_names() -> _Names | None:
    words = tuple(get_settings().SENSITIVE_FIELDS)
    return _names(words) if words else None


_names = lru_cache(maxsize=8)(_Names)


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("-")


def _pattern(word: str) -> str:
    return _BETWEEN.join(map(re.escape, _parts(word)))


def _parts(word: str) -> list[str]:
    return [part for part in re.split(r"[\s_.-]+", word) if part]


def _is_one_of(keys: frozenset[str], key: Any) -> bool:
    return isinstance(key, str) and len(key) <= 6 and key.lower() in keys


def _is_pair(text: str, begin: int, start: int) -> bool:
    """Return whether the quoted text around ``begin`` is a name, and the second of a pair is at ``start``."""
    before = _BEFORE_PAIR.search(text, max(0, begin - _MAX_BEFORE_PAIR), begin)
    if before is None or text[start : start + 1] in _CLOSING_BRACKETS or _KEY.match(text, start):
        return False
    return bool(before["bracket"] or _OPENING_QUOTE.match(text, start))


def _is_in_option(text: str, begin: int) -> bool:
    """Return whether the word at ``begin`` is in an option of a command: ``mysql --db-password x``."""
    return _BEFORE_OPTION.search(text, max(0, begin - _MAX_BEFORE_PAIR), begin) is not None


def _end_of_value(text: str, start: int, sign: str, *, has_scheme: bool) -> int:
    """Return the end of the value. ``has_scheme``: it may have several words, as in ``authorization=ApiKey x``."""
    if start < len(text) and text[start] in "[({":
        return _end_of_brackets(text, start)
    for pattern in (_ESCAPED, _QUOTED):
        if found := pattern.match(text, start):
            return found.end()
    if text.startswith(_BEGIN_PEM, start):
        return _end_of_pem(text, start)
    if ":" in sign and (end := _end_of_block(text, start)):
        return end
    if (":" in sign or (has_scheme and "=" in sign)) and (line := _LINE.match(text, start)):
        return line.end()
    if has_scheme and sign.startswith(",") and (line := _LINE_IN_BRACKETS.match(text, start)):
        return line.end()
    end = _end_of_word(text, start)
    while sign == "," and end > start and text[end - 1] in _CLOSING_BRACKETS:
        end -= 1
    return end


def _end_of_block(text: str, start: int) -> int:
    """Return the end of the YAML block whose key is in the line of ``start``, or 0 if there is none."""
    begin = _BEGIN_BLOCK.match(text, start)
    if begin is None:
        return 0
    indent, line = begin["indent"], text.rfind("\n", 0, start) + 1
    if len(indent) <= _KEY_INDENT.match(text, line).end() - line:  # type: ignore[union-attr]
        return 0
    place = begin.start("indent")
    while text.startswith(indent, place):
        end = _LINE.match(text, place).end()  # type: ignore[union-attr]
        place = _BLANK_LINES.match(text, end + 1).end()  # type: ignore[union-attr]
    return end


def _end_of_pem(text: str, start: int) -> int:
    """Return the end of the last line, or the end of the text if that line is missing."""
    last_line = text.find(_END_PEM, start)
    found = _LAST_LINE_OF_PEM.match(text, last_line) if last_line >= 0 else None
    return found.end() if found else len(text)


def _end_of_word(text: str, start: int) -> int:
    """Return the end of a word, including its quotes and brackets: ``Secret("two words")``."""
    scheme = _SCHEME.match(text, start)
    place = scheme.end() if scheme else start
    patterns = (_WORD, _QUOTED, _CLOSING_QUOTE, _WITHIN_WORD)
    while found := next((found for pattern in patterns if (found := pattern.match(text, place))), None):
        place = found.end()
        if place < len(text) and text[place] in "[({":
            place = _end_of_brackets(text, place)
    return place


def _end_of_brackets(text: str, start: int) -> int:
    """Return where all brackets are closed, or the end of the text if they are not."""
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
    """Return the mask with the quotes or brackets of the value, so that masking it again changes nothing."""
    if value[:1] and value[0] in "[({":
        return f"{value[0]}{MASK}{value[-1] if value[-1] in '])}' and len(value) > 1 else ''}"
    quote = _OPENING_QUOTE.match(value)
    return f"{quote.group()}{MASK}" if quote else MASK if value else ""


#: ``://``, which may be ``:\\/\\/`` in JSON.
_SLASHES = r":(?:\\{0,7}/){2}"
#: An address, with anything that touches it. A comma ends it if another address follows.
_ADDRESS = re.compile(r"""(?:[^\s"'<>,;]++|[,;](?![a-z][a-z\d+.-]{0,20}""" + _SLASHES + "))++", re.IGNORECASE)
#: ``http://localhost:8000/@scope`` has a port and no password, as browsers read it.
_WEB_PORT = rf"(?:(?<=http)|(?<=https)|(?<=ws)|(?<=wss)){_SLASHES}[^/@:?#]*+:\d{{1,5}}\\{{0,7}}[/?#]"
_TO_PASSWORD = re.compile(rf"(?!{_WEB_PORT}){_SLASHES}(?!\[)[^/@:?#]*+:", re.IGNORECASE)
#: The user in an HTTP address without a password is usually a token.
_TOKEN_AS_USER = re.compile(
    rf"""(?P<begin>https?{_SLASHES})[^\s/@:?#"'<>,;\\]{{1,512}}+(?=:?(?:x-oauth-basic)?@)""", re.IGNORECASE
)
_PORT = re.compile(r"\d{1,5}(?:\\{0,7}[/?#].*|\W*)", re.DOTALL)
#: A password with quotes in it, which no ``_ADDRESS`` has.
_QUOTED_PASSWORD = re.compile(rf"""({_SLASHES}[^\s/@:?#]{{0,256}}+:)(?!\d{{1,5}}["'])[^\s/@]{{1,512}}+(?=@)""")


def _may_have_url(text: str) -> bool:
    return "://" in text or ":\\" in text


def _without_url_secrets(text: str) -> str:
    """Return the text with masked passwords in its URLs, and masked users in HTTP URLs without a password."""
    if not _may_have_url(text):
        return text
    text = _TOKEN_AS_USER.sub(rf"\g<begin>{MASK}", text)
    return _QUOTED_PASSWORD.sub(rf"\1{MASK}", _ADDRESS.sub(_without_password, text))


def _without_password(address: re.Match[str]) -> str:
    text = address.group()
    at = text.rfind("@")  # the last one, as the password may contain others
    if at > 0 and (found := _TO_PASSWORD.search(text, 0, at)):
        return f"{text[: found.end()]}{MASK}{text[at:]}"
    is_at_end = address.end() == len(address.string)  # the rest of the address may have been cut off
    if is_at_end and (found := _TO_PASSWORD.search(text, at + 1)) and not _PORT.fullmatch(text, found.end()):
        return f"{text[: found.end()]}{MASK}"
    return text
