"""OpenTelemetry's metrics. Attribute values are few: see ``Distinct``.

Counters are tallied here and read when metrics are collected, because a call of the API for each attempt would take
longer than everything else that is done for its telemetry. For the same reason, histograms record only an even share of
the durations while there are very many: see docs/decisions/0077-shares-of-durations.md.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
    get_meter,
    get_meter_provider,
)

from django_jobchains import __version__
from django_jobchains.telemetry import add_sink, events, names, remove_sink
from django_jobchains.telemetry.events import (
    AttemptAbandoned,
    AttemptEnded,
    BlockedJobsSwept,
    ChainEnded,
    DetailEvent,
    Event,
    OperationEnded,
    RecordHookEnded,
    ScheduleFired,
    TicksDropped,
)
from django_jobchains.telemetry.names import MetricName
from django_jobchains.telemetry.probes import CachedMeasurements, PoolCount, record_peaks, slot_peaks, workers
from django_jobchains.text.errors import type_name

#: The limit of distinct values of an attribute. Others are reported as ``OTHER``.
MAX_VALUES = 500
OTHER = "_OTHER"
#: The limit of durations of a kind that are recorded in a second. If there are more, an even share is recorded.
MAX_RECORDS_PER_SECOND = 20
#: How long stranded jobs are reported. A sweep unblocks the jobs that it finds, so the next one finds none.
STRANDED_SECONDS = 600.0

#: Values of attributes, in the order of the metric's attributes. "" omits the attribute.
Values = tuple[str, ...]
#: What a gauge reads: values of its attributes, each with a number.
Numbers = Iterable[tuple[Values, float]]
#: Combines the numbers of several workers, or of several values that are reported as one.
Combine = Callable[[Iterable[float]], float]


class Metrics:
    """All metrics of this process, for one provider, between ``open`` and ``close``."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = get_meter(names.SCOPE, __version__, provider)
        self.gauges = Gauges(meter)
        self.instruments = Instruments(meter, self.gauges.stranded)

    def open(self) -> None:
        self.gauges.is_open = self.instruments.is_open = True
        add_sink(self.instruments, *_DETAILS)

    def close(self) -> None:
        remove_sink(self.instruments)
        self.gauges.is_open = self.instruments.is_open = False


#: By provider, because instruments cannot be removed, and a second one of the same name would hide the first.
_metrics: "WeakKeyDictionary[MeterProvider, Metrics]" = WeakKeyDictionary()


def metrics_of(provider: MeterProvider | None) -> Metrics:
    """Return the metrics for this provider, which are created once. None is the global provider."""
    provider = provider or get_meter_provider()
    return _metrics.setdefault(provider, _metrics.get(provider) or Metrics(provider))


