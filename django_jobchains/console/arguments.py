"""What may be written on the command line, and what is said about anything else."""

import json
import math
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from django_jobchains.job_types import checked_queue
from django_jobchains.pruning import MOST_IN_A_BATCH
from django_jobchains.statuses import FINAL, Status

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)")


def id_of(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no id: give the UUID of a chain or job, whole, as 'list' shows it"
        ) from None


def id_or_dash(text: str) -> UUID | str:
    return text if text == "-" else id_of(text)


def all_ids(given: Sequence[UUID | str]) -> list[UUID]:
    """The ids in their order, each once; ``-`` stands for those on the standard input."""
    ids: dict[UUID, None] = {}
    for part in given:
        ids.update(dict.fromkeys(_ids_on_input() if isinstance(part, str) else [part]))
    if not ids:
        raise CommandError("No ids on the standard input: nothing to do.")
    return list(ids)


def _ids_on_input() -> list[UUID]:
    try:
        return [id_of(word) for word in sys.stdin.read().split()]
    except ArgumentTypeError as error:
        raise CommandError(f"On the standard input: {error}.", returncode=2) from error


def duration(text: str) -> timedelta:
    """``30d``, ``12h``, ``1h30m``; a number needs its unit."""
    if not text.strip() or _PART.sub("", text).strip():
        raise ArgumentTypeError(f"{text!r} is no duration: write 90s, 5m, 12h, 30d or 2w")
    try:
        return timedelta(seconds=sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(text)))
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is too long") from None


def seconds(text: str) -> float:
    """A number of seconds, or a duration."""
    try:
        value = float(text)
    except ValueError:
        return duration(text).total_seconds()
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text!r} must be seconds, 0 or more, or a duration as 5m")
    return value


def status(text: str) -> str:
    if text not in Status.values:
        raise ArgumentTypeError(f"{text!r} is no status: {', '.join(Status.values)}")
    return text


def final_status(text: str) -> str:
    if text not in FINAL:
        raise ArgumentTypeError(f"{text!r} cannot be pruned: completed, failed or cancelled")
    return text


def queue(text: str) -> str:
    try:
        return checked_queue(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def slots(text: str) -> int | None:
    return None if text == "none" else positive(text)


def positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)


def batch(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_IN_A_BATCH:
        raise ArgumentTypeError(f"{text!r} must be a whole number from 1 to {MOST_IN_A_BATCH:,}")
    return int(text)


def whole(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise ArgumentTypeError(f"{text!r} must be a whole number from 0")
    return int(text)


def json_text(text: str) -> str:
    """JSON as it stands, checked; ``-`` is read later."""
    if text == "-":
        return text
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            f"{text[:50]!r} is no JSON ({error}): write null, 5, '\"text\"' or '{{\"key\": 1}}'"
        ) from None
    return text


def json_on_input() -> str:
    try:
        return json_text(sys.stdin.read())
    except ArgumentTypeError as error:
        raise CommandError(f"On the standard input: {error}.", returncode=2) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
