"""The spans of jobs, with OpenTelemetry's API. Without an SDK, nothing is recorded.

Spans of database writes end after the commit. After a rollback, they are dropped without being ended, so that they are
not exported. Tracing raises no errors, because it must not change an outcome: see ``harmless``.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import cached_property, wraps
from logging import getLogger
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from opentelemetry.context import Context, attach, detach
from opentelemetry.instrumentation import auto_instrumentation
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import JobAborted, LeaseLost, RescheduleJob
from django_jobchains.telemetry import names
from django_jobchains.telemetry.otel.carrier import (
    LINKS,
    carrier_of,
    context_of,
    links_of,
    stored_values,
    with_span,
    without_span,
)
from django_jobchains.text.errors import describe, log_error, traceback_of, type_name
from django_jobchains.text.redaction import redacted_text

logger = getLogger("django_jobchains")

#: The limit of jobs of one call that get separate spans. If there are more, all share one span.
MAX_SPANS = 100
#: The outcomes that are errors.
_FAILURES = ("failed", "retried", "errored")
_KINDS = {"send": SpanKind.PRODUCER, "process": SpanKind.CONSUMER}
_NO_CONTEXT = Context()
_NO_LINKS: tuple[Link, ...] = ()
_NO_SPAN = get_current_span(_NO_CONTEXT)
#: The bits of a trace id by which the SDK samples a share of the traces.
_RATIO_BITS = 2**64 - 1

#: Reads the stored contexts of the first jobs of chains.
ReadContexts = Callable[[Collection[UUID]], Iterable[str | None]]
Params = ParamSpec("Params")
ResultT = TypeVar("ResultT")


def harmless(function: Callable[Params, ResultT]) -> Callable[Params, ResultT | None]:
    """Log the errors of a function and return None, because the project's sampler or propagator may fail."""

    @wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> ResultT | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            log_error(logger, error, "Tracing failed, which does not affect the job: %s")
            return None

    return run


