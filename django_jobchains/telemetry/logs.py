"""Events as records of the logger ``django_jobchains``."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from logging import DEBUG, ERROR, INFO, WARNING, getLogger
from typing import Any, TypeVar

from django_jobchains.redaction import redacted_text
from django_jobchains.telemetry.events import (
    AttemptEnded,
    AttemptStuck,
    BlockedJobsSwept,
    Event,
    JobReaped,
    LeaseLost,
    OutcomeDelayed,
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    SupervisorGaveUp,
    ThreadFailed,
)
from django_jobchains.texts import printable

EventType = TypeVar("EventType", bound=Event)

logger = getLogger("django_jobchains")

#: The beginning of each value, which follows its name in the message of a record.
_MAX_VALUE_LENGTH = 500
#: Of attempts, by their endings; the others are warnings.
_LEVELS = {"completed": DEBUG, "cancelled": INFO, "handed_back": INFO, "failed": ERROR}


def log(event: Event) -> None:
    level = _level(event)
    if logger.isEnabledFor(level):
        facts = asdict(without_secrets(event))
        logger.log(level, _text(event, facts), extra={"event": type(event).__name__, "jobchains": facts})


def _level(event: Event) -> int:
    if isinstance(event, AttemptEnded):
        return _LEVELS.get(event.ending, WARNING)
    if isinstance(event, BlockedJobsSwept):
        return ERROR if event.found else DEBUG
    if isinstance(event, ThreadFailed | AttemptStuck | ProcessNotReplaced | ProcessNotStarted | SupervisorGaveUp):
        return ERROR
    if isinstance(event, ProcessEnded):
        return WARNING if event.code else INFO
    return WARNING if isinstance(event, JobReaped | LeaseLost | OutcomeDelayed) else INFO


def without_secrets(event: EventType) -> EventType:
    """The event with its texts redacted, because errors and stacks quote what jobs were given."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return replace(event, **{name: redacted_text(value) for name, value in values.items() if isinstance(value, str)})


def _text(event: Event, facts: Mapping[str, Any]) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)
    said = {name: value for name, value in facts.items() if value not in ("", None)}
    return f"{words.strip()}: " + ", ".join(f"{name}={_one_line(value)}" for name, value in said.items())


def _one_line(value: object) -> str:
    """Control characters in type names or errors must not forge log lines."""
    return printable(str(value)[:_MAX_VALUE_LENGTH])
