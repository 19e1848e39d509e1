"""Writes events to the logger ``django_jobchains``."""

from dataclasses import fields, replace
from functools import cache
from logging import DEBUG, ERROR, INFO, WARNING, getLogger
from typing import Any, TypeVar

from django_jobchains.telemetry.events import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptStuck,
    BlockedJobFailed,
    BlockedJobsSwept,
    ChildCrashed,
    ChildKilled,
    Event,
    IsolationFailed,
    IsolationWeakened,
    JobReaped,
    OutcomeDelayed,
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    RecordAbandoned,
    RecordEnded,
    RecordReset,
    RecordStuck,
    SupervisorGaveUp,
    ThreadFailed,
)
from django_jobchains.text.errors import add_traceback, printable
from django_jobchains.text.redaction import redacted_text

EventType = TypeVar("EventType", bound=Event)

logger = getLogger("django_jobchains")

#: How many characters of each value are in the message of a log record.
_MAX_VALUE_LENGTH = 500
#: The levels of attempts by their ending. Other endings are warnings.
_LEVELS = {
    "completed": DEBUG,
    "rescheduled": DEBUG,
    "requeued": DEBUG,
    "abandoned": DEBUG,  # An AttemptAbandoned was logged.
    "cancelled": INFO,
    "canceled": INFO,
    "handed_back": INFO,
    "failed": ERROR,
}
_WARNINGS = (
    AttemptAbandoned,
    RecordAbandoned,
    OutcomeDelayed,
    ChildCrashed,
    ChildKilled,
    IsolationWeakened,
    IsolationFailed,
)
_ERRORS = (
    BlockedJobFailed,
    ThreadFailed,
    AttemptStuck,
    RecordStuck,
    ProcessNotReplaced,
    ProcessNotStarted,
    SupervisorGaveUp,
)


def log(event: Event) -> None:
    """Log an event with a constant message template, and with its fields as ``record.jobchains``."""
    level = _level(event)
    if not logger.isEnabledFor(level):
        return
    facts = _facts(redact_event(event))
    shown = {name: _one_line(value) for name, value in facts.items() if value not in ("", None)}
    template = _template(type(event).__name__, tuple(shown))
    extra = {"event": type(event).__name__, "jobchains": facts}
    path, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(logger.name, level, path, line, template, (shown,), None, function, extra=extra)
    if isinstance(event, AttemptEnded | RecordEnded) and event.exception is not None:
        add_traceback(record, event.exception)
    logger.handle(record)


def _level(event: Event) -> int:
    if isinstance(event, AttemptEnded | RecordEnded):
        return _LEVELS.get(event.ending, WARNING)
    if isinstance(event, JobReaped):
        return ERROR if event.status == "failed" else WARNING
    if isinstance(event, RecordReset):
        return ERROR if event.state == "failed" else WARNING
    if isinstance(event, BlockedJobsSwept):
        return ERROR if event.found else DEBUG
    if isinstance(event, _ERRORS):
        return ERROR
    if isinstance(event, ProcessEnded):
        return WARNING if event.code else INFO
    return WARNING if isinstance(event, _WARNINGS) else INFO


def redact_event(event: EventType) -> EventType:
    """Return the event with redacted texts, because errors and stacks may quote inputs."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return replace(event, **{name: redacted_text(value) for name, value in values.items() if isinstance(value, str)})


def _facts(event: Event) -> dict[str, Any]:
    return {field.name: getattr(event, field.name) for field in fields(event) if field.name != "exception"}


@cache
def _template(event_name: str, names: tuple[str, ...]) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in event_name)
    return f"{words.strip()}: " + ", ".join(f"{name}=%({name})s" for name in names)


def _one_line(value: object) -> str:
    """Replace control characters: type names and errors must not forge log lines."""
    return printable(str(value)[:_MAX_VALUE_LENGTH])
