"""The tracing of this process, if any. Without it, the only cost for callers is a comparison.

Attempts in child processes continue spans of their worker, which also reports their events.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_jobchains.telemetry import events, forward_events, observed_names, observes, report
from django_jobchains.telemetry.events import AttemptStarted, Event

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import (
        AttemptSpan,
        CompletionSpan,
        ReadContexts,
        SentSpans,
        Tracing,
        WaitSpan,
    )

#: How long an attempt waits for the export of its spans. A collector that does not answer does not delay other
#: attempts.
FLUSH_SECONDS = 0.2
_NOTHING: AbstractContextManager[None] = nullcontext()

_tracing: "Tracing | None" = None
#: The thread of the last export that was waited for.
_flushing: threading.Thread | None = None


def set_tracing(tracing: "Tracing | None") -> None:
    """Trace from now on, or no longer."""
    global _tracing
    _tracing = tracing


def get_tracing() -> "Tracing | None":
    return _tracing


def start_sending(jobs: Sequence[Any], read: "ReadContexts") -> "SentSpans | None":
    """Begin the spans of new jobs, and store their trace contexts with the jobs."""
    return None if _tracing is None else _tracing.send(jobs, read)


def start_sending_failure(job: Any) -> "SentSpans | None":
    """Begin the span of a chain of ``on_failure``, in the trace of the failed job, whose context it has."""
    return None if _tracing is None else _tracing.send_failure(job)


class AttemptSpans:
    """Begins the spans of attempts, in the process that has claimed the jobs. None: no span is needed."""

    def attempt(self, job: Any) -> "AttemptSpan | None":
        """Report that an attempt begins, and begin its span."""
        if observes(AttemptStarted):
            facts = job.worker, job.id, job.chain_id, job.type_name, job.queue, job.attempt, job.wait_seconds
            report(AttemptStarted(*facts, job.schedule_name))
        return None if _tracing is None else _tracing.attempt(job)

    def batch(self, jobs: Sequence[Any]) -> "AttemptSpan | None":
        return None if _tracing is None else _tracing.batch(jobs)

    def record(self, type_name: str, queue: str, record: str, attempt: int) -> "AttemptSpan | None":
        return None if _tracing is None else _tracing.record(type_name, queue, record, attempt)


OWN_SPANS = AttemptSpans()


def start_completion(job: Any) -> "CompletionSpan | None":
    return None if _tracing is None else _tracing.completion(job)


def start_wait(chain_id: UUID, type_name: str) -> "WaitSpan | None":
    return None if _tracing is None else _tracing.wait(chain_id, type_name)


def active(span: "CompletionSpan | WaitSpan | None") -> AbstractContextManager[object]:
    """Return the context of a span, or one that does nothing."""
    return _NOTHING if span is None else span.active()


def phase(span: "AttemptSpan | None", name: str) -> AbstractContextManager[object]:
    return _NOTHING if span is None else span.phase(name)


def flush(seconds: float) -> None:
    """Export the spans that have ended, unless an earlier call still does so. Return after this time at the latest.

    Exporters may exceed their time limit, so they run on a thread.
    """
    global _flushing
    if _tracing is not None and (_flushing is None or not _flushing.is_alive()):
        _flushing = threading.Thread(target=_tracing.flush, args=[seconds], name="jobchains-flush", daemon=True)
        _flushing.start()
        _flushing.join(seconds)


# Child processes


def telemetry_request(spans: "Mapping[str, AttemptSpan]", batch: "AttemptSpan | None" = None) -> dict[str, Any]:
    """Return what a child process needs, as JSON values. ``spans``: by the ids of jobs or records."""
    return {
        "pid": os.getpid(),
        "observed": observed_names(),
        "is_traced": get_tracing() is not None,
        "spans": {name: span.carrier() for name, span in spans.items()},
        "batch": batch and batch.carrier(),
    }


def report_message(message: Mapping[str, Any]) -> None:
    """Report the event that a child process has sent."""
    kind = getattr(events, message["event"])
    ids = {field.name for field in fields(kind) if field.type is UUID}
    values = {name: UUID(value) if name in ids else value for name, value in message["values"].items()}
    report(kind(**values))


class ChildTelemetry(AttemptSpans):
    """Telemetry in the process that runs an attempt: continues its spans. ``send``: sends JSON to the worker.

    After a fallback to threads, this is the worker's own process, which reports events itself.
    """

    def __init__(self, request: Mapping[str, Any], send: Callable[[Any], object]) -> None:
        self._spans, self._batch = request["spans"], request["batch"]
        self._is_child = request["pid"] != os.getpid()
        if self._is_child:
            if request["is_traced"] and get_tracing() is None:
                from django_jobchains.telemetry.otel import set_up_child

                set_up_child()
            _forwarder.forward(request["observed"], send)

    def attempt(self, job: Any) -> "AttemptSpan | None":
        return self._continued(job.id.hex)

    def record(self, type_name: str, queue: str, record: str, attempt: int) -> "AttemptSpan | None":
        return self._continued(record)

    def batch(self, jobs: Sequence[Any]) -> "AttemptSpan | None":
        carrier, tracing = self._batch, get_tracing()
        return tracing.continued_batch(carrier) if carrier and tracing else None

    def flush(self) -> None:
        """Export the spans of the attempt, because this process may be killed before its exporter does it."""
        if self._is_child and self._spans:
            flush(FLUSH_SECONDS)

    def _continued(self, name: str) -> "AttemptSpan | None":
        carrier, tracing = self._spans.get(name), get_tracing()
        return tracing.continued(carrier) if carrier and tracing else None


class _Forwarder:
    """The only sink of a child process: sends events to the worker, as messages of the running call.

    It is added once, not for each attempt, because that takes longer than a short handler.
    """

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._send: Callable[[Any], object] | None = None

    def forward(self, names: list[str], send: Callable[[Any], object]) -> None:
        """Send events with ``send`` from now on. ``names``: the kinds of details to include."""
        self._send = send
        if names != self._names:
            forward_events(self, names)
            self._names = names

    def __call__(self, event: Event) -> None:
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        plain = {name: value.hex if isinstance(value, UUID) else value for name, value in values.items()}
        if self._send is not None:
            self._send({"event": type(event).__name__, "values": plain})


_forwarder = _Forwarder()
