"""What arguments and settings may be: durations, counts, numbers, names and choices.

Each kind has one check and one error message: ``Count().check("slots", 0)`` raises a ``ValueError`` with the text
"slots=0 is not a whole number from 1." Callers that know more than the argument, such as the job type or the setting,
translate the exception.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

#: A thousand years: databases and calendars have no dates beyond it.
MAX_SECONDS = 1000 * 365 * 86400.0

#: A hundred years. Longer timeouts are treated as no limit.
MAX_WAIT_SECONDS = MAX_SECONDS / 10

#: A duration as arguments take it: seconds, a timedelta, or a text with units, such as "5m" or "1h30m".
DurationLike = timedelta | float | str

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)")
_TEXT = re.compile(rf"\s*(?:{_PART.pattern}\s*)+", re.ASCII)

#: Our names for arguments of other job systems.
_NAMES_ELSEWHERE = {
    "countdown": "delay",
    "eta": "run_at",
    **dict.fromkeys(("max_retries", "retries"), "max_attempts"),
    **dict.fromkeys(("default_retry_delay", "retry_backoff"), "backoff"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), "timeout"),
    "autoretry_for": "retry_if",
    "rate_limit": "rate",
}

ValueT = TypeVar("ValueT")
OtherT = TypeVar("OtherT")


class Value(ABC, Generic[ValueT]):
    """A kind of value, and how it is checked."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """Completes the message "… is not …": the kind of value, and what to pass instead."""

    @abstractmethod
    def check(self, argument: str, given: Any) -> ValueT:
        """Return the value as the package uses it. Raise ``TypeError`` or ``ValueError``, which names the argument."""

    def check_or(self, argument: str, given: Any, default: OtherT) -> ValueT | OtherT:
        """Return the checked value, or the default for None."""
        return default if given is None else self.check(argument, given)

    def refused(self, argument: str, given: object, error: type[Exception] = ValueError) -> Exception:
        """Return the error for a value that is not of this kind."""
        return error(f"{argument}={given!r:.100} is not {self.expected}.")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name that is most similar to an unknown one, or ""."""
    nearest = get_close_matches(given, list(known), n=1, cutoff=0.7)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def check_options(function: str, options: Mapping[str, object], kind: type, *others: str) -> None:
    """Raise ``TypeError`` for keyword arguments that are not among the options of this TypedDict.

    ``others``: the arguments of the function that are not options.
    """
    known = [*kind.__annotations__, *others]
    if unknown := sorted(options.keys() - known):
        noun = "arguments" if len(unknown) > 1 else "argument"
        nearest = did_you_mean(_NAMES_ELSEWHERE.get(unknown[0], unknown[0]), known)
        raise TypeError(
            f"{function}() does not take the {noun} {', '.join(unknown)}.{nearest} It takes {', '.join(known)}."
        )


def check_fields(instance: Any, label: str = "{}") -> None:
    """Check the fields of a frozen dataclass that are annotated with kinds, as in ``Annotated[int, Count()]``.

    Values that are converted are replaced, such as a timedelta by its seconds, but an int is not replaced by an equal
    float. ``label``: how error messages name a field.
    """
    for field in fields(instance):
        for kind in getattr(field.type, "__metadata__", ()):
            given = getattr(instance, field.name)
            value = kind.check(label.format(field.name), given)
            if value != given or not isinstance(given, int):
                object.__setattr__(instance, field.name, value)


@dataclass(frozen=True)
class Or(Value[ValueT | OtherT]):
    """A kind of value, or one other value: None, or ``math.inf`` for no limit."""

    kind: Value[ValueT]
    other: OtherT

    @property
    def expected(self) -> str:
        return f"{self.kind.expected}, or {'math.inf for no limit' if self.other == math.inf else self.other}"

    def check(self, argument: str, given: Any) -> ValueT | OtherT:
        if type(given) is type(self.other) and given == self.other:
            return self.other
        try:
            return self.kind.check(argument, given)
        except (TypeError, ValueError) as error:
            raise self.refused(argument, given, type(error)) from None


