"""OpenTelemetry as production uses it: one of a hundred traces is recorded; exporters keep their data in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from django_jobchains.telemetry.otel import JobchainsInstrumentor

SAMPLED = 0.01


@contextmanager
def instrumented() -> Iterator[None]:
    """Record traces and metrics of this process inside the block."""
    tracers = TracerProvider(sampler=ParentBasedTraceIdRatio(SAMPLED))
    tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    meters = MeterProvider([InMemoryMetricReader()])
    JobchainsInstrumentor().instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        yield
    finally:
        JobchainsInstrumentor().uninstrument()
        tracers.shutdown()
        meters.shutdown()
