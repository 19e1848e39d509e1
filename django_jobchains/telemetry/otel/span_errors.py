"""Errors of spans: their class, and their redacted details."""

from opentelemetry.trace import Span, Status, StatusCode

from django_jobchains.exceptions import LeaseLost
from django_jobchains.telemetry import names
from django_jobchains.text.errors import describe, traceback_of, type_name
from django_jobchains.text.redaction import redacted_text


def set_error(span: Span, error: BaseException) -> None:
    """Give a span the status of an error, without its message."""
    if span.is_recording() and not isinstance(error, LeaseLost):
        span.set_attribute(names.ERROR_TYPE, type_name(error))
        span.set_status(Status(StatusCode.ERROR))


def record(span: Span, error: BaseException | None) -> None:
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
