"""Begins the spans of jobs, with OpenTelemetry's API. Without an SDK, nothing is recorded."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.instrumentation import auto_instrumentation
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    TracerProvider,
    get_current_span,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)

from django_jobchains import __version__
from django_jobchains.conf import get_settings
from django_jobchains.telemetry import names
from django_jobchains.telemetry.otel.carrier import LINKS, context_of, links_of, stored_values, with_span, without_span
from django_jobchains.telemetry.otel.spans import (
    OpenTelemetryAttempt,
    OpenTelemetryBatch,
    OpenTelemetryCompletion,
    OpenTelemetryWait,
    SentSpans,
    UnsampledSpan,
    harmless,
    is_sampled,
)
from django_jobchains.telemetry.tracing import AttemptSpan, BatchSpan, ReadContexts, get_tracing, set_tracing

#: The limit of jobs of one call that get separate spans. If there are more, all share one span.
MAX_SPANS = 100


class OpenTelemetryTracing:
    """Implements ``Tracing``. The provider is the global one by default."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self._tracer = get_tracer(names.SCOPE, __version__, provider)

    @harmless
    def send(self, jobs: Sequence[Any], read: ReadContexts) -> SentSpans | None:
        if len(jobs) > MAX_SPANS:
            return self._send_batch(jobs)
        spans = {job.id: span for job in jobs if (span := self._send(job, read))}
        return SentSpans(spans) if spans else None

    def _send(self, job: Any, read: ReadContexts, parent: Context | None = None) -> Span | None:
        span = self._tracer.start_span(
            f"send {job.type_name}", parent, SpanKind.PRODUCER, _attributes(job.type_name, job.queue, "send")
        )
        if span.is_recording():
            span.set_attributes(_ids(job))
        elif not _is_passed_on(span):
            job.context = without_span(job.context)
            return None
        job.context = with_span(job.context, span, parent, _parents_of_blockers(job, read))
        return span

    def _send_batch(self, jobs: Sequence[Any]) -> SentSpans | None:
        types, queues = {job.type_name for job in jobs}, {job.queue for job in jobs}
        attributes = {names.MESSAGING_SYSTEM: names.SYSTEM, names.OPERATION: "send", names.OPERATION_TYPE: "send"}
        if len(types) == 1:
            attributes[names.JOB_TYPE] = jobs[0].type_name
        if len(queues) == 1:
            attributes[names.QUEUE] = jobs[0].queue
        name = f"send {jobs[0].type_name}" if len(types) == 1 else "send"
        span = self._tracer.start_span(name, None, SpanKind.PRODUCER, attributes)
        if not (span.is_recording() or _is_passed_on(span)):
            for job in jobs:
                job.context = without_span(job.context)
            return None
        stored: dict[str | None, str] = {}
        for job in jobs:
            if job.context not in stored:
                stored[job.context] = with_span(job.context, span, None, ())
            job.context = stored[job.context]
        return SentSpans({}, span)

    @harmless
    def attempt(self, job: Any) -> AttemptSpan:
        parent, links = self._origin(job)
        attributes = _attributes(job.type_name, job.queue, "process")
        attributes[names.ATTEMPT] = job.attempt
        span = self._tracer.start_span(f"process {job.type_name}", parent, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            span.set_attributes(_ids(job))
        return self._attempt(span, set_span_in_context(span, parent))

    def _attempt(self, span: Span, context: Context) -> AttemptSpan:
        if is_sampled(span):
            return OpenTelemetryAttempt(self._tracer, span, context, self._send)
        return UnsampledSpan(context)

    def _batch(self, span: Span, context: Context) -> BatchSpan:
        return OpenTelemetryBatch(self._tracer, span, context) if is_sampled(span) else UnsampledSpan(context)

    def _origin(self, job: Any) -> tuple[Context, Sequence[Link]]:
        """Return the context in which an attempt begins, and the links of its span."""
        if job.context is None or not (values := stored_values(job.context)):
            return _NO_CONTEXT, _NO_LINKS
        parent, links = context_of(values), links_of(values.get(LINKS, ()))
        if get_settings().TRACE_PROPAGATION == "link":
            links += links_of([values.get("traceparent")])
            parent = set_span_in_context(_NO_SPAN, parent)
        return parent, links

    @harmless
    def batch(self, jobs: Sequence[Any]) -> BatchSpan:
        first = jobs[0]
        links = links_of(stored_values(job.context).get("traceparent") for job in jobs)
        attributes = _attributes(first.type_name, first.queue, "process")
        attributes[names.MESSAGE_COUNT] = len(jobs)
        name = f"process {first.type_name}"
        span = self._tracer.start_span(name, _NO_CONTEXT, SpanKind.CONSUMER, attributes, links)
        return self._batch(span, set_span_in_context(span, _NO_CONTEXT))

    @harmless
    def record(self, type_name: str, queue: str, record: str, attempt: int) -> AttemptSpan:
        attributes = {**_attributes(type_name, queue, "process"), names.JOB_ID: record, names.ATTEMPT: attempt}
        span = self._tracer.start_span(f"process {type_name}", _NO_CONTEXT, SpanKind.CONSUMER, attributes)
        return self._attempt(span, set_span_in_context(span, _NO_CONTEXT))

    @harmless
    def continued(self, carrier: Mapping[str, str]) -> AttemptSpan:
        context = context_of(carrier)
        return self._attempt(get_current_span(context), context)

    @harmless
    def continued_batch(self, carrier: Mapping[str, str]) -> BatchSpan:
        context = context_of(carrier)
        return self._batch(get_current_span(context), context)

    @staticmethod
    @harmless
    def set_up_child() -> None:
        """Use the SDK that ``opentelemetry-instrument`` sets up, or the global provider, which passes spans on."""
        if is_instrumented_by_command():
            auto_instrumentation.initialize()
        if get_tracing() is None:
            set_tracing(OpenTelemetryTracing(None))

    @harmless
    def completion(self, job: Any) -> OpenTelemetryCompletion:
        links = links_of([stored_values(job.context).get("traceparent")])
        attributes = {
            names.MESSAGING_SYSTEM: names.SYSTEM,
            names.QUEUE: job.queue,
            names.JOB_ID: str(job.job_id),
            names.CHAIN_ID: str(job.chain_id),
            names.JOB_TYPE: job.type_name,
        }
        return OpenTelemetryCompletion(
            self._tracer.start_span(f"complete {job.type_name}", None, SpanKind.INTERNAL, attributes, links)
        )

    @harmless
    def wait(self, chain_id: UUID, type_name: str) -> "OpenTelemetryWait | None":
        attributes = {names.MESSAGING_SYSTEM: names.SYSTEM, names.CHAIN_ID: str(chain_id)}
        if type_name:
            attributes[names.JOB_TYPE] = type_name
        span = self._tracer.start_span(f"wait {type_name}".rstrip(), None, SpanKind.INTERNAL, attributes)
        return OpenTelemetryWait(span) if span.is_recording() else None

    @harmless
    def flush(self, seconds: float) -> None:
        provider: Any = self._provider or get_tracer_provider()
        if hasattr(provider, "force_flush"):  # The API has no such method.
            provider.force_flush(int(seconds * 1000))


_NO_CONTEXT = Context()
_NO_LINKS: tuple[Link, ...] = ()
_NO_SPAN = get_current_span(_NO_CONTEXT)


def is_instrumented_by_command() -> bool:
    """Return whether ``opentelemetry-instrument`` would instrument a fresh interpreter with this environment.

    Without variables of OpenTelemetry, as with ``minimal_env``, it would not know where to export to.
    """
    paths = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return Path(auto_instrumentation.__file__).resolve().parent in paths and any(
        name.startswith("OTEL_") for name in os.environ
    )


def _is_passed_on(span: Span) -> bool:
    """Return whether it is the sampled span of a caller, which a process without an SDK passes on."""
    return span.get_span_context().trace_flags.sampled and not span.is_recording()


def _parents_of_blockers(job: Any, read: ReadContexts) -> list[str]:
    """Return the trace contexts of the chains that a new job waits for."""
    if not job.blockers:
        return []
    parents = [stored_values(context).get("traceparent") for context in read(job.blockers)]
    return [parent for parent in parents if isinstance(parent, str)]


def _attributes(type_name: str, queue: str, operation: str) -> dict[str, Any]:
    """Return the attributes that samplers see."""
    return {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.QUEUE: queue,
        names.OPERATION: operation,
        names.OPERATION_TYPE: operation,
        names.JOB_TYPE: type_name,
    }


def _ids(job: Any) -> dict[str, Any]:
    return {names.JOB_ID: str(job.id), names.CHAIN_ID: str(job.chain_id)}
