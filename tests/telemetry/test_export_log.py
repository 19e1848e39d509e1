"""A collector that does not answer is logged once, and delays no job. Exports are waited for to a limit."""

import logging
import socket
import threading

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

from django_jobchains.telemetry import tracing
from django_jobchains.telemetry.otel import EXPORTER_LOGGERS, JobchainsInstrumentor
from tests.support.attempts import committed
from tests.support.tracing import recording


def test_an_exporter_logs_its_first_failure_only(caplog):
    def failures(logger):
        return sum(record.name == logger for record in caplog.records)

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"  # a port that will be closed
    traces, metrics, *_ = EXPORTER_LOGGERS
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
        assert (failures(traces), failures(metrics)) == (1, 1)
    finally:
        instrumentor.uninstrument()
        meters.shutdown()
    tracers.get_tracer("tests").start_span("lost").end()
    assert failures(traces) > 1, "Without the instrumentor, the logger is unchanged."


class Hanging(SpanExporter):
    """Waits for the answer of a collector."""

    def __init__(self):
        self.is_asked, self.is_answered = threading.Event(), threading.Event()

    def export(self, spans):
        self.is_asked.set()
        self.is_answered.wait(60)
        self.is_answered.set()
        return SpanExportResult.SUCCESS


@committed
def test_a_collector_that_does_not_answer_delays_no_job(ship, make_worker):
    collector = Hanging()
    with recording() as recorded:
        recorded.tracers.add_span_processor(BatchSpanProcessor(collector, schedule_delay_millis=1))
        ship.enqueue()
        assert collector.is_asked.wait(60)
        chain = ship.enqueue()
        make_worker().run_until_idle()
        assert chain.refresh().status == "completed"
        assert not collector.is_answered.is_set()
        collector.is_answered.set()


def test_a_worker_or_child_process_does_not_wait_for_an_export_that_hangs(monkeypatch):
    answered, calls = threading.Event(), []

    class HangingTracing:
        def flush(self, seconds):
            calls.append(seconds)
            answered.wait(60)

    monkeypatch.setattr(tracing, "_tracing", HangingTracing())
    monkeypatch.setattr(tracing, "_flushing", None)
    try:
        tracing.flush(0.01)
        tracing.flush(0.01)
        assert (answered.is_set(), len(calls)) == (False, 1)
    finally:
        answered.set()
