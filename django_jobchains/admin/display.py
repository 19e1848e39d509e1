"""How all pages of the admin show payloads and times.

Payloads are inputs, outputs, context, errors, log lines and progress texts. All of them are redacted, and hidden from
users without the permission ``view_payload``. The results are plain text, which templates escape.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from django_jobchains.db.times import Times
from django_jobchains.declare.labels import label_of
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidPayload
from django_jobchains.models import Chain
from django_jobchains.models.jobs import ShownStatus, shown_status
from django_jobchains.payloads.codecs import Unreadable, decode_json
from django_jobchains.payloads.strict_json import decode
from django_jobchains.text.humanize import ago, exact_time, number, span
from django_jobchains.text.redaction import redacted, redacted_text

PERMISSION = "view_payload"
#: The number of characters that are shown of a value or a text.
MAX_TEXT_LENGTH = 100_000
#: The number of characters that are shown of a line in a list.
MAX_LINE_LENGTH = 300
#: The number of characters, and of lines, of a value that is shown unfolded.
MAX_UNFOLDED = 500
MAX_UNFOLDED_LINES = 8
#: The depth up to which nested values are indented, because deep ones would be mostly spaces.
MAX_INDENT = 30
#: Control characters, characters that change the direction of text, and surrogates, which are replaced.
_UNSHOWABLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_EXCEPTION_TYPE = re.compile(r"[A-Za-z_]\w{0,99}(?:\.(?:[A-Za-z_]\w{0,99}|<locals>)){0,20}")
_MODULE_AND_CLASS = re.compile(r"(?:[a-z_][a-z0-9_]*\.)+[A-Z]\w*")

_write_scalar = json.JSONEncoder(ensure_ascii=False, default=str).encode


class Timestamps(Times):
    """Formats times as HTML, relative to the time when it was created, also for use in translated sentences."""

    def timestamp(self, time: datetime | None, describe: Callable[[float], str] = ago) -> SafeString | str:
        """Return a ``time`` element with the exact time as its tooltip, or an empty string without a time.

        The relative time is described by a function of the seconds since then.
        """
        if time is None:
            return ""
        aware = self.aware(time)
        exact = exact_time(timezone.localtime(aware))
        iso, relative = aware.astimezone(UTC).isoformat(), describe(self.seconds_since(aware))
        return format_html('<time datetime="{}" title="{}">{}</time>', iso, exact, relative)

    def exact(self, time: datetime | None) -> SafeString | str:
        """Return a ``time`` element that shows the exact time, or an empty string without a time."""
        if time is None:
            return ""
        aware = self.aware(time)
        text = exact_time(timezone.localtime(aware))
        return format_html('<time datetime="{}">{}</time>', aware.astimezone(UTC).isoformat(), text)

    def duration(self, chain: Chain) -> str:
        """Return how long a chain took, or has taken so far. It is empty while the chain only waits for its time."""
        if shown_status(chain.current_job, self) == ShownStatus.SCHEDULED:
            return ""
        text = span(self.between(chain.created_at, chain.finished_at) or 0.0)
        return text if chain.finished_at else gettext("%(time)s so far") % {"time": text}


@dataclass(frozen=True)
class PayloadView:
    """A value or text as a page shows it. ``note`` is the reason why it is hidden or incomplete."""

    text: str = ""
    note: str = ""
    is_hidden: bool = False

    def __bool__(self) -> bool:
        return bool(self.text or self.note)

    @property
    def is_small(self) -> bool:
        """Return whether it is shown unfolded."""
        return len(self.text) <= MAX_UNFOLDED and self.text.count("\n") <= MAX_UNFOLDED_LINES


def badge(style: str, label: Any) -> SafeString:
    """Return a status of a list as HTML."""
    return format_html('<span class="jobchains-status jobchains-status-{}">{}</span>', style, label)


class Payloads:
    """Formats payloads for users who may see them, and hides them from others. See ``Visibility.payloads``."""

    def __init__(self, *, is_allowed: bool) -> None:
        self.is_allowed = is_allowed

    def json(self, value: Any, limit: int = MAX_TEXT_LENGTH) -> PayloadView:
        """Format a JSON value, with one member on each line."""
        if not self.is_allowed:
            return _hidden()
        if isinstance(value, Unreadable):
            return _unreadable(value.reason)
        return _truncated(_json_parts(redacted(value)), limit)

    def stored(self, text: str | None, size: int | None) -> PayloadView:
        """Format a JSON value that was read as text: None if it was too long. Without a value, ``size`` is None too.

        Nothing is shown of null, which is the input of a type without one.
        """
        if size is None:
            return PayloadView()
        if not self.is_allowed:
            return _hidden()
        if text is None:
            return PayloadView(note=gettext("%(count)s characters, too long to display.") % {"count": number(size)})
        try:
            value = decode(decode_json(text, InvalidPayload))
            return PayloadView() if value is None else self.json(value)
        except (InvalidPayload, ImproperlyConfigured, OSError) as error:
            return _unreadable(error)

    def label(self, type_name: str, stored: str | None) -> str:
        """Return the label of a job with this stored input, or an empty string without the permission."""
        return label_of(get_registry().find(type_name), stored) if self.is_allowed else ""

    def text(self, text: str | None, limit: int = MAX_TEXT_LENGTH) -> PayloadView:
        """Format text of several lines, such as a traceback or a log text."""
        if not text:
            return PayloadView()
        if not self.is_allowed:
            return _hidden()
        text = redacted_text(text)
        return PayloadView(_showable(text[:limit]), _omitted(len(text) - limit))

    def line(self, text: str | None) -> str:
        """Return the first line, or an empty string without the permission."""
        return self._first_line(text) if self.is_allowed else ""

    def error_line(self, text: str | None) -> str:
        """Return the first line of an error, or only the exception's type without the permission."""
        if self.is_allowed:
            return self._first_line(text)
        return error_type(text)

    def status_html(self, style: str, label: Any, error: str | None) -> SafeString:
        """Return a status for a column of a list, with the line of the error below it."""
        line, status = self.error_line(error), badge(style, label)
        return format_html('{} <span class="jobchains-error-line">{}</span>', status, line) if line else status

    def _first_line(self, text: str | None) -> str:
        # Redact the whole text first: the name of a secret may be on the line before its value.
        lines = redacted_text(text or "").strip().splitlines()
        line = _showable(lines[0]) if lines else ""
        return line if len(line) <= MAX_LINE_LENGTH else f"{line[: MAX_LINE_LENGTH - 1]}…"


