"""OpenTelemetry instruments that are updated by events. Attribute values are few: see ``Distinct``.

Counters are tallied here and read when metrics are collected, because a call of the API for each attempt would take
longer than everything else that is done for its telemetry. For the same reason, histograms record only an even share of
the durations while there are very many: see docs/decisions/0077-shares-of-durations.md.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from django_jobchains.telemetry import add_sink, events, names, remove_sink
from django_jobchains.telemetry.events import (
    AttemptAbandoned,
    AttemptEnded,
    ChainEnded,
    DetailEvent,
    Event,
    OperationEnded,
    RecordHookEnded,
)
from django_jobchains.telemetry.names import MetricName
from django_jobchains.text.errors import type_name

#: The limit of distinct values of an attribute. Others are reported as ``OTHER``.
MAX_VALUES = 500
OTHER = "_OTHER"
#: The limit of durations of a kind that are recorded in a second. If there are more, an even share is recorded.
MAX_RECORDS_PER_SECOND = 20
#: Values of attributes, in the order of the metric's attributes. "" omits the attribute.
Values = tuple[str, ...]


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


class Tally:
    """Counts events by the values of their attributes, and chooses which of their durations are recorded.

    ``add_up`` is called with the counts of each second. While there are too many events, every n-th of the same values
    is chosen. The values of the last second divide the limit between them, so that rare ones do not vanish among
    frequent ones: the first event of any values in a second is always chosen.
    """

    def __init__(self, add_up: Callable[[dict[Values, int]], object]) -> None:
        self._add_up = add_up
        self._lock = threading.Lock()
        self._limit = MAX_RECORDS_PER_SECOND
        #: The monotonic time when this second ends.
        self._ends_at = 0.0
        #: The events of this second, and every how many of them are chosen, if not each.
        self._counts: dict[Values, int] = {}
        self._every: dict[Values, int] = {}

    def add(self, values: Values) -> bool:
        """Count an event. Return whether its duration is to be recorded."""
        now = time.monotonic()
        with self._lock:
            if now >= self._ends_at:
                self._begin(now)
            before = self._counts.get(values, 0)
            self._counts[values] = before + 1
        every, limit = self._every.get(values, 1), self._limit
        if before >= every * limit:  # A burst: more than expected after the last second.
            every = before // limit + 1
        return before % every == 0

    def finish(self) -> None:
        """Pass on the counts of this second."""
        with self._lock:
            counts, self._counts = self._counts, {}
            self._add_up(counts)

    def _begin(self, now: float) -> None:
        counts, self._counts = self._counts, {}
        is_next, self._ends_at = now < self._ends_at + 1, now + 1
        self._limit = max(1, MAX_RECORDS_PER_SECOND // max(1, len(counts)))
        self._every = {values: -(-count // self._limit) for values, count in counts.items()} if is_next else {}
        self._add_up(counts)


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
        self._tallies = {kind: self._tally(kind.counter) for kind in _VALUES if kind.counter is not None}
        self._consumed, self._ended = self._tally(names.CONSUMED), self._tally(names.ATTEMPT_ENDED)
        self._hooks = Tally(lambda counts: None)
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
        kind = type(event)
        if (tally := self._tallies.get(kind)) is not None:
            is_recorded = tally.add(_VALUES[kind](event))
            if is_recorded and isinstance(event, ChainEnded):
                self._record(names.CHAIN_DURATION, event.seconds, event.type_name, event.status)
        elif take := _TAKERS.get(kind):
            take(self, event)

    def _tally(self, metric: MetricName) -> Tally:
        """Return a tally whose counts are added to a counter."""

        def add_up(counts: dict[Values, int]) -> None:
            for values, count in counts.items():
                self._count(metric, *values, count=count)

        return Tally(add_up)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        outcome = "continued" if event.continued_with and event.ending == "completed" else str(event.ending)
        is_wait_recorded = self._consumed.add((event.type_name, event.queue))
        if self._ended.add((event.type_name, outcome)):
            kind = type_name(event.exception) if event.exception is not None else ""
            self._record(names.PROCESS_DURATION, event.seconds, event.type_name, event.queue, outcome, kind)
        if is_wait_recorded and event.attempt == 1 and event.wait_seconds is not None:
            self._record(names.WAIT_DURATION, event.wait_seconds, event.type_name, event.queue)
        if event.abandoned_reason:
            self._count(names.LEASE_LOST, event.type_name, event.abandoned_reason)

    def _attempt_abandoned(self, event: AttemptAbandoned) -> None:
        if event.kind == "record":
            self._count(names.LEASE_LOST, event.type_name, event.reason)

    def _hook_ended(self, event: RecordHookEnded) -> None:
        if self._hooks.add((event.type_name, event.hook, event.error_type)):
            self._record(names.HOOK_DURATION, event.seconds, event.type_name, event.hook, event.error_type)

    def _operation_ended(self, event: OperationEnded) -> None:
        self._record(names.OPERATION_DURATION, event.seconds, event.operation, event.type_name, event.error_type)

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
        for tally in (*self._tallies.values(), self._consumed, self._ended):
            tally.finish()
        with self._lock:
            totals = dict(self._totals[metric.name]) if self._is_open else {}
        return [Observation(count, dict(attributes)) for attributes, count in totals.items()]


_TAKERS: dict[type[Event], Callable[[Instruments, Any], None]] = {
    AttemptEnded: Instruments._attempt_ended,
    AttemptAbandoned: Instruments._attempt_abandoned,
    OperationEnded: Instruments._operation_ended,
    RecordHookEnded: Instruments._hook_ended,
}


def _values_of(counter: MetricName) -> Callable[[Event], Any]:
    """Return a function that returns the values of a counter's attributes for an event."""
    get = attrgetter(*(names.EVENT_FIELDS[attribute] for attribute in counter.attributes))
    return get if len(counter.attributes) > 1 else lambda event: (get(event),)


_KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
#: By the kinds of events that have a counter.
_VALUES = {kind: _values_of(kind.counter) for kind in _KINDS if kind.counter is not None}
#: The details that are counted or recorded.
_DETAILS = [kind for kind in _KINDS if issubclass(kind, DetailEvent) and (kind in _VALUES or kind in _TAKERS)]


class _Read:
    """The callback of a counter."""

    def __init__(self, instruments: Instruments, metric: MetricName) -> None:
        self._instruments = instruments
        self._metric = metric

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._instruments.totals(self._metric)
