"""The metrics in Prometheus's text format, of one process or of several. Needs the extra ``prometheus``."""

import re
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from django_jobchains.telemetry import names
from django_jobchains.telemetry.names import MetricName
from django_jobchains.telemetry.otel.metrics import metrics_of

#: The units that are part of a name.
UNITS = {"s": "_seconds", "By": "_bytes"}


def family_name(metric: MetricName) -> str:
    """Return the name of a metric in Prometheus's text format, without an ending such as ``_total``."""
    name, unit = re.sub(r"\W", "_", metric.name), UNITS.get(metric.unit, "")
    return name if name.endswith(unit) else name + unit


#: Gauges of these names are added up. For other gauges the highest value is used, because all processes of a
#: database report the same value.
ADDED_GAUGES = tuple(family_name(metric) for metric in names.METRICS if metric.kind == "updowncounter")

#: A family's name, a sample's name, and its labels.
SampleKey = tuple[str, str, tuple[tuple[str, str], ...]]


class ProcessMetrics:
    """The metrics of this process, independent of the providers of the project."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider([reader], shutdown_on_exit=False)
        self._metrics = metrics_of(self._provider)
        self._metrics.open()

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def close(self) -> None:
        self._metrics.close()
        self._provider.shutdown()


class MergedMetrics:
    """The metrics of several processes, some of which have ended. The counts of ended processes are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[str, Metric] = {}

    def add_ended(self, process: Any) -> None:
        """Keep the counts of a process that has ended, and clear its ``metrics``, which are not counted again."""
        with self._lock:
            families = [each for each in text_string_to_metric_families(process.metrics) if each.type != "gauge"]
            process.metrics = ""
            self._ended = _merged([*self._ended.values(), *families])

    def text(self, own: str, read_others: Callable[[], Iterable[str]]) -> str:
        """Return the metrics of this process, of the other running ones, from their texts, and of the ended ones."""
        with self._lock:  # A process that ends meanwhile is counted once.
            ended, others = list(self._ended.values()), list(read_others())
        families = [family for text in (own, *others) for family in text_string_to_metric_families(text)]
        # Instead of a registry, whose collect() is all that is called.
        registry: Any = SimpleNamespace(collect=_merged([*ended, *families]).values)
        return generate_latest(registry).decode()


def _merged(families: Iterable[Metric]) -> dict[str, Metric]:
    merged: dict[str, Metric] = {}
    values: dict[str, dict[SampleKey, float]] = {}
    for family in families:
        into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        found = values.setdefault(into.name, {})
        is_added = family.type != "gauge" or family.name in ADDED_GAUGES
        for sample in family.samples:
            key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
            before = found.get(key, 0.0)
            found[key] = before + sample.value if is_added else max(before, sample.value)
    for name, found in values.items():
        merged[name].samples = [Sample(sample, dict(labels), value) for (_, sample, labels), value in found.items()]
    return merged
