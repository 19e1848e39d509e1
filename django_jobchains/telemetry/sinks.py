"""Who hears of events: the log always, others while they are added."""

from collections.abc import Callable
from logging import getLogger

from django_jobchains.telemetry.events import Event
from django_jobchains.telemetry.logs import log
from django_jobchains.texts import log_error

logger = getLogger("django_jobchains")

Sink = Callable[[Event], None]

_sinks: list[Sink] = [log]


def report(event: Event) -> None:
    """Tells every sink. A sink that fails changes no outcome."""
    for sink in _sinks:
        try:
            sink(event)
        except Exception as error:
            log_error(logger, error, "A telemetry sink failed: %s")


def add_sink(sink: Sink) -> None:
    global _sinks
    _sinks = [*_sinks, sink]


def remove_sink(sink: Sink) -> None:
    global _sinks
    _sinks = [kept for kept in _sinks if kept != sink]
