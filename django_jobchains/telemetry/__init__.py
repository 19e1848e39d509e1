"""Events that describe what happened, and the sinks that receive them. Writes are reported after the commit."""

from collections.abc import Callable, Collection, Mapping
from logging import getLogger
from types import MappingProxyType

from django_jobchains.telemetry import events
from django_jobchains.telemetry.events import DetailEvent, Event
from django_jobchains.telemetry.logs import log
from django_jobchains.text.errors import log_error

__all__ = ("DetailEvent", "Event", "add_sink", "observes", "remove_sink", "report")

logger = getLogger("django_jobchains")

Sink = Callable[[Event], None]

#: The kinds of ``DetailEvent`` that each sink receives. The log receives none, and is always among the sinks.
_sinks: Mapping[Sink, frozenset[type[DetailEvent]]] = MappingProxyType({log: frozenset()})
#: The kinds that any sink receives.
_observed: frozenset[type[DetailEvent]] = frozenset()
#: The sinks of each kind of ``DetailEvent``. All sinks receive the other events.
_receivers: Mapping[type[Event], tuple[Sink, ...]] = MappingProxyType({})


def report(event: Event) -> None:
    """Pass an event to every sink. A failing sink has no effect on the outcome of a job."""
    for sink in _receivers.get(type(event), _sinks):
        try:
            sink(event)
        except Exception as error:
            log_error(logger, error, "A telemetry sink failed: %s")


def observes(*kinds: type[DetailEvent]) -> bool:
    """Return whether any sink receives one of these kinds of events. If not, callers need not create one."""
    return not _observed.isdisjoint(kinds)


def add_sink(sink: Sink, *details: type[DetailEvent]) -> None:
    """Call a function with every event from now on, in the thread that reports it.

    ``details``: the kinds of ``DetailEvent`` that it receives too; ``DetailEvent`` itself stands for all of them.
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
