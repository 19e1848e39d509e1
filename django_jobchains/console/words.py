"""Numbers, times and values as people read them."""

import json
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import ProgrammingError
from django.utils import timezone

from django_jobchains import times
from django_jobchains.redaction import redacted, redacted_text

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """How long something took: ``850 ms``, ``4.2 s``, ``3 min 5 s``, ``2 d 4 h``."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (size, unit), (smaller, smaller_unit) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def age(seconds: float) -> str:
    """About how long ago: ``5 s``, ``3 min``, ``90 min``, ``2 h``, ``4 d``."""
    for least, size, unit in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (60, 60, "min")):
        if seconds >= least:
            return f"{int(seconds // size):,} {unit}"
    return f"{int(max(0.0, seconds))} s"


def number(count: int, *, is_more: bool = False) -> str:
    return f"{count:,}{'+' if is_more else ''}"


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(value: Any, most: int = 100) -> str:
    """A JSON value on a line, redacted."""
    text = json.dumps(redacted(value), ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[: most - 1]}… ({len(text):,} characters)"


def first_line(text: str | None) -> str:
    """Of an error, redacted."""
    lines = redacted_text(text or "").strip().splitlines()
    return lines[0] if lines else ""


def said_by_database(error: DatabaseError) -> str:
    """An error of the database on a line, with what to do where that is known."""
    text = first_line(str(error)).rstrip(".")
    is_unmigrated = isinstance(error, ProgrammingError) or "no such table" in text
    return f"The database says: {text}.{' Has manage.py migrate been run?' if is_unmigrated else ''}"


def as_json(value: Any) -> Any:
    """What JSON has no form for: times, in UTC, and ids."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID | date | time):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON.")


class Times(times.Times):
    """As people are told them."""

    def iso(self, moment: datetime | None) -> str | None:
        return None if moment is None else str(as_json(self.aware(moment)))

    def shown(self, moment: datetime) -> str:
        """In the current time zone."""
        return self.aware(moment).astimezone(timezone.get_current_timezone()).strftime("%Y-%m-%d %H:%M:%S")

    def ago(self, moment: datetime | None) -> str:
        if moment is None:
            return ""
        seconds = self.seconds_since(moment)
        return f"in {age(-seconds)}" if seconds < -1 else f"{age(seconds)} ago"
