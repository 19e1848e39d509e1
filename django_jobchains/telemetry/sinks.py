"""Who hears of events: the log always, others while they are added."""

from collections.abc import Callable
from logging import getLogger

from django_jobchains.telemetry.events import Event
from django_jobchains.telemetry.logs import log

logger = getLogger("django_jobchains")

Sink = Callable[[Event], None]

_sinks: list[Sink] = [log]


def report(event: Event) -> None:
    """Tells every sink. A sink that fails changes no outcome."""
    for sink in _sinks:
        try:
            sink(event)
        except Exception:
            logger.exception("A telemetry sink failed.")


def add_sink(sink: Sink) -> None:
    global _sinks
    _sinks = [*_sinks, sink]


def remove_sink(sink: Sink) -> None:
    global _sinks
    _sinks = [kept for kept in _sinks if kept != sink]
