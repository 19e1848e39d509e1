"""Writes events to the logger ``django_jobchains``."""

from dataclasses import fields, replace
from functools import cache
from logging import getLogger
from typing import TypeVar

from django_jobchains.telemetry.events import AttemptEnded, Event
from django_jobchains.text.errors import add_traceback, printable
from django_jobchains.text.redaction import redacted_text

EventType = TypeVar("EventType", bound=Event)

logger = getLogger("django_jobchains")

#: How many characters of each value are in the message of a log record.
_MAX_VALUE_LENGTH = 500


def log(event: Event) -> None:
    """Log an event with a constant message template, and with its fields as ``record.jobchains``."""
    level = event.level
    if not logger.isEnabledFor(level):
        return
    event = redact_event(event)
    facts = {field.name: getattr(event, field.name) for field in fields(event) if field.name != "exception"}
    # Control characters are replaced: type names and errors must not forge log lines.
    shown = {
        name: printable(str(value)[:_MAX_VALUE_LENGTH]) for name, value in facts.items() if value not in ("", None)
    }
    if shown.get("kind") == "job":  # Only records are named as such: most events are about jobs.
        del shown["kind"]
    template = _template(type(event).__name__, tuple(shown))
    extra = {"event": type(event).__name__, "jobchains": facts}
    path, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(logger.name, level, path, line, template, (shown,), None, function, extra=extra)
    if isinstance(event, AttemptEnded) and event.exception is not None:
        add_traceback(record, event.exception)
    logger.handle(record)


def redact_event(event: EventType) -> EventType:
    """Return the event with redacted texts, because errors and stacks may quote inputs."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return replace(event, **{name: redacted_text(value) for name, value in values.items() if isinstance(value, str)})


@cache
def _template(event_name: str, names: tuple[str, ...]) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in event_name)
    return f"{words.strip()}: " + ", ".join(f"{name}=%({name})s" for name in names)
