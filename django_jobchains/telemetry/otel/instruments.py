"""OpenTelemetry instruments that are updated by events. Attribute values are few: see ``Distinct``.

Counters are tallied here and read when metrics are collected, because a call of the API for each attempt would take
longer than everything else that is done for its telemetry. For the same reason, histograms record only an even share of
the durations while there are very many: see docs/decisions/0053-telemetry.md.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import (
    AttemptEnded,
    AttemptStuck,
    ChainEnded,
    Event,
    JobCreated,
    JobReaped,
    OperationEnded,
    RecordAbandoned,
    RecordEnded,
    RecordHookEnded,
    RecordReset,
    RecordStuck,
)
from django_jobchains.telemetry.otel import names
from django_jobchains.telemetry.otel.names import MetricName
from django_jobchains.text.errors import type_name

#: The limit of distinct values of an attribute. Others are reported as ``OTHER``.
MAX_VALUES = 500
OTHER = "_OTHER"
#: The limit of durations of a kind that are recorded in a second. If there are more, an even share is recorded.
MAX_RECORDS_PER_SECOND = 20
#: Values of attributes, in the order of the metric's attributes. "" omits the attribute.
Values = tuple[str, ...]

#: The details that are counted.
_DETAILS = (ChainEnded, JobCreated, OperationEnded, RecordHookEnded)


class Distinct:
    """Limits the values of each attribute, because projects may generate names of queues and classes of errors."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def attributes(self, metric: MetricName, values: Values) -> dict[str, str]:
        pairs = zip(metric.attributes, values, strict=True)
        return {name: self._limited(name, value) for name, value in pairs if value}

    def _limited(self, name: str, value: str) -> str:
        seen = self._seen.setdefault(name, set())
        if value not in seen:
            if len(seen) >= MAX_VALUES:
                return OTHER
            seen.add(value)
        return value


