"""What ``run_jobworker`` shows: quiet by default, a line a job on request, and always what went wrong."""

import threading
import time
from collections import Counter
from collections.abc import Callable

from django.core.management.color import Style

from django_jobchains.telemetry.events import (
    AttemptEnded,
    AttemptStuck,
    Event,
    JobReaped,
    LeaseLost,
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    ProcessStarted,
    SupervisorGaveUp,
    ThreadFailed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from django_jobchains.telemetry.logs import without_secrets
from django_jobchains.texts import printable

SUMMARY_SECONDS = 10.0

_MARKS = {"completed": "✓", "rescheduled": "↻", "failed": "✗", "cancelled": "⊘", "handed_back": "↩"}


class Console:
    """A telemetry sink. ``verbosity`` 0: errors; 1: also failures and a summary while busy; 2: also each job."""

    def __init__(self, write: Callable[[str], object], style: Style, verbosity: int, worker: str) -> None:
        self._write = write
        self._style = style
        self._verbosity = verbosity
        self._worker = worker
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since_summary = 0
        self._summary_at = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.worker != self._worker:
            return
        with self._lock:
            if isinstance(event, AttemptEnded):
                self._attempt(event)
            elif line := self._line(without_secrets(event)):
                self._say(*line)

    def _attempt(self, event: AttemptEnded) -> None:
        self._counts[event.ending] += 1
        self._since_summary += 1
        needed = 2 if event.ending in ("completed", "handed_back") else 1
        if self._verbosity >= needed:
            self._say(_attempt_line(without_secrets(event)), self._paint(event.ending), needed)
        if time.monotonic() - self._summary_at >= SUMMARY_SECONDS:
            self._summary()

    def _summary(self) -> None:
        now = time.monotonic()
        rate = self._since_summary / (now - self._summary_at)
        self._say(f"  {self._totals()} · {rate:,.0f} jobs/s", None, 1)
        self._since_summary, self._summary_at = 0, now

    def _totals(self) -> str:
        return " · ".join(f"{count:,} {ending.replace('_', ' ')}" for ending, count in sorted(self._counts.items()))

    def _line(self, event: Event) -> tuple[str, Callable[[str], str] | None, int] | None:
        if isinstance(event, WorkerStarted):
            queues = ", ".join(event.queues) if event.queues else "every queue"
            types = ", ".join(event.type_names)
            slots = f"{event.slots} slots" + (f" and {event.async_slots} async" if event.async_slots else "")
            facts = f"{slots} · {queues} · database {event.using!r} · {types}"
            return f"Worker {event.worker} · {facts}", None, 1
        if isinstance(event, WorkerStopping):
            return f"Stopping: {event.running} running.", None, 1
        if isinstance(event, WorkerStopped):
            left = f" {event.abandoned} handed back unfinished." if event.abandoned else ""
            return f"Stopped: {self._totals() or 'no job'}.{left}", self._style.SUCCESS, 1
        if isinstance(event, JobReaped):
            facts = f"{event.status}, crash {event.crashes}"
            text = f"↺ {event.type_name} {event.job_id} taken back from a dead worker: {facts}"
            return text, self._style.WARNING, 1
        if isinstance(event, LeaseLost):
            return f"! lease lost: job {event.job_id}: {event.reason}", self._style.WARNING, 1
        if isinstance(event, AttemptStuck):
            facts = f"{event.reason.replace('_', ' ')}, and does not stop; {event.stuck} slots are held so"
            return f"! {event.type_name} {event.job_id} is stuck: {facts}", self._style.ERROR, 0
        if isinstance(event, ThreadFailed):
            ending = "the worker gives up" if event.fatal else "trying again"
            return f"! {event.thread} failed ({event.failures} in a row), {ending}: {event.error}", self._style.ERROR, 0
        return self._process_line(event)

    def _process_line(self, event: Event) -> tuple[str, Callable[[str], str] | None, int] | None:
        if isinstance(event, ProcessStarted):
            return (
                f"Process {event.number} started: pid {event.pid}{f', {event.reason}' if event.reason else ''}",
                None,
                1,
            )
        if isinstance(event, ProcessEnded):
            return _end_line(event), self._style.WARNING if event.code else None, 0 if event.code else 1
        if isinstance(event, ProcessNotStarted):
            text = f"! process {event.number} cannot be started, again in {event.restart_seconds:.1f} s: {event.error}"
            return text, self._style.ERROR, 0
        if isinstance(event, ProcessNotReplaced):
            text = f"! process {event.number} is not replaced, the old one goes on: {event.reason}"
            return text, self._style.ERROR, 0
        if isinstance(event, SupervisorGaveUp):
            return f"! The supervisor gives up: {event.reason}", self._style.ERROR, 0
        return None

    def _paint(self, ending: str) -> Callable[[str], str] | None:
        return {"completed": self._style.SUCCESS, "failed": self._style.ERROR}.get(ending, self._style.WARNING)

    def _say(self, text: str, paint: Callable[[str], str] | None, verbosity: int) -> None:
        if self._verbosity >= verbosity:
            text = printable(text)
            self._write(paint(text) if paint else text)


def _attempt_line(event: AttemptEnded) -> str:
    parts = [
        f"{_MARKS.get(event.ending, '·')} {event.type_name} {event.job_id}",
        f"attempt {event.attempt}" if event.attempt > 1 or event.error else "",
        f"{event.seconds * 1000:.0f} ms",
        f"→ {event.continued_with}" if event.continued_with else "",
        event.error.splitlines()[0][:200] if event.error else "",
    ]
    return "  ".join(part for part in parts if part)


def _end_line(event: ProcessEnded) -> str:
    how = f"was killed by signal {-event.code}" if event.code < 0 else f"ended with code {event.code}"
    again = "" if event.restart_seconds is None else f"; it starts again in {event.restart_seconds:.1f} s"
    return f"Process {event.number} ({event.pid}) {how}{again}"
