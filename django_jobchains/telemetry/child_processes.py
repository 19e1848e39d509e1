"""Telemetry of attempts in child processes: they continue spans of their worker, which also reports their events."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_jobchains.telemetry import events, forward_events, observed_names, report
from django_jobchains.telemetry.events import Event
from django_jobchains.telemetry.tracing import AttemptSpans, flush, get_tracing

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

#: How long an attempt waits for the export of its spans. A collector that does not answer does not delay other
#: attempts.
FLUSH_SECONDS = 0.2


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