class Share:
    """Chooses which durations are recorded: all, or every n-th while there are too many in this or the last second."""

    def __init__(self) -> None:
        self._second, self._count, self._every = 0, 0, 1

    def takes(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            is_next = second == self._second + 1
            self._every = max(1, -(-self._count // MAX_RECORDS_PER_SECOND)) if is_next else 1
            self._second, self._count = second, 0
        self._count += 1
        every = self._every
        if self._count >= every * MAX_RECORDS_PER_SECOND:  # A burst: more than expected after the last second.
            every = self._count // MAX_RECORDS_PER_SECOND + 1
        return self._count % every == 0


def _histogram(meter: Meter, metric: names.MetricName) -> Histogram:
    return meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.description,
        explicit_bucket_boundaries_advisory=names.BUCKETS,
    )


class Instruments:
    """A sink that keeps the metrics about events, between ``open`` and ``close``."""

    def __init__(self, meter: Meter) -> None:
        self._distinct = Distinct()
        self._lock = threading.Lock()
        self._totals: dict[str, Counter[tuple[tuple[str, str], ...]]] = {}
        self._is_open = False
        for metric in names.METRICS:
            if metric.kind == "counter":
                self._totals[metric.name] = Counter()
                meter.create_observable_counter(
                    metric.name, [_Read(self, metric)], unit=metric.unit, description=metric.description
                )
        self._histograms = {
            metric.name: _histogram(meter, metric) for metric in names.METRICS if metric.kind == "histogram"
        }
        self._attempt_share, self._chain_share = Share(), Share()
        self._hook_shares: defaultdict[str, Share] = defaultdict(Share)
        #: Attempts since the counters were read, by type, queue and outcome: one addition for each, instead of two.
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        #: A cache of attributes by their values, because building them for each event is slow.
        self._attributes: dict[tuple[str, Values], dict[str, str]] = {}
        self._keys: dict[tuple[str, Values], tuple[tuple[str, str], ...]] = {}

    def open(self) -> None:
        self._is_open = True
        add_sink(self, *_DETAILS)

    def close(self) -> None:
        self._is_open = False
        remove_sink(self)

    def __call__(self, event: Event) -> None:
        if take := _TAKERS.get(type(event)):
            take(self, event)

    def _job_created(self, event: JobCreated) -> None:
        self._count(names.SENT, event.type_name, event.queue)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        outcome = "continued" if event.continued_with and event.ending == "completed" else str(event.ending)
        if self._ended(event, outcome) and event.attempt == 1:
            self._record(names.WAIT_DURATION, event.wait_seconds, event.type_name, event.queue)
        if event.abandoned_reason:
            self._count(names.LEASE_LOST, event.type_name, event.abandoned_reason)

    def _record_ended(self, event: RecordEnded) -> None:
        if self._ended(event, event.ending) and event.attempt == 1 and event.wait_seconds is not None:
            self._record(names.WAIT_DURATION, event.wait_seconds, event.type_name, event.queue)

    def _hook_ended(self, event: RecordHookEnded) -> None:
        if self._hook_shares[event.hook].takes():
            self._record(names.HOOK_DURATION, event.seconds, event.type_name, event.hook, event.error_type)

    def _ended(self, event: AttemptEnded | RecordEnded, outcome: str) -> bool:
        """Count an attempt. Return whether its durations are recorded."""
        with self._lock:
            self._attempts[event.type_name, event.queue, outcome] += 1
        if len(self._attempts) > MAX_VALUES:
            self._add_up_attempts()
        if is_recorded := self._attempt_share.takes():
            kind = type_name(event.exception) if event.exception is not None else ""
            self._record(names.PROCESS_DURATION, event.seconds, event.type_name, event.queue, outcome, kind)
        return is_recorded

    def _add_up_attempts(self) -> None:
        """Move what was counted for each kind of attempt to the counters."""
        with self._lock:
            attempts, self._attempts = self._attempts, Counter()
        for (name, queue, outcome), count in attempts.items():
            self._count(names.CONSUMED, name, queue, count=count)
            self._count(names.ATTEMPT_ENDED, name, outcome, count=count)

    def _chain_ended(self, event: ChainEnded) -> None:
        if self._chain_share.takes():
            self._record(names.CHAIN_DURATION, event.seconds, event.type_name, event.status)

    def _operation_ended(self, event: OperationEnded) -> None:
        self._record(names.OPERATION_DURATION, event.seconds, event.operation, event.error_type)

    def _job_reaped(self, event: JobReaped) -> None:
        self._count(names.REAPED, event.type_name, "retried" if event.status == "pending" else event.status)

    def _record_reset(self, event: RecordReset) -> None:
        self._count(names.REAPED, event.type_name, "requeued" if event.state == "queued" else event.state)

    def _lost(self, event: RecordAbandoned) -> None:
        self._count(names.LEASE_LOST, event.type_name, event.reason)

    def _stuck(self, event: AttemptStuck | RecordStuck) -> None:
        self._count(names.SLOT_STUCK, event.type_name, event.reason)

    def _count(self, metric: MetricName, *values: str, count: int = 1) -> None:
        totals, key = self._totals[metric.name], (metric.name, values)
        attributes = self._keys.get(key) or self._key(metric, values)
        with self._lock:
            totals[attributes] += count

    def _key(self, metric: MetricName, values: Values) -> tuple[tuple[str, str], ...]:
        attributes = tuple(self._attributes_of(metric, values).items())
        if OTHER not in dict(attributes).values():
            self._keys[metric.name, values] = attributes
        return attributes

    def _record(self, metric: MetricName, value: float, *values: str) -> None:
        self._histograms[metric.name].record(value, self._attributes_of(metric, values))

    def _attributes_of(self, metric: MetricName, values: Values) -> dict[str, str]:
        found = self._attributes.get((metric.name, values))
        if found is None:
            found = self._distinct.attributes(metric, values)
            if OTHER not in found.values():  # Otherwise their number would grow without limit.
                self._attributes[metric.name, values] = found
        return found

    def totals(self, metric: MetricName) -> Iterable[Observation]:
        self._add_up_attempts()
        with self._lock:
            totals = dict(self._totals[metric.name]) if self._is_open else {}
        return [Observation(count, dict(attributes)) for attributes, count in totals.items()]


_TAKERS: dict[type[Event], Callable[[Instruments, Any], None]] = {
    JobCreated: Instruments._job_created,
    AttemptEnded: Instruments._attempt_ended,
    RecordEnded: Instruments._record_ended,
    ChainEnded: Instruments._chain_ended,
    OperationEnded: Instruments._operation_ended,
    RecordHookEnded: Instruments._hook_ended,
    JobReaped: Instruments._job_reaped,
    RecordReset: Instruments._record_reset,
    RecordAbandoned: Instruments._lost,
    AttemptStuck: Instruments._stuck,
    RecordStuck: Instruments._stuck,
}


class _Read:
    """The callback of a counter."""

    def __init__(self, instruments: Instruments, metric: MetricName) -> None:
        self._instruments = instruments
        self._metric = metric

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._instruments.totals(self._metric)
