"""Spans and metrics of this process, kept in memory by OpenTelemetry's SDK."""

from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_jobchains.telemetry.otel import JobchainsInstrumentor

Attributes = dict[str, Any]


class Recorded:
    """The exported spans and metrics."""

    def __init__(self, **options):
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    @property
    def tracer(self):
        return self.tracers.get_tracer("tests")

    @property
    def spans(self):
        return list(self._exporter.get_finished_spans())

    @property
    def names(self):
        return sorted(span.name for span in self.spans)

    def all(self, name):
        return [span for span in self.spans if span.name == name]

    def one(self, name):
        found = self.all(name)
        assert len(found) == 1, (name, self.names)
        return found[0]

    def metrics(self):
        """The metrics by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, name):
        """Return the attributes and values of a metric. The value of a histogram is its count."""
        metric = self.metrics().get(name)
        points = metric.data.data_points if metric else []
        return [(dict(point.attributes), getattr(point, "value", getattr(point, "count", None))) for point in points]

    def shutdown(self):
        self.tracers.shutdown()
        self.meters.shutdown()


def parent_of(span):
    return span.parent and span.parent.span_id


def id_of(span):
    return span.get_span_context().span_id


def trace_of(span):
    return span.get_span_context().trace_id


@contextmanager
def recording(**options):
    """Instrument this process inside the block. ``options``: of the ``TracerProvider``, such as a sampler."""
    recorded, instrumentor = Recorded(**options), JobchainsInstrumentor()
    instrumentor.instrument(tracer_provider=recorded.tracers, meter_provider=recorded.meters)
    try:
        yield recorded
    finally:
        instrumentor.uninstrument()
        recorded.shutdown()


@pytest.fixture
def recorded():
    """The spans and metrics of the test, in which every trace is recorded."""
    with recording() as recorded:
        yield recorded