def error_type(text: str | None) -> str:
    """Return the exception type at the beginning of a stored error, or an empty string if there is none.

    The text may be a project's own, such as the reason of a ``RescheduleJob``. Its first word might be a secret.
    """
    lines = str.__str__(text or "").strip().splitlines()
    kind, _, _ = lines[0].partition(": ") if lines else ("", "", "")
    kind = kind.removesuffix(":")
    if not _EXCEPTION_TYPE.fullmatch(kind):
        return ""
    is_known = kind.endswith(("Error", "Exception")) or _MODULE_AND_CLASS.fullmatch(kind) or kind in _loaded_types()
    return kind if is_known else ""


def _loaded_types() -> set[str]:
    """Return the names of all exception classes of this process."""
    names, open_types = set(), [BaseException]
    while open_types:
        kind = open_types.pop()
        names.add(kind.__qualname__)
        open_types += type.__subclasses__(kind)
    return names


def _hidden() -> PayloadView:
    return PayloadView(note=gettext("Hidden: you do not have permission to view payloads."), is_hidden=True)


def _unreadable(problem: object) -> PayloadView:
    text = _showable(redacted_text(str(problem)))
    return PayloadView(note=gettext("Cannot be displayed: %(problem)s") % {"problem": text})


def _showable(text: str) -> str:
    return _UNSHOWABLE.sub("\ufffd", text)


def _truncated(parts: Iterable[str], limit: int) -> PayloadView:
    """Join the parts up to a limit. Parts after the limit are not even generated."""
    shown: list[str] = []
    room = limit
    for part in parts:
        if room <= 0:
            return PayloadView(_showable("".join(shown)), gettext("The rest is too long to display."))
        shown.append(part[:room])
        room -= len(part)
    return PayloadView(_showable("".join(shown)), _omitted(-room))


def _omitted(count: int) -> str:
    text = ngettext("%(count)s character not shown.", "%(count)s characters not shown.", count)
    return text % {"count": number(count)} if count > 0 else ""


def _json_parts(value: Any) -> Iterator[str]:
    """Generate indented JSON without recursion. Each open container is an iterator over its remaining members."""
    open_containers: list[tuple[Iterator[tuple[str, Any]], str]] = []
    part: Any = value
    while True:
        if isinstance(part, dict | list) and part:
            opening, closing = ("{", "}") if isinstance(part, dict) else ("[", "]")
            yield opening
            open_containers.append((_members(part), closing))
            beginning = _new_line(len(open_containers))
        else:
            yield _write_scalar(part)
            beginning = "," + _new_line(len(open_containers))
        while open_containers:
            members, closing = open_containers[-1]
            name, part = next(members, (None, None))
            if name is not None:
                yield beginning + name
                break
            open_containers.pop()
            yield _new_line(len(open_containers)) + closing
            beginning = "," + _new_line(len(open_containers))
        else:
            return


def _members(container: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        return ((f"{_write_scalar(str(key))}: ", member) for key, member in container.items())
    return (("", member) for member in container)


def _new_line(depth: int) -> str:
    return "\n" + "  " * min(depth, MAX_INDENT)
