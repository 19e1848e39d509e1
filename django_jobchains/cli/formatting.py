"""Values as the command line shows them. Times and numbers come from ``text.humanize``."""

import json
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import ProgrammingError
from django.utils import timezone

from django_jobchains.db.times import Times
from django_jobchains.payload_codecs import Unreadable
from django_jobchains.text import errors
from django_jobchains.text.humanize import ago, number
from django_jobchains.text.redaction import redacted, redacted_text


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 job``, ``2,000 jobs``, ``2 crashes``."""
    plural = "es" if noun.endswith("sh") else "s"
    return f"{number(count)} {noun}{'' if count == 1 else plural}"


def shortened(value: Any, limit: int = 100) -> str:
    """Return a JSON value on one line, redacted, and cut to ``limit`` characters."""
    text = json.dumps(redacted(value), ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}… ({number(len(text))} characters)"


def first_line(text: str | None) -> str:
    """Return the first line of an error, redacted."""
    return errors.first_line(redacted_text(text or ""))


def database_message(error: DatabaseError) -> str:
    """Return a database error on one line, with a remedy if one is known."""
    text = first_line(str(error)).rstrip(".")
    is_unmigrated = isinstance(error, ProgrammingError) or "no such table" in text
    return f"Database error: {text}.{' Has manage.py migrate been run?' if is_unmigrated else ''}"


def as_json(value: Any) -> Any:
    """Return the JSON form of a time, in UTC, of an id, or of a value that cannot be read."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID | date | time | Unreadable):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON.")


class ElapsedTimes(Times):
    """Times as the command line shows them."""

    def iso(self, moment: datetime | None) -> str | None:
        return None if moment is None else str(as_json(self.aware(moment)))

    def shown(self, moment: datetime) -> str:
        """Return the time in the current time zone."""
        return self.aware(moment).astimezone(timezone.get_current_timezone()).strftime("%Y-%m-%d %H:%M:%S")

    def ago(self, moment: datetime | None) -> str:
        return "" if moment is None else ago(self.seconds_since(moment))
