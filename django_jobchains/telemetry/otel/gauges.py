"""Gauges: the slots and wake-ups of this process's workers, and figures about queues from the database."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from django_jobchains.telemetry import add_sink, names, remove_sink
from django_jobchains.telemetry.events import BlockedJobsSwept, Event
from django_jobchains.telemetry.names import MetricName
from django_jobchains.telemetry.otel.instruments import Distinct, Values
from django_jobchains.telemetry.probes import CachedMeasurements, PoolCount, record_peaks, workers

#: How long stranded jobs are reported. A sweep unblocks the jobs that it finds, so the next one finds none.
STRANDED_SECONDS = 600.0

Observe = Callable[[], Iterable[Observation]]
#: Combines the numbers of several workers, or of several values that are reported as one.
Combine = Callable[[Iterable[float]], float]


class Gauges:
    """Gauges of a meter, between ``open`` and ``close``. They report while a worker runs in this process.

    Database gauges also report without a worker while there is an ``AlwaysGauges``.
    """

    def __init__(self, meter: Meter) -> None:
        self._is_open = False
        #: How many ``AlwaysGauges`` there are.
        self.always = 0
        #: By the alias of the database.
        self._measurements: dict[str | None, CachedMeasurements] = {}
        self._distinct = Distinct()
        self._stranded: deque[tuple[float, int]] = deque(maxlen=1000)
        observed: dict[MetricName, Observe] = {
            names.SLOTS: self._slots,
            names.SLOT_PEAK: self._slot_peaks,
            names.HANDLERS_PEAK: self._handler_peaks,
            names.POOL_CHILDREN: self._pool_children,
            names.POOL_WAITING: self._pool_waiting,
            names.POOL_MEMORY: self._pool_memory,
            names.QUEUE_JOBS: partial(self._measured, names.QUEUE_JOBS),
            names.OLDEST_DUE: partial(self._measured, names.OLDEST_DUE, max),
            names.QUEUE_RECORDS: partial(self._measured, names.QUEUE_RECORDS),
            names.OLDEST_RECORD: partial(self._measured, names.OLDEST_RECORD, max),
            names.STRANDED: self._stranded_jobs,
            names.NOTIFIER_CONNECTED: self._notifiers,
            names.OLDEST_TRANSACTION: partial(self._measured, names.OLDEST_TRANSACTION, max),
        }
        for metric, observe in observed.items():
            is_sum = metric.kind == "updowncounter"
            create = meter.create_observable_up_down_counter if is_sum else meter.create_observable_gauge
            create(metric.name, [self._callback(observe)], unit=metric.unit, description=metric.description)

    def open(self) -> None:
        self._is_open = True
        add_sink(self)

    def close(self) -> None:
        self._is_open = False
        remove_sink(self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, BlockedJobsSwept) and event.found:
            self._stranded.append((time.monotonic(), event.found))

    def _callback(self, observe: Observe) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observations(options: CallbackOptions) -> Iterable[Observation]:
            return observe() if self._is_open or self.always else []

        return observations

    def _slots(self) -> Iterable[Observation]:
        counts = (((state, kind), count) for worker in workers() for kind, state, count in worker.slot_counts())
        return self._observed(names.SLOTS, counts)

    def _slot_peaks(self) -> Iterable[Observation]:
        peaks = (((kind,), peak) for worker in workers() for kind, peak in worker.slot_peaks().items())
        return self._observed(names.SLOT_PEAK, peaks)

    def _handler_peaks(self) -> Iterable[Observation]:
        return self._observed(names.HANDLERS_PEAK, (((name,), peak) for name, peak in record_peaks.take().items()))

    def _pool_children(self) -> Iterable[Observation]:
        counts = (
            ((pool.level, pool.key, state), count)
            for pool in self._pools()
            for state, count in (("idle", pool.idle), ("busy", pool.busy))
        )
        return self._observed(names.POOL_CHILDREN, counts)

    def _pool_waiting(self) -> Iterable[Observation]:
        return self._observed(names.POOL_WAITING, (((pool.level, pool.key), pool.waiting) for pool in self._pools()))

    def _pool_memory(self) -> Iterable[Observation]:
        return self._observed(
            names.POOL_MEMORY, (((pool.level, pool.key), pool.memory_bytes) for pool in self._pools())
        )

    def _notifiers(self) -> Iterable[Observation]:
        states = [worker.notifier_state() for worker in workers()]
        return [
            Observation(int(state.is_connected), self._distinct.attributes(names.NOTIFIER_CONNECTED, (state.backend,)))
            for state in states
        ]

    def _stranded_jobs(self) -> Iterable[Observation]:
        since = time.monotonic() - STRANDED_SECONDS
        found = sum(count for at, count in list(self._stranded) if at >= since)
        return [Observation(found)] if workers() else []

    def _pools(self) -> Iterator[PoolCount]:
        for worker in workers():
            yield from worker.pool_counts()

    def _measured(self, metric: MetricName, combine: Combine = sum) -> Iterable[Observation]:
        """Observe the workers' databases or, without a worker, the configured one."""
        databases: set[str | None] = {worker.using for worker in workers()}
        if not databases and self.always:
            databases = {None}
        found = [self._measurements.setdefault(using, CachedMeasurements(using)).get() for using in databases]
        numbers = ((each.values, each.number) for part in found for each in part if each.metric is metric)
        return self._observed(metric, numbers, combine)

    def _observed(
        self, metric: MetricName, numbers: Iterable[tuple[Values, float]], combine: Combine = sum
    ) -> Iterable[Observation]:
        """Combine the numbers of equal attributes into one observation."""
        found: defaultdict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
        for values, number in numbers:
            found[tuple(self._distinct.attributes(metric, values).items())].append(number)
        return [Observation(combine(parts), dict(key)) for key, parts in found.items()]


class AlwaysGauges:
    """Reports the gauges about the database from this process, until ``close``."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges: Gauges | None = gauges
        gauges.always += 1

    def close(self) -> None:
        gauges, self._gauges = self._gauges, None
        if gauges is not None:
            gauges.always -= 1
