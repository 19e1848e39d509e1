"""Converts command line arguments to values, or raises errors that explain what to write."""

import json
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.core.management.base import CommandError
from django.utils import timezone

from django_jobchains import values
from django_jobchains.db.ids import checked_id
from django_jobchains.db.times import checked_time
from django_jobchains.models.jobs import ShownStatus
from django_jobchains.statuses import FINAL
from django_jobchains.store.deduplication import Deduplicate

Value = TypeVar("Value")

_SECONDS = re.compile(r"\d{1,7}(\.\d+)?")


def id_of(text: str) -> UUID:
    try:
        return checked_id(text, "id")
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not an id: give the complete UUID of a chain or job, as 'list' shows it"
        ) from None


def id_or_dash(text: str) -> UUID | str:
    return text if text == "-" else id_of(text)


def all_ids(given: Sequence[UUID | str]) -> list[UUID]:
    """Return each id once, in order. ``-`` stands for the ids on standard input."""
    ids: dict[UUID, None] = {}
    for part in given:
        ids.update(dict.fromkeys(_on_input(_ids) if isinstance(part, str) else [part]))
    if not ids:
        raise CommandError("No ids on standard input.")
    return list(ids)


def _ids(text: str) -> list[UUID]:
    return [id_of(word) for word in text.split()]


def _on_input(convert: Callable[[str], Value]) -> Value:
    try:
        return convert(sys.stdin.read())
    except ArgumentTypeError as error:
        raise CommandError(f"On standard input: {error}.", returncode=2) from error


def duration(text: str) -> float:
    """Parse a number of seconds, or a duration such as ``30d``, ``12h`` or ``1h30m``."""
    try:
        seconds = float(text)
    except ValueError:
        return age(text).total_seconds()
    if not 0 <= seconds <= values.MAX_SECONDS:
        raise _no_duration(text)
    return seconds


def age(text: str) -> timedelta:
    """Parse a duration. A number without a unit is an error, because it could be seconds or days."""
    seconds = values.parse_duration(text)
    if seconds is None:
        raise _no_duration(text)
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is too long") from None


def _no_duration(text: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{text!r} is not a duration: write for example 90s, 5m, 12h, 30d or 2w")


def time(text: str) -> datetime:
    """Parse a date or a time in ISO 8601 format. Without an offset, it is in the project's time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time: write for example 2026-11-22, 2026-11-22T09:30 or 2026-11-22T09:30+01:00"
        ) from None
    try:
        return checked_time(timezone.make_aware(moment) if timezone.is_naive(moment) else moment, "time")
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is before the year 1 or after the year 9999 in UTC") from None


def expiry(text: str) -> timedelta | datetime:
    """Parse a duration, or a time as ``time`` does. Eight digits are a date, and fewer are a number of seconds."""
    is_duration = values.parse_duration(text) is not None or _SECONDS.fullmatch(text)
    return timedelta(seconds=duration(text)) if is_duration else time(text)


def status(text: str) -> str:
    if text not in ShownStatus.values:
        nearest = values.did_you_mean(text, ShownStatus.values)
        raise ArgumentTypeError(f"{text!r} is not a status.{nearest} Choose from {', '.join(ShownStatus.values)}")
    return text


def final_status(text: str) -> str:
    if text not in FINAL:
        raise ArgumentTypeError(f"{text!r} is not a final status: choose from completed, failed and cancelled")
    return text


def _of_kind(kind: values.Value[Value]) -> Callable[[str], Value]:
    """Return a converter to a kind of value."""

    def convert(text: str) -> Value:
        try:
            return kind.check("", text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r:.100} is not {kind.expected}") from None

    return convert


queue = _of_kind(values.QUEUE)
type_name = _of_kind(values.TYPE_NAME)


def deduplication_key(text: str) -> Deduplicate:
    try:
        return Deduplicate(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error).removesuffix(".")) from None


def priority(text: str) -> int:
    try:
        return values.PRIORITY.check("priority", int(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a priority: write an integer from -32768 to 32767") from None


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a converter of integers from ``least``, to ``most`` if it is given."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= (most or 2**31 - 1):
            limit = f" to {most:,}" if most else ""
            raise ArgumentTypeError(f"{text!r} must be an integer from {least}{limit}")
        return int(text)

    return convert


positive, non_negative = integer(1), integer(0)


def slots(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return positive(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}, or none for no limit") from None


def json_text(text: str) -> str:
    """Return valid JSON unchanged. ``-`` is read later, by ``json_or_input``."""
    if text == "-":
        return text
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            f"{text[:50]!r} is not JSON ({error}): write for example null, 5, '\"text\"' or '{{\"key\": 1}}'"
        ) from None
    return text


def json_or_input(text: str) -> str:
    """Return the JSON, or that on standard input if it is ``-``."""
    return _on_input(json_text) if text == "-" else text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
