"""Events describe what happened, and sinks receive them. Events about writes are reported after the commit."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import cache
from logging import getLogger
from types import MappingProxyType, TracebackType

from django_jobchains.telemetry import events
from django_jobchains.telemetry.events import AttemptEnded, CodecFailed, DetailEvent, Event, OperationEnded
from django_jobchains.text.errors import add_traceback, log_error, printable, type_name
from django_jobchains.text.redaction import redacted_text

__all__ = ("DetailEvent", "Event", "add_sink", "observes", "remove_sink", "report")

logger = getLogger("django_jobchains")

#: How many characters of each value are in the message of a log record.
_MAX_VALUE_LENGTH = 500
_NOTHING: AbstractContextManager[None] = nullcontext()

Sink = Callable[[Event], None]


def log(event: Event) -> None:
    """Log an event with a constant message template, and with its fields as ``record.jobchains``.

    The record of an event about a job or record also has the fields of ``LogContext``.
    """
    level = event.level
    if not logger.isEnabledFor(level):
        return
    event = redact_event(event)
    facts = {field.name: getattr(event, field.name) for field in fields(event) if field.name != "exception"}
    # Control characters are replaced: type names and errors must not forge log lines.
    shown = {name: _shown(value) for name, value in facts.items() if value not in ("", None)}
    if shown.get("kind") == "job":  # Only records are named as such: most events are about jobs.
        del shown["kind"]
    template = _template(type(event).__name__, tuple(shown))
    extra = {"event": type(event).__name__, "jobchains": facts}
    path, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(logger.name, level, path, line, template, (shown,), None, function, extra=extra)
    if job_id := shown.get("job_id") or shown.get("record"):
        # Not as an ``extra``, which must not have a name that the project's factory of log records also sets.
        vars(record).update(
            job_id=job_id,
            chain_id=shown.get("chain_id", ""),
            job_type=shown.get("type_name", ""),
            attempt=facts.get("attempt", ""),
        )
    if isinstance(event, AttemptEnded) and event.exception is not None:
        add_traceback(record, event.exception)
    logger.handle(record)


def _shown(value: object) -> str:
    return printable((f"{value:.6g}" if isinstance(value, float) else str(value))[:_MAX_VALUE_LENGTH])


def redact_event(event: Event) -> Event:
    """Return the event with redacted texts, because errors and stacks may quote inputs."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return replace(event, **{name: redacted_text(value) for name, value in values.items() if isinstance(value, str)})


@cache
def _template(event_name: str, names: tuple[str, ...]) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in event_name)
    return f"{words.strip()}: " + ", ".join(f"{name}=%({name})s" for name in names)


#: The kinds of ``DetailEvent`` that each sink receives. The log receives none, and is always among the sinks.
_sinks: Mapping[Sink, frozenset[type[DetailEvent]]] = MappingProxyType({log: frozenset()})
#: The kinds that any sink receives.
_observed: frozenset[type[DetailEvent]] = frozenset()
#: The sinks of each kind of ``DetailEvent``. All sinks receive the other events.
_receivers: Mapping[type[Event], tuple[Sink, ...]] = MappingProxyType({})


def report(*events: Event) -> None:
    """Pass events of one kind to every sink. An error in a sink does not affect the outcome of a job.

    A sink with ``takes_many_events = True`` gets all events in one call.
    """
    for sink in _receivers.get(type(events[0]), _sinks) if events else ():
        takes_many = getattr(sink, "takes_many_events", False)
        for arguments in [events] if takes_many else [(event,) for event in events]:
            try:
                sink(*arguments)
            except Exception as error:
                log_error(logger, error, "A telemetry sink failed: %s")


def observes(*kinds: type[DetailEvent]) -> bool:
    """Return whether any sink receives one of these kinds of events. If not, callers need not create the event."""
    return not _observed.isdisjoint(kinds)


def add_sink(sink: Sink, *details: type[DetailEvent]) -> None:
    """Call a function with every event from now on, in the thread that reports it.

    ``details``: the kinds of ``DetailEvent`` that it also receives. Pass ``DetailEvent`` for all kinds.
    """
    for kind in details:
        given: object = kind
        if not (isinstance(given, type) and issubclass(given, DetailEvent)):
            raise TypeError(f"add_sink(…, {kind!r}): pass subclasses of DetailEvent, or DetailEvent for all of them.")
    wanted = frozenset(kind for kind in _details() if issubclass(kind, details)) if details else frozenset()
    _set_sinks({**_sinks, sink: wanted})


def remove_sink(sink: Sink) -> None:
    """Stop calling a sink. Removing a sink that was not added is not an error."""
    _set_sinks({kept: details for kept, details in _sinks.items() if kept != sink})


def observed_names() -> list[str]:
    """Return the names of the kinds for which ``observes`` returns True."""
    return [kind.__name__ for kind in _observed]


def forward_events(sink: Sink, names: Collection[str]) -> None:
    """Call only this function from now on, with the details that have these names, and with all other events."""
    _set_sinks({sink: frozenset(kind for kind in _details() if kind.__name__ in names)})


def _set_sinks(sinks: dict[Sink, frozenset[type[DetailEvent]]]) -> None:
    global _sinks, _observed, _receivers
    _receivers = {kind: tuple(sink for sink, details in sinks.items() if kind in details) for kind in _details()}
    _sinks, _observed = MappingProxyType(sinks), frozenset().union(*sinks.values())


def _details() -> list[type[DetailEvent]]:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, DetailEvent) and kind is not DetailEvent]


def measured(operation: str, worker: str, type_name: str = "") -> AbstractContextManager[object]:
    """Report an ``OperationEnded`` after the block, if any sink receives it. ``type_name``: of a record worker."""
    return _Measured(operation, worker, type_name) if observes(OperationEnded) else _NOTHING


def codec_failed(operation: str, error: Exception) -> None:
    """Report that the payload codec failed, if any sink receives it."""
    if observes(CodecFailed):
        report(CodecFailed("", operation, type_name(error)))


class _Measured:
    def __init__(self, operation: str, worker: str, type_name: str) -> None:
        self._operation = operation
        self._worker = worker
        self._type_name = type_name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        error_type = type_.__qualname__ if type_ else ""
        seconds = time.perf_counter() - self._started
        report(OperationEnded(self._worker, self._operation, seconds, error_type, self._type_name))