class Tracing:
    """Begins spans. Its methods take ``NewJob``, ``ClaimedJob`` and ``LastJob``. None: no span is needed.

    ``provider``: None for the global one. ``version``: of this package.
    """

    def __init__(self, provider: TracerProvider | None, version: str) -> None:
        self._provider = provider
        self._tracer = get_tracer(names.SCOPE, version, provider)
        self._bound = _bound(self._tracer)

    @harmless
    def send(self, jobs: Sequence[Any], read: ReadContexts) -> "SentSpans | None":
        """Begin the spans of new jobs, and store their trace contexts with the jobs."""
        if len(jobs) > MAX_SPANS:
            return self._send_batch(jobs)
        spans = {job.id: span for job in jobs if (span := self._send(job, read))}
        return SentSpans(spans) if spans else None

    @harmless
    def send_failure(self, job: Any) -> "SentSpans | None":
        """Begin the span of a chain of ``on_failure``. Its trace context, which it replaces, is the failed job's."""
        span = self._send(job, lambda ids: (), context_of(stored_values(job.context)))
        return SentSpans({job.id: span}) if span else None

    def _send(self, job: Any, read: ReadContexts, parent: Context | None = None) -> Span | None:
        span = self._start("send", job.type_name, job.queue, parent)
        if not _is_sampled(span):
            job.context = without_span(job.context)
            return None
        if span.is_recording():
            span.set_attributes(_ids(job))
        job.context = with_span(job.context, span, parent, _parents_of_blockers(job, read))
        return span

    def _send_batch(self, jobs: Sequence[Any]) -> "SentSpans | None":
        types, queues = {job.type_name for job in jobs}, {job.queue for job in jobs}
        attributes = {names.MESSAGING_SYSTEM: names.SYSTEM, names.OPERATION: "send", names.OPERATION_TYPE: "send"}
        if len(types) == 1:
            attributes[names.JOB_TYPE] = jobs[0].type_name
        if len(queues) == 1:
            attributes[names.QUEUE] = jobs[0].queue
        name = f"send {jobs[0].type_name}" if len(types) == 1 else "send"
        span = self._tracer.start_span(name, None, SpanKind.PRODUCER, attributes)
        if not _is_sampled(span):
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
    def attempt(self, job: Any) -> "AttemptSpan":
        parent, links = self._origin(job)
        span = self._start("process", job.type_name, job.queue, parent, {names.ATTEMPT: job.attempt}, links)
        if span.is_recording():
            span.set_attributes(_ids(job))
        return self._attempt(span, set_span_in_context(span, parent))

    def _start(
        self,
        operation: str,
        type_name: str,
        queue: str,
        parent: Context | None,
        more: Mapping[str, Any] = _NO_CONTEXT,
        links: Sequence[Link] = _NO_LINKS,
    ) -> Span:
        """Begin a span with ``more`` attributes, unless it would be in a new trace that is not sampled.

        The SDK takes longer for a span that is not sampled than for everything else that tracing does for a job.
        """
        tracer, outer = self._tracer, get_current_span(parent)
        if isinstance(outer, DroppedSpan):
            return outer
        if self._bound is not None and outer is _NO_SPAN:
            trace_id = tracer.id_generator.generate_trace_id()  # type: ignore[attr-defined]
            if trace_id & _RATIO_BITS >= self._bound:
                return DroppedSpan(tracer, trace_id)
            tracer = _with_trace_id(tracer, trace_id)
        attributes = {**_attributes(type_name, queue, operation), **more}
        return tracer.start_span(f"{operation} {type_name}", parent, _KINDS[operation], attributes, links)

    def _attempt(self, span: Span, context: Context) -> "AttemptSpan":
        return SampledAttempt(self._tracer, span, context, self._send) if _is_sampled(span) else AttemptSpan(context)

    def _batch(self, span: Span, context: Context) -> "AttemptSpan":
        return SampledBatch(self._tracer, span, context) if _is_sampled(span) else AttemptSpan(context)

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
    def batch(self, jobs: Sequence[Any]) -> "AttemptSpan":
        first = jobs[0]
        links = links_of(stored_values(job.context).get("traceparent") for job in jobs)
        span = self._start(
            "process", first.type_name, first.queue, _NO_CONTEXT, {names.MESSAGE_COUNT: len(jobs)}, links
        )
        return self._batch(span, set_span_in_context(span, _NO_CONTEXT))

    @harmless
    def record(self, type_name: str, queue: str, record: str, attempt: int) -> "AttemptSpan":
        """Begin the span of an attempt at a record, with its primary key as text."""
        span = self._start("process", type_name, queue, _NO_CONTEXT, {names.JOB_ID: record, names.ATTEMPT: attempt})
        return self._attempt(span, set_span_in_context(span, _NO_CONTEXT))

    @harmless
    def continued(self, carrier: Mapping[str, str]) -> "AttemptSpan":
        """Return a span that another process has begun, and will end, from its ``carrier``."""
        context = context_of(carrier)
        return self._attempt(get_current_span(context), context)

    @harmless
    def continued_batch(self, carrier: Mapping[str, str]) -> "AttemptSpan":
        context = context_of(carrier)
        return self._batch(get_current_span(context), context)

    @harmless
    def completion(self, job: Any) -> "CompletionSpan":
        links = links_of([stored_values(job.context).get("traceparent")])
        attributes = {
            names.MESSAGING_SYSTEM: names.SYSTEM,
            names.QUEUE: job.queue,
            names.JOB_ID: str(job.job_id),
            names.CHAIN_ID: str(job.chain_id),
            names.JOB_TYPE: job.type_name,
        }
        return CompletionSpan(
            self._tracer.start_span(f"complete {job.type_name}", None, SpanKind.INTERNAL, attributes, links)
        )

    @harmless
    def wait(self, chain_id: UUID, type_name: str) -> "WaitSpan | None":
        attributes = {names.MESSAGING_SYSTEM: names.SYSTEM, names.CHAIN_ID: str(chain_id)}
        if type_name:
            attributes[names.JOB_TYPE] = type_name
        span = self._tracer.start_span(f"wait {type_name}".rstrip(), None, SpanKind.INTERNAL, attributes)
        return WaitSpan(span) if span.is_recording() else None

    @harmless
    def flush(self, seconds: float) -> None:
        """Export the ended spans before the process ends."""
        provider: Any = self._provider or get_tracer_provider()
        if hasattr(provider, "force_flush"):  # The API has no such method.
            provider.force_flush(int(seconds * 1000))


