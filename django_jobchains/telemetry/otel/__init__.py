"""OpenTelemetry: traces and metrics of jobs. Needs the extra ``otel``, which installs the API but not the SDK.

``opentelemetry-instrument manage.py run_jobworker`` finds ``JobchainsInstrumentor`` by its entry point. Programs that
set up an SDK themselves call ``JobchainsInstrumentor().instrument()`` after it.
"""

import logging
import time
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation import auto_instrumentation
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from django_jobchains import __version__
from django_jobchains.telemetry.otel.metrics import AlwaysGauges, Metrics, metrics_of
from django_jobchains.telemetry.otel.tracing import Tracing, harmless, is_instrumented_by_command
from django_jobchains.telemetry.tracing import get_tracing, set_tracing

__all__ = ("JobchainsInstrumentor", "register_gauges")

#: The loggers of the exporters for OTLP. Filters of a logger do not apply to the loggers below it.
EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
)
#: How long an exporter logs nothing after a warning or an error. With a dead collector, it would log every batch.
QUIET_SECONDS = 600.0


class JobchainsInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records the traces and metrics of jobs. A process has one instance.

    While it is active, each exporter for OTLP logs only the first failure in ten minutes.

    ``instrument(tracer_provider=None, meter_provider=None)``: the providers default to the global ones.
    ``uninstrument()`` ends it.
    """

    _metrics: Metrics | None = None
    #: Filters by the names of the loggers.
    _filters: "dict[str, FirstFailure] | None" = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ["Django >= 5.2"]

    def _instrument(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None, **kwargs: Any
    ) -> None:
        self._metrics = metrics_of(meter_provider)
        self._metrics.open()
        self._filters = {name: FirstFailure() for name in EXPORTER_LOGGERS}
        for name, first_failure in self._filters.items():
            logging.getLogger(name).addFilter(first_failure)
        set_tracing(Tracing(tracer_provider, __version__))

    def _uninstrument(self, **kwargs: Any) -> None:
        set_tracing(None)
        for name, first_failure in (self._filters or {}).items():
            logging.getLogger(name).removeFilter(first_failure)
        self._filters = None
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def register_gauges(meter_provider: MeterProvider | None = None) -> AlwaysGauges:
    """Report the gauges about the database from this process too, such as a web server, even if no worker runs.

    Workers report them without this call, and other gauges that only they know. The gauges need one query with a time
    limit every ten seconds. Call ``close()`` on the returned object to stop.
    """
    return AlwaysGauges(metrics_of(meter_provider).gauges)


@harmless
def set_up_child() -> None:
    """Trace in a child process, with the SDK that ``opentelemetry-instrument`` sets up or with the global provider."""
    if is_instrumented_by_command():
        auto_instrumentation.initialize()
    if get_tracing() is None:
        set_tracing(Tracing(None, __version__))


class FirstFailure(logging.Filter):
    """Keeps the first warning or error of a logger, and drops others for the next ten minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + QUIET_SECONDS
        return True
