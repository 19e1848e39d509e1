"""A collector that does not answer is logged once."""

import logging
import socket

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from django_jobchains.telemetry.otel import JobchainsInstrumentor, export_log


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def failures(caplog: pytest.LogCaptureFixture, logger: str) -> int:
    return sum(record.name == logger for record in caplog.records)


def test_an_exporter_logs_its_first_failure_only(closed_port: int, caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    traces, metrics, *_ = export_log.LOGGERS
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces", timeout=1)))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics", timeout=1), 3_600_000)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    instrumentor = JobchainsInstrumentor()
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                tracers.get_tracer("tests").start_span("lost").end()
            meters.get_meter("tests").create_counter("lost").add(1)
            for _ in range(2):
                reader.collect()
        assert (failures(caplog, traces), failures(caplog, metrics)) == (1, 1)
    finally:
        instrumentor.uninstrument()
        meters.shutdown()
    tracers.get_tracer("tests").start_span("lost").end()
    assert failures(caplog, traces) > 1, "Without the instrumentor, the logger is unchanged."
