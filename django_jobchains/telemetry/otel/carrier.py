"""Trace contexts in the contexts of jobs: the W3C headers ``traceparent``, ``tracestate`` and ``baggage`` as keys.

Only a recorded span is stored. ``traceparent.links`` has the trace contexts of the blockers. Other names, and
``baggage`` without ``TRACE_BAGGAGE``, belong to the project.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidContext
from django_jobchains.payloads.codecs import ENCODED_JSON, decode_json
from django_jobchains.payloads.strict_json import decode, encode

LINKS = "traceparent.links"
#: The limit of links, which is the default of OpenTelemetry's SDK.
MAX_LINKS = 128

_trace_context = TraceContextTextMapPropagator()
_baggage = W3CBaggagePropagator()


def stored_values(context: str | None) -> Mapping[str, Any]:
    """Return the trace values of a stored context."""
    if context is None or not (context.startswith(ENCODED_JSON) or '"traceparent"' in context):
        return {}
    values = decode(decode_json(context, InvalidContext), InvalidContext)
    return {name: values[name] for name in _names() if name in values} if isinstance(values, dict) else {}


def with_span(context: str | None, span: Span, parent: Context | None, links: Iterable[str]) -> str:
    """Return a stored context with the trace context of a span."""
    carrier: dict[str, Any] = dict(carrier_of(set_span_in_context(span, parent)))
    if links := list(links)[:MAX_LINKS]:
        carrier[LINKS] = links
    return encode({**_others(context), **carrier}, InvalidContext)


def carrier_of(context: Context) -> dict[str, str]:
    """Return the headers that pass on a context."""
    carrier: dict[str, str] = {}
    _trace_context.inject(carrier, context)
    if get_settings().TRACE_BAGGAGE:
        _baggage.inject(carrier, context)
    return carrier


def without_span(context: str | None) -> str | None:
    """Return a stored context without the trace context of another job, from which it was inherited."""
    if not stored_values(context):
        return context
    others = _others(context)
    return encode(others, InvalidContext) if others else None


def _others(context: str | None) -> dict[str, Any]:
    if context is None:
        return {}
    values = decode(decode_json(context, InvalidContext), InvalidContext)
    return {name: value for name, value in values.items() if name not in _names()}


def _names() -> tuple[str, ...]:
    """Return the names of the values that are not the project's."""
    return ("traceparent", "tracestate", LINKS, *(["baggage"] if get_settings().TRACE_BAGGAGE else []))


def context_of(values: Mapping[str, Any]) -> Context:
    """Return the context in which a job was created, from its stored values. Empty if they are not valid."""
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    context = _trace_context.extract(texts, Context())
    return _baggage.extract(texts, context) if get_settings().TRACE_BAGGAGE else context


def links_of(parents: Iterable[Any]) -> list[Link]:
    """Return links to the spans with these values of ``traceparent``."""
    contexts = [
        get_current_span(context_of({"traceparent": parent})).get_span_context()
        for parent in parents
        if isinstance(parent, str)
    ]
    return [Link(context) for context in contexts if context.is_valid]
