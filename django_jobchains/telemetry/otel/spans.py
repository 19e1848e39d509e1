"""The span objects of jobs.

Spans of database writes end after the commit. After a rollback, they are dropped without being ended, so that they are
not exported.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from logging import getLogger
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from django_jobchains.exceptions import RescheduleJob
from django_jobchains.telemetry import names
from django_jobchains.telemetry.otel.carrier import carrier_of, links_of, stored_values, without_span
from django_jobchains.telemetry.otel.span_errors import record, set_error
from django_jobchains.telemetry.tracing import ReadContexts
from django_jobchains.text.errors import log_error

logger = getLogger("django_jobchains")

#: The outcomes that are errors.
_FAILURES = ("failed", "retried", "errored")

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


class SentSpans:
    """Implements ``Sent``. ``shared``: the span of a batch, which ends if any of its jobs was created."""

    def __init__(self, spans: dict[UUID, Span], shared: Span | None = None) -> None:
        self._spans = spans
        self._shared = shared

    @harmless
    def end(self, created: Collection[UUID]) -> None:
        for job_id in created:
            if span := self._spans.pop(job_id, None):
                span.end()
        if self._shared is not None and created:
            self._shared.set_attribute(names.MESSAGE_COUNT, len(created))
            self._shared.end()
            self._shared = None


class _Attached:
    """Makes a context the current one. It is a class because that is faster than a generator."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = attach(self._context)

    def __exit__(self, *error: object) -> None:
        detach(self._token)


def is_sampled(span: Span) -> bool:
    """Return whether spans are created inside of this one. One that another process records is not recorded here."""
    return span.is_recording() or span.get_span_context().trace_flags.sampled


class UnsampledSpan(_Attached):
    """Implements ``AttemptSpan`` and ``BatchSpan`` without recording anything: there may be thousands per second.

    Its context surrounds the handler, so that spans of the handler are not sampled either.
    """

    __slots__ = ()

    def carrier(self) -> dict[str, str]:
        return carrier_of(self._context)

    def active(self) -> "UnsampledSpan":
        return self

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    @harmless
    def send(self, job: Any, read: ReadContexts) -> None:
        job.context = without_span(job.context)

    def stop(self) -> bool:
        return False

    def end(self, *args: Any, **kwargs: Any) -> None: ...


class _Phases:
    """A sampled span, and the child spans of its phases."""

    __slots__ = ("_context", "_innermost", "_tracer", "span")

    def __init__(self, tracer: Tracer, span: Span, context: Context) -> None:
        self._tracer = tracer
        self.span = span
        #: The context of the span, and of the open phase in it.
        self._context = self._innermost = context

    def carrier(self) -> dict[str, str]:
        return carrier_of(self._context)

    def active(self) -> "_Attached":
        return _Attached(self._context)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        span = self._tracer.start_span(name, self._context, SpanKind.INTERNAL)
        self._innermost = set_span_in_context(span)
        token = attach(self._innermost)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, RescheduleJob):
                set_error(span, error)
            raise
        finally:
            self._innermost = self._context
            detach(token)
            span.end()


class OpenTelemetryAttempt(_Phases):
    """Implements ``AttemptSpan``."""

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
    def end(self, outcome: str, error: BaseException | None, abandoned_reason: str, created: Collection[UUID]) -> None:
        for job_id in created:
            if self._sent and (span := self._sent.pop(job_id, None)):
                span.end()
        if not self.span.is_recording():
            return
        self.span.set_attribute(names.OUTCOME, outcome)
        if abandoned_reason:
            self.span.set_attribute(names.ABANDONED_REASON, abandoned_reason)
        if outcome in _FAILURES:
            record(self.span, error)
        self.span.end(self._ended_at)


class OpenTelemetryBatch(_Phases):
    """Implements ``BatchSpan``."""

    __slots__ = ()

    @harmless
    def end(self) -> None:
        self.span.end()


class OpenTelemetryCompletion:
    """Implements ``CompletionSpan``."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def active(self) -> _Attached:
        return _Attached(set_span_in_context(self._span))

    @harmless
    def end(self) -> None:
        self._span.end()


class OpenTelemetryWait:
    """Implements ``WaitSpan``."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @harmless
    def link(self, chain_id: UUID, read: ReadContexts) -> None:
        for link in links_of(stored_values(context).get("traceparent") for context in read([chain_id])):
            self._span.add_link(link.context)

    @contextmanager
    def active(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            set_error(self._span, error)
            raise
        finally:
            self._span.end()