class DroppedSpan(NonRecordingSpan):
    """The span of a trace that is not sampled. Its context is created when something reads it, such as a log record."""

    def __init__(self, tracer: Tracer, trace_id: int) -> None:
        self._tracer, self._trace_id = tracer, trace_id

    @cached_property
    def _context(self) -> SpanContext:  # type: ignore[override]
        return _with_trace_id(self._tracer, self._trace_id).start_span("process", _NO_CONTEXT).get_span_context()


def _bound(tracer: Any) -> int | None:
    """Return the number that the last bits of a trace id are compared with, if that is all that samples new traces."""
    try:
        from opentelemetry.sdk.trace import sampling
    except ImportError:
        return None
    sampler = getattr(tracer, "sampler", None)
    if type(sampler) in (sampling.ParentBased, sampling.ParentBasedTraceIdRatio):
        sampler = getattr(sampler, "_root", None)
    return sampler.bound if type(sampler) is sampling.TraceIdRatioBased else None


def _with_trace_id(tracer: Any, trace_id: int) -> Tracer:
    """Return a copy of a tracer of the SDK, whose new traces have this id."""
    tracer, generator = copy(tracer), copy(tracer.id_generator)
    generator.generate_trace_id = lambda: trace_id
    tracer.id_generator = generator
    return tracer  # type: ignore[no-any-return]


class SentSpans:
    """The spans of new jobs. ``shared``: the span of a batch, which ends if any of its jobs was created."""

    def __init__(self, spans: dict[UUID, Span], shared: Span | None = None) -> None:
        self._spans = spans
        self._shared = shared

    @harmless
    def end(self, created: Collection[UUID], replaced: Mapping[UUID, UUID]) -> None:
        """End the spans of the jobs that were created, after the commit, and of those that replaced the values of other
        jobs, which they get the ids of. The other spans are dropped.
        """
        for job_id, existing_id in replaced.items():
            if span := self._spans.get(job_id):
                span.set_attributes({names.JOB_ID: str(existing_id), names.CHAIN_ID: str(existing_id)})
        for job_id in (*created, *replaced):
            if span := self._spans.pop(job_id, None):
                span.end()
        if self._shared is not None and (created or replaced):
            self._shared.set_attribute(names.MESSAGE_COUNT, len(created) + len(replaced))
            self._shared.end()
            self._shared = None


class AttemptSpan:
    """The span of an attempt at a job, or at a batch. This class records nothing: there may be thousands per second.

    Its context surrounds the handler, so that spans of the handler are not sampled either. Each job of a batch has a
    span too.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def carrier(self) -> dict[str, str]:
        """Return the trace context of the span, which lets a child process continue it."""
        return carrier_of(self._context)

    def enter(self) -> None:
        """Make other spans children of this one, until the end of the attempt, which has its own context of Python."""
        attach(self._context)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context that is a child span, for ``prepare`` or ``complete``."""
        return nullcontext()

    @harmless
    def send(self, job: Any, read: ReadContexts) -> None:
        """Begin the span of a continuation, a ``NewJob``, and store its trace context with it."""
        job.context = without_span(job.context)

    def stop(self) -> bool:
        """Record that the attempt has ended now. Return whether ``end`` must be called."""
        return False

    def end(
        self,
        outcome: str = "",
        error: BaseException | None = None,
        abandoned_reason: str = "",
        created: Collection[UUID] = (),
    ) -> None:
        """End the span when the outcome is known. ``created``: the continuation, if it was created."""


class _SampledSpan(AttemptSpan):
    """A span that is recorded, and the child spans of its phases."""

    __slots__ = ("_innermost", "_tracer", "span")

    def __init__(self, tracer: Tracer, span: Span, context: Context) -> None:
        super().__init__(context)
        self._tracer = tracer
        self.span = span
        #: The context of the innermost open phase, or of the span.
        self._innermost = context

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        span = self._start_phase(name)
        if span is None:
            yield
            return
        self._innermost = set_span_in_context(span)
        token = attach(self._innermost)
        try:
            yield
        except BaseException as error:
            is_stop = isinstance(error, JobAborted) and error.reason != "timed_out"
            if not (is_stop or isinstance(error, RescheduleJob)):
                _set_error(span, error)
            raise
        finally:
            self._innermost = self._context
            detach(token)
            _end(span)

    @harmless
    def _start_phase(self, name: str) -> Span:
        # A sampler may read the attributes without checking whether there are any.
        return self._tracer.start_span(name, self._context, SpanKind.INTERNAL, {})


