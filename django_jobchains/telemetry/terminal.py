"""The output of ``run_jobworker``: failures and summaries by default, one line per job on request, errors always."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from django.core.management.color import Style

from django_jobchains.telemetry.events import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptStuck,
    BlockedJobFailed,
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
    ProcessStarted,
    RecordAbandoned,
    RecordCanceled,
    RecordEnded,
    RecordReset,
    RecordStuck,
    SupervisorGaveUp,
    ThreadFailed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from django_jobchains.telemetry.logs import redact_event
from django_jobchains.text.errors import printable

SUMMARY_SECONDS = 10.0

_MARKS = {"completed": "✓", "retried": "↻", "rescheduled": "↷", "failed": "✗", "cancelled": "⊘", "handed_back": "↩"}
_MARKS |= {"errored": "↻", "requeued": "↷", "canceled": "⊘"}


class Line(NamedTuple):
    """A line, with its style and the lowest verbosity that shows it."""

    text: str
    paint: Callable[[str], str] | None = None
    verbosity: int = 1


class TerminalSink:
    """A telemetry sink. ``verbosity`` 0: errors; 1: also failures, and summaries while busy; 2: also each job."""

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
            if isinstance(event, AttemptEnded | RecordEnded):
                if event.ending != "abandoned":  # Shown as AttemptAbandoned.
                    self._attempt(event)
            elif line := self._line(redact_event(event)):
                self._write_line(line)

    def _attempt(self, event: AttemptEnded | RecordEnded) -> None:
        self._counts[event.ending] += 1
        self._since_summary += 1
        needed = 2 if event.ending in ("completed", "rescheduled", "requeued", "handed_back") else 1
        if self._verbosity >= needed:
            self._write_line(Line(_attempt_line(redact_event(event)), self._paint(event.ending), needed))
        if time.monotonic() - self._summary_at >= SUMMARY_SECONDS:
            self._write_summary()

    def _write_summary(self) -> None:
        now = time.monotonic()
        rate = self._since_summary / (now - self._summary_at)
        self._write_line(Line(f"  {self._totals()} · {rate:,.0f} jobs/s"))
        self._since_summary, self._summary_at = 0, now

    def _totals(self) -> str:
        return " · ".join(f"{count:,} {ending.replace('_', ' ')}" for ending, count in sorted(self._counts.items()))

    def _line(self, event: Event) -> Line | None:
        if isinstance(event, WorkerStarted):
            return Line(_start_line(event))
        if isinstance(event, WorkerStopping):
            return Line(f"Stopping: {event.running} running.")
        if isinstance(event, WorkerStopped):
            abandoned = f" {event.abandoned} handed back unfinished." if event.abandoned else ""
            return Line(f"Stopped: {self._totals() or 'no jobs'}.{abandoned}", self._style.SUCCESS)
        return self._job_line(event) or self._record_line(event) or self._child_line(event) or self._process_line(event)

    def _job_line(self, event: Event) -> Line | None:
        warning, error = self._style.WARNING, self._style.ERROR
        if isinstance(event, JobReaped):
            facts = f"{event.status}, crash {event.crashes}"
            return Line(f"↺ {event.type_name} {event.job_id} taken from a dead worker: {facts}", warning)
        if isinstance(event, BlockedJobFailed):
            return Line(f"✗ {event.type_name} {event.job_id} failed without an attempt: {event.error}", error)
        if isinstance(event, AttemptAbandoned):
            return Line(f"! job {event.job_id} lost its lease: {event.reason.replace('_', ' ')}", warning)
        if isinstance(event, OutcomeDelayed):
            reason = event.error or "another transaction has locked it, or a job that waits for it"
            text = f"! {event.type_name} {event.job_id} has ended, not stored for {event.seconds:.1f} s: {reason}"
            return Line(text, warning)
        if isinstance(event, AttemptStuck):
            facts = f"{event.reason.replace('_', ' ')}, but it does not stop; {event.stuck} slots occupied"
            return Line(f"! {event.type_name} {event.job_id} is stuck: {facts}", error, 0)
        return None

    def _child_line(self, event: Event) -> Line | None:
        warning = self._style.WARNING
        if isinstance(event, ChildCrashed):
            return Line(f"! {event.type_name} {event.job_id}, process {event.pid}: {event.error}", warning)
        if isinstance(event, ChildKilled):
            reason = event.reason.replace("_", " ")
            return Line(f"! {event.type_name} {event.job_id}, process {event.pid} was killed: {reason}", warning)
        if isinstance(event, IsolationWeakened):
            text = f"! handlers run with isolation {event.actual!r} instead of {event.requested!r}: {event.reason}"
            return Line(text, warning, 0)
        if isinstance(event, IsolationFailed):
            text = f"! isolation {event.requested!r} failed, trying again in {event.retry_seconds:g} s: {event.reason}"
            return Line(text, self._style.ERROR, 0)
        return None

    def _record_line(self, event: Event) -> Line | None:
        warning = self._style.WARNING
        if isinstance(event, RecordReset):
            facts = f"{event.state}, reset {event.resets}"
            return Line(f"↺ {event.type_name} {event.record} taken from a dead worker: {facts}", warning)
        if isinstance(event, RecordCanceled):
            return Line(f"⊘ {event.type_name} {event.record} canceled before it started", warning)
        if isinstance(event, RecordAbandoned):
            return Line(f"! {event.type_name} {event.record} is lost: {event.reason.replace('_', ' ')}", warning)
        if isinstance(event, RecordStuck):
            facts = f"{event.reason.replace('_', ' ')}, but it does not stop; {event.stuck} slots occupied"
            return Line(f"! {event.type_name} {event.record} is stuck: {facts}", self._style.ERROR, 0)
        return None

    def _process_line(self, event: Event) -> Line | None:
        error = self._style.ERROR
        if isinstance(event, ThreadFailed):
            ending = "the worker gives up" if event.fatal else "trying again"
            return Line(f"! {event.thread} failed ({event.failures} in a row), {ending}: {event.error}", error, 0)
        if isinstance(event, ProcessStarted):
            reason = f", {event.reason}" if event.reason else ""
            return Line(f"Process {event.number} started: pid {event.pid}{reason}")
        if isinstance(event, ProcessEnded):
            return Line(_end_line(event), self._style.WARNING if event.code else None, 0 if event.code else 1)
        if isinstance(event, ProcessNotStarted):
            restart = f"retrying in {event.restart_seconds:.1f} s"
            return Line(f"! process {event.number} cannot be started, {restart}: {event.error}", error, 0)
        if isinstance(event, ProcessNotReplaced):
            text = f"! process {event.number} is not replaced, the old one continues: {event.reason}"
            return Line(text, error, 0)
        if isinstance(event, SupervisorGaveUp):
            return Line(f"! The supervisor gives up: {event.reason}", error, 0)
        return None

    def _paint(self, ending: str) -> Callable[[str], str] | None:
        return {"completed": self._style.SUCCESS, "failed": self._style.ERROR}.get(ending, self._style.WARNING)

    def _write_line(self, line: Line) -> None:
        if self._verbosity >= line.verbosity:
            text = printable(line.text)
            self._write(line.paint(text) if line.paint else text)


def _start_line(event: WorkerStarted) -> str:
    if not event.slots:
        return f"Worker {event.worker} · maintenance only · database {event.using!r}"
    queues = ", ".join(event.queues) if event.queues else "all queues"
    slots = f"{event.slots} slots" + (f" and {event.async_slots} async" if event.async_slots else "")
    types = ", ".join(event.type_names)
    return f"Worker {event.worker} · {slots} · {queues} · database {event.using!r} · {types}"


def _attempt_line(event: AttemptEnded | RecordEnded) -> str:
    id_, continued_with = (
        (event.record, None) if isinstance(event, RecordEnded) else (event.job_id, event.continued_with)
    )
    parts = [
        f"{_MARKS.get(event.ending, '·')} {event.type_name} {id_}",
        f"attempt {event.attempt}" if event.attempt > 1 or event.error else "",
        f"{event.seconds * 1000:.0f} ms",
        f"→ {continued_with}" if continued_with else "",
        event.error.splitlines()[0][:200] if event.error else "",
    ]
    return "  ".join(part for part in parts if part)


def _end_line(event: ProcessEnded) -> str:
    how = f"was killed by signal {-event.code}" if event.code < 0 else f"ended with code {event.code}"
    restart = "" if event.restart_seconds is None else f"; restarting in {event.restart_seconds:.1f} s"
    return f"Process {event.number} ({event.pid}) {how}{restart}"
