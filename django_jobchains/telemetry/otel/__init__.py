"""OpenTelemetry: traces and metrics of jobs. Needs the extra ``otel``, which installs the API but not the SDK.

``opentelemetry-instrument manage.py run_jobworker`` finds ``JobchainsInstrumentor`` by its entry point. Programs that
set up an SDK themselves call ``JobchainsInstrumentor().instrument()`` after it.
"""

from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.metrics import MeterProvider, get_meter, get_meter_provider
from opentelemetry.trace import TracerProvider

from django_jobchains import __version__
from django_jobchains.telemetry import names
from django_jobchains.telemetry.otel.export_log import ExportLog
from django_jobchains.telemetry.otel.gauges import AlwaysGauges, Gauges
from django_jobchains.telemetry.otel.instruments import Instruments
from django_jobchains.telemetry.otel.tracing import Tracing
from django_jobchains.telemetry.tracing import set_tracing

__all__ = ("JobchainsInstrumentor", "register_gauges")


class JobchainsInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records the traces and metrics of jobs. There is one for each process.

    While it is active, each exporter for OTLP logs only the first failure in ten minutes.

    ``instrument(tracer_provider=None, meter_provider=None)``: the providers default to the global ones.
    ``uninstrument()`` ends it.
    """

    _metrics: "Metrics | None" = None
    _export_log: ExportLog | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ["Django >= 5.2"]

    def _instrument(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None, **kwargs: Any
    ) -> None:
        self._metrics = metrics_of(meter_provider)
        self._metrics.open()
        self._export_log = ExportLog()
        self._export_log.open()
        set_tracing(Tracing(tracer_provider))

    def _uninstrument(self, **kwargs: Any) -> None:
        set_tracing(None)
        if self._export_log is not None:
            self._export_log.close()
            self._export_log = None
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


class Metrics:
    """All metrics of this process, for one provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = get_meter(names.SCOPE, __version__, provider)
        self.instruments, self.gauges = Instruments(meter), Gauges(meter)

    def open(self) -> None:
        self.instruments.open()
        self.gauges.open()

    def close(self) -> None:
        self.instruments.close()
        self.gauges.close()


#: By provider, because instruments cannot be removed, and a second one of the same name would hide the first.
_metrics: "WeakKeyDictionary[MeterProvider, Metrics]" = WeakKeyDictionary()


def metrics_of(provider: MeterProvider | None) -> Metrics:
    """Return the metrics for this provider, which are created once. None is the global provider."""
    provider = provider or get_meter_provider()
    return _metrics.setdefault(provider, _metrics.get(provider) or Metrics(provider))


def register_gauges(meter_provider: MeterProvider | None = None) -> AlwaysGauges:
    """Report the gauges about queues from this process too, such as a web server, in case no worker runs.

    This is not needed in workers. The gauges take one bounded query every ten seconds. ``close()`` of the result ends
    this.
    """
    return AlwaysGauges(metrics_of(meter_provider).gauges)
