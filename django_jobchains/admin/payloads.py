"""The one point through which the admin shows what jobs say: inputs, outputs, errors, logs, progress, context.

All of it is redacted, and none of it reaches a page without the permission ``view_payload``. What comes out is plain
text, never HTML: templates escape it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext, ngettext

from django_jobchains.admin.words import number
from django_jobchains.exceptions import InvalidPayload
from django_jobchains.payloads import decode
from django_jobchains.redaction import redacted, redacted_text

PERMISSION = "view_payload"
#: Characters that are shown of a value or a text,
MOST_SHOWN = 100_000
#: and of a line in a list.
MOST_OF_LINE = 300
#: From here on a nested value is not indented further, or deep ones would be mostly spaces.
DEEPEST_INDENT = 30
#: Control characters, those that turn the direction of text, and halves of surrogates: pages show a mark for them.
_UNSHOWABLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_EXCEPTION_TYPE = re.compile(r"[A-Za-z_]\w{0,99}(?:\.(?:[A-Za-z_]\w{0,99}|<locals>)){0,20}")

_write_scalar = json.JSONEncoder(ensure_ascii=False, default=str).encode


@dataclass(frozen=True)
class PayloadView:
    """What a page shows of a value or text. ``note``: why it is not shown, or not all of it."""

    text: str = ""
    note: str = ""
    is_hidden: bool = False

    def __bool__(self) -> bool:
        return bool(self.text or self.note)


class Payloads:
    """Shows payloads to a user who may see them, and hides them from others; ``Visibility.payloads`` makes it."""

    def __init__(self, *, is_allowed: bool) -> None:
        self.is_allowed = is_allowed

    def json(self, value: Any, most: int = MOST_SHOWN) -> PayloadView:
        """A JSON value, one member on a line."""
        if not self.is_allowed:
            return _hidden()
        return _cut(_written(redacted(value)), most)

    def stored(self, text: str | None, size: int | None, most: int = MOST_SHOWN) -> PayloadView:
        """A JSON value as its text; None with a size: too large to be read, both None: there is none."""
        if size is None:
            return PayloadView()
        if not self.is_allowed:
            return _hidden()
        if text is None:
            return PayloadView(note=gettext("%(count)s characters: too many to show here.") % {"count": number(size)})
        try:
            return self.json(decode(text), most)
        except InvalidPayload as error:
            problem = _showable(redacted_text(str(error)))
            return PayloadView(note=gettext("It cannot be shown: %(problem)s") % {"problem": problem})

    def text(self, text: str | None, most: int = MOST_SHOWN) -> PayloadView:
        """Lines: a traceback, or what a handler logged."""
        if not text:
            return PayloadView()
        if not self.is_allowed:
            return _hidden()
        text = redacted_text(text)
        return PayloadView(_showable(text[:most]), _left_out(len(text) - most))

    def line(self, text: str | None, most: int = MOST_OF_LINE) -> str:
        """The first line; empty without the permission."""
        return self._first_line(text, most) if self.is_allowed else ""

    def error_line(self, text: str | None, most: int = MOST_OF_LINE) -> str:
        """The first line of an error; without the permission the exception's type alone."""
        if self.is_allowed:
            return self._first_line(text, most)
        return error_type(text)

    def _first_line(self, text: str | None, most: int) -> str:
        # Redacted as a whole: a value may begin on one line and its name stand on the line before.
        lines = redacted_text(text or "").strip().splitlines()
        line = _showable(lines[0]) if lines else ""
        return line if len(line) <= most else f"{line[: most - 1]}…"


def error_type(text: str | None) -> str:
    """The type that every stored error begins with; empty when it is not the name of one."""
    lines = str.__str__(text or "").strip().splitlines()
    kind, _, _ = lines[0].partition(": ") if lines else ("", "", "")
    kind = kind.removesuffix(":")
    return kind if _EXCEPTION_TYPE.fullmatch(kind) else ""


def _hidden() -> PayloadView:
    return PayloadView(note=gettext("Hidden: it takes the permission to view payloads."), is_hidden=True)


def _showable(text: str) -> str:
    return _UNSHOWABLE.sub("\ufffd", text)


def _cut(parts: Iterable[str], most: int) -> PayloadView:
    """What comes after the last character that is shown is not even written."""
    shown: list[str] = []
    room = most
    for part in parts:
        if room <= 0:
            return PayloadView(_showable("".join(shown)), gettext("The rest is not shown: it is too long."))
        shown.append(part[:room])
        room -= len(part)
    return PayloadView(_showable("".join(shown)), _left_out(-room))


def _left_out(count: int) -> str:
    text = ngettext("%(count)s character left out.", "%(count)s characters left out.", count)
    return text % {"count": number(count)} if count > 0 else ""


def _written(value: Any) -> Iterator[str]:
    """JSON in pieces, without recursion: each open container is an iterator over what is still to be written."""
    open_containers: list[tuple[Iterator[tuple[str, Any]], str]] = []
    part: Any = value
    while True:
        if isinstance(part, dict | list) and part:
            opening, closing = ("{", "}") if isinstance(part, dict) else ("[", "]")
            yield opening
            open_containers.append((_members(part), closing))
            beginning = _line(len(open_containers))
        else:
            yield _write_scalar(part)
            beginning = "," + _line(len(open_containers))
        while open_containers:
            members, closing = open_containers[-1]
            name, part = next(members, (None, None))
            if name is not None:
                yield beginning + name
                break
            open_containers.pop()
            yield _line(len(open_containers)) + closing
            beginning = "," + _line(len(open_containers))
        else:
            return


def _members(container: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        return ((f"{_write_scalar(str(key))}: ", member) for key, member in container.items())
    return (("", member) for member in container)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, DEEPEST_INDENT)
