"""The output of ``run_jobworker``: failures and summaries by default, one line per job on request, errors always."""

import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

from django.core.management.color import Style

from django_jobchains.telemetry import redact_event
from django_jobchains.telemetry.events import AttemptEnded, Event, WorkerStopped
from django_jobchains.text.errors import printable

SUMMARY_SECONDS = 10.0


class TerminalSink:
    """A telemetry sink. ``verbosity`` 0: errors; 1: also failures, and summaries while busy; 2: also each job.

    Events from ``logged_level`` on are left out, because the log writes them to the same terminal.
    """

    takes_many_events = True

    def __init__(
        self,
        write: Callable[[str], object],
        style: Style,
        verbosity: int,
        worker: str,
        logged_level: float = math.inf,
    ) -> None:
        self._write = write
        self._style = style
        self._verbosity = verbosity
        self._worker = worker
        self._logged_level = logged_level
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since_summary = 0
        self._summary_at = time.monotonic()

    def __call__(self, *events: Event) -> None:
        """Show events of one kind, of which there may be very many."""
        own = [event for event in events if event.worker == self._worker]
        endings = [event.ending for event in own if isinstance(event, AttemptEnded) and event.ending != "abandoned"]
        with self._lock:
            for event in own:
                is_shown = self._verbosity >= event.verbosity and event.level < self._logged_level
                if is_shown and (line := self._line(event)):
                    paint = getattr(self._style, event.style) if event.style else str
                    self._write(paint(printable(line)))
            if endings:
                self._count(endings)

    def _line(self, event: Event) -> str:
        if isinstance(event, WorkerStopped):
            abandoned = f" {event.abandoned} returned to the queue." if event.abandoned else ""
            return f"Stopped: {self._totals() or 'no jobs'}.{abandoned}"
        return redact_event(event).line()

    def _count(self, endings: Collection[str]) -> None:
        self._counts.update(endings)
        self._since_summary += len(endings)
        now = time.monotonic()
        if (seconds := now - self._summary_at) >= SUMMARY_SECONDS:
            if self._verbosity:
                self._write(f"  {printable(self._totals())} · {self._since_summary / seconds:,.0f} jobs/s")
            self._since_summary, self._summary_at = 0, now

    def _totals(self) -> str:
        return " · ".join(f"{count:,} {ending.replace('_', ' ')}" for ending, count in sorted(self._counts.items()))


def console_level(logger: logging.Logger) -> float:
    """Return the lowest level at which the handlers of a logger write to the terminal, ``math.inf`` for none."""
    levels: list[float] = [math.inf]
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            is_console = getattr(handler, "stream", None) in (sys.stdout, sys.stderr)
            levels += [handler.level] if is_console and not handler.filters else []  # A filter may drop any record.
        current = current.parent if current.propagate else None
    return max(min(levels), logger.getEffectiveLevel())