class Distinct:
    """Limits the values of each attribute, because projects may generate names of queues and classes of errors."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def attributes(self, metric: MetricName, values: Values) -> dict[str, str]:
        pairs = zip(metric.attributes, values, strict=True)
        limited = {name: self._limited(name, value) for name, value in pairs if value}
        return {**names.CONSTANTS.get(metric, {}), **limited}

    def _limited(self, name: str, value: str) -> str:
        seen = self._seen.setdefault(name, set())
        if value not in seen:
            if len(seen) >= MAX_VALUES:
                return OTHER
            seen.add(value)
        return value


class Tally:
    """Counts events by the values of their attributes, and chooses which of their durations are recorded.

    ``add_up`` is called with the counts of each second. If there are too many events, every n-th event with the same
    values is chosen. Each combination of values gets an equal share of the limit, so that rare combinations are
    recorded too: the first event of each combination in a second is always chosen.
    """

    def __init__(self, add_up: Callable[[dict[Values, int]], object]) -> None:
        self._add_up = add_up
        self._lock = threading.Lock()
        self._limit = MAX_RECORDS_PER_SECOND
        #: The monotonic time when this second ends.
        self._ends_at = 0.0
        #: The number of events in this second, and n if only every n-th event is chosen.
        self._counts: dict[Values, int] = {}
        self._every: dict[Values, int] = {}

    def add(self, values: Values, count: int = 1) -> Sequence[int]:
        """Count events of the same values. Return the indexes of those whose durations are to be recorded."""
        now = time.monotonic()
        with self._lock:
            if now >= self._ends_at:
                self._begin(now)
            before = self._counts.get(values, 0)
            self._counts[values] = before + count
        every, limit = self._every.get(values, 1), self._limit
        expected = every * limit
        if before + count <= expected:
            return range(-before % every, count, every)
        # A burst: more than expected after the last second.
        numbers = range(before, before + count)
        return [n - before for n in numbers if not n % (every if n < expected else n // limit + 1)]

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


class Instruments:
    """A sink that keeps the counters and histograms about events. ``on_stranded``: called with a number of jobs."""

    takes_many_events = True

    def __init__(self, meter: Meter, on_stranded: Callable[[int], object]) -> None:
        self._on_stranded = on_stranded
        self._distinct = Distinct()
        self._lock = threading.Lock()
        self._totals: dict[str, Counter[tuple[tuple[str, str], ...]]] = {}
        self.is_open = False
        self._histograms: dict[str, Histogram] = {}
        for metric in names.METRICS:
            about = {"unit": metric.unit, "description": metric.description}
            if metric.kind == "counter":
                self._totals[metric.name] = Counter()
                meter.create_observable_counter(metric.name, [partial(self._observe, metric)], **about)
            elif metric.kind == "histogram":
                self._histograms[metric.name] = meter.create_histogram(
                    metric.name, **about, explicit_bucket_boundaries_advisory=names.BUCKETS
                )
        self._tallies = {kind: self._tally(kind.counter) for kind in _VALUES if kind.counter is not None}
        self._consumed, self._ended = self._tally(names.CONSUMED), self._tally(names.ATTEMPT_ENDED)
        self._tallies[RecordHookEnded] = Tally(lambda counts: None)
        #: A cache of attributes by their values, because building them for each event is slow.
        self._attributes: dict[tuple[str, Values], dict[str, str]] = {}

    def __call__(self, *events: Event) -> None:
        """Count events of one kind. There may be very many, so equal values are counted once."""
        kind = type(events[0])
        if kind not in _VALUES:
            for event in events:
                self._measured(event)
            return
        groups: defaultdict[Values, list[Any]] = defaultdict(list)
        for event in events:
            groups[_VALUES[kind](event)].append(event)
        for values, group in groups.items():
            if kind is AttemptEnded:
                self._attempts_ended(group, *values)
                continue
            for index in self._tallies[kind].add(values, len(group)):
                if kind in _DURATIONS:
                    self._record(_DURATIONS[kind], group[index].seconds, *values)

    def _measured(self, event: Event) -> None:
        if isinstance(event, OperationEnded):
            self._record(names.OPERATION_DURATION, event.seconds, event.operation, event.type_name, event.error_type)
        elif isinstance(event, AttemptAbandoned) and event.kind == "record":
            self._count(names.LEASE_LOST, event.type_name, event.reason)
        elif isinstance(event, ScheduleFired | TicksDropped):
            self._ticked(event)
        elif isinstance(event, BlockedJobsSwept) and event.found:
            self._on_stranded(event.found)

    def _tally(self, metric: MetricName) -> Tally:
        """Return a tally whose counts are added to a counter."""

        def add_up(counts: dict[Values, int]) -> None:
            for values, count in counts.items():
                self._count(metric, *values, count=count)

        return Tally(add_up)

    def _attempts_ended(self, events: list[Any], name: str, queue: str, outcome: str, abandoned_reason: str) -> None:
        for index in self._ended.add((name, outcome), len(events)):
            error = events[index].exception
            kind = "" if error is None else type_name(error)
            self._record(names.PROCESS_DURATION, events[index].seconds, name, queue, outcome, kind)
        for index in self._consumed.add((name, queue), len(events)):
            if events[index].attempt == 1 and events[index].wait_seconds is not None:
                self._record(names.WAIT_DURATION, events[index].wait_seconds, name, queue)
        if abandoned_reason:
            self._count(names.LEASE_LOST, name, abandoned_reason, count=len(events))

    def _ticked(self, event: ScheduleFired | TicksDropped) -> None:
        schedule = event.schedule_name, event.type_name
        if isinstance(event, ScheduleFired):
            self._count(names.TICKS, *schedule, "fired")
            self._record(names.SCHEDULE_DELAY, event.delay_seconds, *schedule)
        else:
            self._count(names.TICKS, *schedule, event.outcome, count=event.count)
            if event.outcome == "missed":
                self._count(names.TICKS_MISSED, *schedule, count=event.count)

    def _count(self, metric: MetricName, *values: str, count: int = 1) -> None:
        key = tuple(self._attributes_of(metric, values).items())
        with self._lock:
            self._totals[metric.name][key] += count

    def _record(self, metric: MetricName, value: float, *values: str) -> None:
        self._histograms[metric.name].record(value, self._attributes_of(metric, values))

    def _attributes_of(self, metric: MetricName, values: Values) -> dict[str, str]:
        found = self._attributes.get((metric.name, values))
        if found is None:
            found = self._distinct.attributes(metric, values)
            if OTHER not in found.values():  # Otherwise their number would grow without limit.
                self._attributes[metric.name, values] = found
        return found

    def _observe(self, metric: MetricName, options: CallbackOptions) -> Iterable[Observation]:
        for tally in (*self._tallies.values(), self._consumed, self._ended):
            tally.finish()
        with self._lock:
            totals = dict(self._totals[metric.name]) if self.is_open else {}
        return [Observation(count, dict(attributes)) for attributes, count in totals.items()]


def _values_of(counter: MetricName) -> Callable[[Event], Any]:
    """Return a function that returns the values of a counter's attributes for an event."""
    get = attrgetter(*(names.EVENT_FIELDS[attribute] for attribute in counter.attributes))
    return get if len(counter.attributes) > 1 else lambda event: (get(event),)


_KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
#: The values by which events are counted, by the kinds of events.
_VALUES: dict[type[Event], Callable[[Any], Any]] = {
    kind: _values_of(kind.counter) for kind in _KINDS if kind.counter is not None
}
_VALUES[RecordHookEnded] = attrgetter("type_name", "hook", "error_type")
_VALUES[AttemptEnded] = lambda event: (
    event.type_name,
    event.queue,
    str(event.ending),
    event.abandoned_reason,
)
#: The histograms of a share of the events.
_DURATIONS = {ChainEnded: names.CHAIN_DURATION, RecordHookEnded: names.HOOK_DURATION}
#: The details that are counted or recorded.
_DETAILS: list[type[DetailEvent]] = [OperationEnded, *(kind for kind in _VALUES if issubclass(kind, DetailEvent))]


class Gauges:
    """Slots and wake-ups of this process's workers, and figures about queues from the database.

    They report while a worker runs in this process. Those about the database also report without a worker, while there
    is an ``AlwaysGauges``.
    """

    def __init__(self, meter: Meter) -> None:
        self.is_open = False
        #: How many ``AlwaysGauges`` there are.
        self.always = 0
        #: By the alias of the database.
        self._measurements: dict[str | None, CachedMeasurements] = {}
        self._distinct = Distinct()
        self._stranded: deque[tuple[float, int]] = deque(maxlen=1000)
        observed: dict[MetricName, tuple[Callable[[], Numbers], Combine]] = {
            names.SLOTS: (self._slots, sum),
            names.SLOT_PEAK: (lambda: (((kind,), peak) for kind, peak in slot_peaks()), sum),
            names.HANDLERS_PEAK: (lambda: (((name,), peak) for name, peak in record_peaks.recent().items()), sum),
            names.POOL_CHILDREN: (
                lambda: (
                    ((each.level, each.key, state), count)
                    for each in self._pools()
                    for state, count in (("idle", each.idle), ("busy", each.busy))
                ),
                sum,
            ),
            names.POOL_WAITING: (lambda: (((each.level, each.key), each.waiting) for each in self._pools()), sum),
            names.POOL_MEMORY: (lambda: (((each.level, each.key), each.memory_bytes) for each in self._pools()), sum),
            names.STRANDED: (self._stranded_jobs, sum),
            names.NOTIFIER_CONNECTED: (self._notifiers, max),
            **{
                metric: (partial(self._measured, metric), max if metric.unit == "s" else sum)
                for metric in names.METRICS
                if names.DATABASE in metric.attributes
            },
        }
        for metric, (read, combine) in observed.items():
            is_sum = metric.kind == "updowncounter"
            create = meter.create_observable_up_down_counter if is_sum else meter.create_observable_gauge
            callback = partial(self._observe, metric, read, combine)
            create(metric.name, [callback], unit=metric.unit, description=metric.description)

    def stranded(self, count: int) -> None:
        """Record that stranded jobs were found."""
        self._stranded.append((time.monotonic(), count))

    def _observe(
        self, metric: MetricName, read: Callable[[], Numbers], combine: Combine, options: CallbackOptions
    ) -> Iterable[Observation]:
        """Combine the numbers of equal attributes into one observation."""
        found: defaultdict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
        for values, number in read() if self.is_open or self.always else ():
            found[tuple(self._distinct.attributes(metric, values).items())].append(number)
        return [Observation(combine(numbers), dict(key)) for key, numbers in found.items()]

    def _slots(self) -> Numbers:
        for worker in workers():
            for kind, state, count in worker.slot_counts():
                yield (state, kind), count

    def _pools(self) -> Iterator[PoolCount]:
        for worker in workers():
            yield from worker.pool_counts()

    def _notifiers(self) -> Numbers:
        states = [worker.notifier_state() for worker in workers()]
        return (((state.backend,), int(state.is_connected)) for state in states)

    def _stranded_jobs(self) -> Numbers:
        if not workers():
            return
        since = time.monotonic() - STRANDED_SECONDS
        yield (), sum(count for at, count in list(self._stranded) if at >= since)

    def _measured(self, metric: MetricName) -> Numbers:
        """Read from the workers' databases or, without a worker, from the configured one."""
        databases: set[str | None] = {worker.using for worker in workers()}
        if not databases and self.always:
            databases = {None}
        measurements = [self._measurements.setdefault(using, CachedMeasurements(using)) for using in databases]
        for database in measurements:  # All of them first, so that slow databases are waited for together.
            database.refresh()
        found = [each for database in measurements for each in database.get() if each.metric is metric]
        return ((each.values, each.number) for each in found)


class AlwaysGauges:
    """Reports the gauges about the database from this process, until ``close``."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges: Gauges | None = gauges
        gauges.always += 1

    def close(self) -> None:
        gauges, self._gauges = self._gauges, None
        if gauges is not None:
            gauges.always -= 1