@dataclass(frozen=True)
class Duration(Value[float]):
    """A ``DurationLike``, returned as seconds: more than 0, or at least ``least``, and at most ``most``."""

    least: float | None = None
    most: float = MAX_SECONDS

    @property
    def expected(self) -> str:
        bound = "more than 0 " if self.least is None else "" if self.least < 0 else f"{self.least:g} or more "
        return f"a duration: pass {bound}seconds, a timedelta, or a text such as '5m'"

    def check(self, argument: str, given: Any) -> float:
        seconds = _seconds_of(given)
        if seconds is None:
            raise self.refused(argument, given, TypeError)
        if not (seconds > 0 if self.least is None else seconds >= self.least):
            raise self.refused(argument, given)
        if seconds > self.most:
            limit = "a thousand years" if self.most == MAX_SECONDS else "a timedelta can be"
            raise ValueError(f"{argument}={given!r:.100} is longer than {limit}.")
        return seconds


#: For retention, which may be longer than a thousand years.
LONG_DURATION = Duration(most=timedelta.max.total_seconds())
#: For waits: a negative duration is already over, and a duration of any length is accepted.
ANY_DURATION = Duration(least=-math.inf, most=math.inf)


def timeout_seconds(given: DurationLike | None) -> float | None:
    """Return the seconds of a ``timeout``, or None for no limit. Threads cannot wait for more than 292 years."""
    seconds = ANY_DURATION.check_or("timeout", given, math.inf)
    return None if seconds > MAX_WAIT_SECONDS else seconds


def seconds_text(seconds: float) -> str:
    """Return a duration for an error message, rounded: "0.25 seconds", "1 second", "12,000 seconds"."""
    text = f"{seconds:,.0f}" if abs(seconds) >= 99.5 else f"{seconds:.3g}"
    return f"{text} second" if text == "1" else f"{text} seconds"


def parse_duration(text: str) -> float | None:
    """Return the seconds of a text such as "30d", "12h" or "1h30m", or None. A number needs a unit."""
    if not _TEXT.fullmatch(text):
        return None
    return sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text))


def _seconds_of(given: Any) -> float | None:
    """Return the seconds of a ``DurationLike``, or None for anything else."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, str):
        return parse_duration(given)
    if isinstance(given, bytes | bool):  # float() accepts these too.
        return None
    if isinstance(given, float):
        return given
    try:
        return float(given)
    except OverflowError:  # An integer or a fraction with more than 308 digits.
        return math.inf if given > 0 else -math.inf
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Count(Value[int]):
    """A whole number."""

    least: int = 1
    most: float = math.inf

    @property
    def expected(self) -> str:
        return f"a whole number from {self.least}" + ("" if self.most == math.inf else f" to {self.most}")

    def check(self, argument: str, given: Any) -> int:
        if isinstance(given, int) and not isinstance(given, bool) and self.least <= given <= self.most:
            return given
        raise self.refused(argument, given)


@dataclass(frozen=True)
class Number(Value[float]):
    """A number."""

    least: float
    most: float = math.inf

    @property
    def expected(self) -> str:
        return f"a number from {self.least:g}" + ("" if self.most == math.inf else f" to {self.most:g}")

    def check(self, argument: str, given: Any) -> float:
        if isinstance(given, int | float) and not isinstance(given, bool) and self.least <= given <= self.most:
            return given
        raise self.refused(argument, given)


@dataclass(frozen=True)
class Name(Value[str]):
    """A text of one line that is not empty."""

    length: int

    @property
    def expected(self) -> str:
        return f"a name: pass 1 to {self.length} printable characters"

    def check(self, argument: str, given: Any) -> str:
        if isinstance(given, str) and 0 < len(given) <= self.length and given.isprintable():
            return given
        raise self.refused(argument, given)


class Choice(Value[ValueT]):
    """One of a few values. 1 is not ``True``."""

    def __init__(self, *choices: ValueT) -> None:
        self.choices = choices

    @property
    def expected(self) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def check(self, argument: str, given: Any) -> ValueT:
        for choice in self.choices:
            if given is choice or (isinstance(given, str) and given == choice):
                return choice
        raise self.refused(argument, given)


FLAG = Choice(True, False)
QUEUE = Name(100)
TYPE_NAME = Name(200)
SCHEDULE_NAME = Name(100)
#: Jobs with a higher priority run first.
PRIORITY = Count(-32_768, 32_767)
#: The largest value of the database column, which stands for ``math.inf`` there: no job has more attempts.
ATTEMPTS_LIMIT = 2**31 - 1
#: How often a job or a record may fail, and how long an attempt may take.
MAX_ATTEMPTS = Or(Count(1, ATTEMPTS_LIMIT), math.inf)
TIMEOUT = Or(Duration(), math.inf)