class SampledAttempt(_SampledSpan):
    __slots__ = ("_ended_at", "_sent", "_start_sending")

    def __init__(
        self,
        tracer: Tracer,
        span: Span,
        context: Context,
        send: Callable[[Any, ReadContexts, Context | None], Span | None],
    ) -> None:
        super().__init__(tracer, span, context)
        self._start_sending = send
        self._sent: dict[UUID, Span] | None = None
        self._ended_at: int | None = None

    @harmless
    def send(self, job: Any, read: ReadContexts) -> None:
        if span := self._start_sending(job, read, self._innermost):
            self._sent = {**(self._sent or {}), job.id: span}

    def stop(self) -> bool:
        if self._ended_at is None:
            self._ended_at = time.time_ns()
        return self.span.is_recording() or bool(self._sent)

    @harmless
    def end(
        self,
        outcome: str = "",
        error: BaseException | None = None,
        abandoned_reason: str = "",
        created: Collection[UUID] = (),
    ) -> None:
        for job_id in created:
            if self._sent and (span := self._sent.pop(job_id, None)):
                span.end()
        if not self.span.is_recording():
            return
        self.span.set_attribute(names.OUTCOME, outcome)
        if abandoned_reason:
            self.span.set_attribute(names.ABANDONED_REASON, abandoned_reason)
        if outcome in _FAILURES:
            _record_error(self.span, error)
        self.span.end(self._ended_at)


class SampledBatch(_SampledSpan):
    __slots__ = ()

    @harmless
    def end(self, *args: Any, **kwargs: Any) -> None:
        self.span.end()


class CompletionSpan:
    """The span of a completion without a worker."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which other spans become children of this one."""
        token = attach(set_span_in_context(self._span))
        try:
            yield
        finally:
            detach(token)

    @harmless
    def end(self) -> None:
        """End the span after the commit."""
        self._span.end()


class WaitSpan:
    """The span of a wait for the end of a chain."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @harmless
    def link(self, chain_id: UUID, read: ReadContexts) -> None:
        """Link the span to the one that created the chain."""
        links = links_of(stored_values(context).get("traceparent") for context in read([chain_id]))
        if self._span.is_recording():  # The call may have timed out while the contexts were read.
            for link in links:
                self._span.add_link(link.context)

    @contextmanager
    def active(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            _set_error(self._span, error)
            raise
        finally:
            _end(self._span)


def _is_sampled(span: Span) -> bool:
    """Return whether spans are created inside of this one. One that another process records is not recorded here."""
    return not isinstance(span, DroppedSpan) and (span.is_recording() or span.get_span_context().trace_flags.sampled)


def is_instrumented_by_command() -> bool:
    """Return whether ``opentelemetry-instrument`` would instrument a fresh interpreter with this environment.

    Without variables of OpenTelemetry, as with ``minimal_env``, it would not know where to export to.
    """
    paths = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return Path(auto_instrumentation.__file__).resolve().parent in paths and any(
        name.startswith("OTEL_") for name in os.environ
    )


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
    ids = {names.JOB_ID: str(job.id), names.CHAIN_ID: str(job.chain_id)}
    return {**ids, names.SCHEDULE: job.schedule_name} if job.schedule_name else ids


@harmless
def _end(span: Span) -> None:
    span.end()


@harmless
def _set_error(span: Span, error: BaseException) -> None:
    """Give a span the status of an error, without its message."""
    if span.is_recording() and not isinstance(error, LeaseLost):
        span.set_attribute(names.ERROR_TYPE, type_name(error))
        span.set_status(Status(StatusCode.ERROR))


def _record_error(span: Span, error: BaseException | None) -> None:
    """Record the error of a failed attempt, redacted."""
    if error is None:
        span.set_status(Status(StatusCode.ERROR))
        return
    message = redacted_text(describe(error))
    values = {
        "exception.type": type_name(error),
        "exception.message": message,
        "exception.stacktrace": redacted_text(traceback_of(error)),
    }
    span.add_event("exception", values)
    span.set_attribute(names.ERROR_TYPE, type_name(error))
    span.set_status(Status(StatusCode.ERROR, message))
