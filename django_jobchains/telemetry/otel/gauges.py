"""Gauges: the slots and wake-ups of this process's workers, and figures about queues from the database."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from django_jobchains.telemetry import add_sink, names, remove_sink
from django_jobchains.telemetry.events import BlockedJobsSwept, Event
from django_jobchains.telemetry.names import MetricName
from django_jobchains.telemetry.otel.instruments import Distinct, Values
from django_jobchains.telemetry.probes import (
    CachedFigures,
    DatabaseFigures,
    PoolCount,
    QueueFigures,
    RecordFigures,
    record_peaks,
    workers,
)

#: How long stranded jobs are reported. A sweep unblocks the jobs that it finds, so the next one finds none.
STRANDED_SECONDS = 600.0

Observe = Callable[[], Iterable[Observation]]


class Gauges:
    """Gauges of a meter, between ``open`` and ``close``. They report while a worker runs in this process.

    Database gauges also report without a worker while there is an ``AlwaysGauges``.
    """

    def __init__(self, meter: Meter) -> None:
        self._is_open = False
        #: How many ``AlwaysGauges`` there are.
        self.always = 0
        #: By the alias of the database.
        self._figures: dict[str | None, CachedFigures] = {}
        self._distinct = Distinct()
        self._stranded: deque[tuple[float, int]] = deque(maxlen=1000)
        observed: dict[MetricName, Observe] = {
            names.SLOTS: self._slots,
            names.SLOT_PEAK: self._slot_peaks,
            names.HANDLERS_PEAK: self._handler_peaks,
            names.POOL_CHILDREN: self._pool_children,
            names.POOL_WAITING: self._pool_waiting,
            names.POOL_MEMORY: self._pool_memory,
            names.QUEUE_JOBS: self._queue_jobs,
            names.OLDEST_DUE: self._oldest_due,
            names.QUEUE_RECORDS: self._queue_records,
            names.OLDEST_RECORD: self._oldest_record,
            names.STRANDED: self._stranded_jobs,
            names.NOTIFIER_CONNECTED: self._notifiers,
            names.OLDEST_TRANSACTION: self._oldest_transaction,
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
        return self._totals(names.SLOTS, counts)

    def _slot_peaks(self) -> Iterable[Observation]:
        peaks = (((kind,), peak) for worker in workers() for kind, peak in worker.slot_peaks().items())
        return self._totals(names.SLOT_PEAK, peaks)

    def _handler_peaks(self) -> Iterable[Observation]:
        return self._totals(names.HANDLERS_PEAK, (((name,), peak) for name, peak in record_peaks.take().items()))

    def _pool_children(self) -> Iterable[Observation]:
        counts = (
            ((pool.level, pool.key, state), count)
            for pool in self._pools()
            for state, count in (("idle", pool.idle), ("busy", pool.busy))
        )
        return self._totals(names.POOL_CHILDREN, counts)

    def _pool_waiting(self) -> Iterable[Observation]:
        return self._totals(names.POOL_WAITING, (((pool.level, pool.key), pool.waiting) for pool in self._pools()))

    def _pool_memory(self) -> Iterable[Observation]:
        return self._totals(names.POOL_MEMORY, (((pool.level, pool.key), pool.memory_bytes) for pool in self._pools()))

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

    def _queue_jobs(self) -> Iterable[Observation]:
        counts = (((each.name, status), count) for each in self._queues() for status, count in each.jobs.items())
        return self._totals(names.QUEUE_JOBS, counts)

    def _queue_records(self) -> Iterable[Observation]:
        counts = (
            ((each.queue, each.name, state), count) for each in self._records() for state, count in each.records.items()
        )
        return self._totals(names.QUEUE_RECORDS, counts)

    def _oldest_due(self) -> Iterable[Observation]:
        return self._oldest(names.OLDEST_DUE, (((each.name,), each.oldest_due_age_seconds) for each in self._queues()))

    def _oldest_record(self) -> Iterable[Observation]:
        ages = (((each.queue, each.name), each.oldest_due_age_seconds) for each in self._records())
        return self._oldest(names.OLDEST_RECORD, ages)

    def _totals(self, metric: MetricName, counts: Iterable[tuple[Values, int]]) -> Iterable[Observation]:
        totals: Counter[tuple[tuple[str, str], ...]] = Counter()
        for values, count in counts:
            totals[tuple(self._distinct.attributes(metric, values).items())] += count
        return [Observation(count, dict(key)) for key, count in totals.items()]

    def _oldest(self, metric: MetricName, ages: Iterable[tuple[Values, float]]) -> Iterable[Observation]:
        oldest: dict[tuple[tuple[str, str], ...], float] = {}
        for values, age in ages:
            key = tuple(self._distinct.attributes(metric, values).items())
            oldest[key] = max(oldest.get(key, 0.0), age)
        return [Observation(age, dict(key)) for key, age in oldest.items()]

    def _oldest_transaction(self) -> Iterable[Observation]:
        ages = [figures.oldest_transaction_seconds for figures in self._database_figures()]
        known = [age for age in ages if age is not None]
        return [Observation(max(known))] if known else []

    def _pools(self) -> Iterator[PoolCount]:
        for worker in workers():
            yield from worker.pool_counts()

    def _queues(self) -> Iterator[QueueFigures]:
        for figures in self._database_figures():
            yield from figures.queues

    def _records(self) -> Iterator[RecordFigures]:
        for figures in self._database_figures():
            yield from figures.records

    def _database_figures(self) -> list[DatabaseFigures]:
        """Return the figures of the workers' databases or, without a worker, of the configured one."""
        databases: set[str | None] = {worker.using for worker in workers()}
        if not databases and self.always:
            databases = {None}
        found = [self._figures.setdefault(using, CachedFigures(using)).get() for using in databases]
        return [figures for figures in found if figures is not None]


class AlwaysGauges:
    """Reports the gauges about the database from this process, until ``close``."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges: Gauges | None = gauges
        gauges.always += 1

    def close(self) -> None:
        gauges, self._gauges = self._gauges, None
        if gauges is not None:
            gauges.always -= 1
