"""The data that gauges read: the slots and listeners of this process's workers, and figures about the database."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from logging import getLogger
from typing import NamedTuple, Protocol
from weakref import WeakSet

from django_jobchains.telemetry.names import MetricName
from django_jobchains.text.errors import log_text

logger = getLogger("django_jobchains")

#: How long the measurements of a database are used before they are read again.
CACHE_SECONDS = 10.0
#: Measurements that could not be refreshed for this long are no longer reported. Exporters collect once in 60 s by
#: default. If the database is slow, a collection reports what was read after the previous one.
STALE_SECONDS = 150.0
#: How long a peak is reported, because a process may have several readers, each with its own interval.
PEAK_SECONDS = 60.0


class SlotCount(NamedTuple):
    """``kind``: "thread", "async" or "process". ``state``: "idle", "busy" or "stuck". ``slots``: their number."""

    kind: str
    state: str
    slots: int


class PoolCount(NamedTuple):
    """The child processes of a pool, their memory, and how many attempts wait for one. ``key``: see ``Isolation``."""

    level: str
    key: str
    idle: int
    busy: int
    waiting: int
    memory_bytes: int


class NotifierState(NamedTuple):
    backend: str
    is_connected: bool


class Measurement(NamedTuple):
    """A value of a gauge about a database. ``values``: of the metric's attributes, in their order."""

    metric: MetricName
    values: tuple[str, ...]
    number: float


class WorkerProbe(Protocol):
    """A running worker of this process. ``using``: the alias of its database."""

    using: str

    def slot_counts(self) -> Iterable[SlotCount]: ...
    def slot_peaks(self) -> dict[str, int]: ...
    def pool_counts(self) -> Iterable[PoolCount]: ...
    def notifier_state(self) -> NotifierState: ...


class RecentPeaks:
    """Remembers for ``PEAK_SECONDS`` the peaks that were read from a source, which forgets them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The monotonic times of readings, with the peaks since the reading before.
        self._readings: deque[tuple[float, dict[str, int]]] = deque()

    def add(self, peaks: dict[str, int]) -> dict[str, int]:
        """Add the peaks since the last call, and return the recent ones, which include them."""
        now = time.monotonic()
        recent: dict[str, int] = {}
        with self._lock:
            self._readings.append((now, peaks))
            while self._readings[0][0] < now - PEAK_SECONDS:
                self._readings.popleft()
            for name, peak in (each for _, reading in self._readings for each in reading.items()):
                recent[name] = max(recent.get(name, 0), peak)
        return recent


#: The workers, with the peaks of their slots.
_workers: dict[WorkerProbe, RecentPeaks] = {}

#: Measures the database of an alias; None for the configured one. Set by the app config, because this package does not
#: import the store.
measure: Callable[[str | None], list[Measurement]] | None = None


def add_worker(worker: WorkerProbe) -> None:
    _workers[worker] = RecentPeaks()


def remove_worker(worker: WorkerProbe) -> None:
    _workers.pop(worker, None)


def workers() -> list[WorkerProbe]:
    return list(_workers)


def slot_peaks() -> list[tuple[str, int]]:
    """Return the recent peaks of each worker by the kind of slot."""
    return [peak for worker, recent in list(_workers.items()) for peak in recent.add(worker.slot_peaks()).items()]


class Peaks:
    """The most attempts of each type that ran at the same time in this process. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By type. An attempt without an end is forgotten when it is deleted.
        self._running: defaultdict[str, WeakSet[object]] = defaultdict(WeakSet)
        self._peaks: dict[str, int] = {}
        self._recent = RecentPeaks()

    def begin(self, type_name: str, attempt: object) -> None:
        with self._lock:
            running = self._running[type_name]
            running.add(attempt)
            self._peaks[type_name] = max(self._peaks.get(type_name, 0), len(running))

    def end(self, type_name: str, attempt: object) -> None:
        """Can be called more than once, and for an attempt that did not begin."""
        with self._lock:
            self._running[type_name].discard(attempt)

    def recent(self) -> dict[str, int]:
        with self._lock:
            taken, self._peaks = self._peaks, {name: len(running) for name, running in self._running.items()}
        return self._recent.add(taken)


#: The handlers of records that run in this process, or in its child processes.
record_peaks = Peaks()


class CachedMeasurements:
    """Measurements of a database that a separate thread refreshes, at most once in ``CACHE_SECONDS``.

    A reader gets the last ones, but waits for the thread until ``wait_seconds`` after its start. Each gauge of a
    collection is a reader, so they wait that long together: shorter than a request to the health server may take.
    """

    def __init__(self, using: str | None = None, wait_seconds: float = 1.0) -> None:
        self._using = using
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._measured: list[Measurement] = []
        # Monotonic times: of the last measurements, of the last attempt, which may have failed, and of the last wait.
        self._measured_at = self._tried_at = self._wait_until = float("-inf")

    def refresh(self) -> threading.Thread | None:
        """Start to refresh the measurements if they are old. Return the last thread that was started to do so."""
        with self._lock:
            is_running = self._thread is not None and self._thread.is_alive()
            if not is_running and time.monotonic() - self._tried_at > CACHE_SECONDS:
                self._wait_until = time.monotonic() + self._wait_seconds
                started = threading.Thread(target=self._read, name="jobchains-figures", daemon=True)
                started.start()
                self._thread = started
            return self._thread

    def get(self) -> list[Measurement]:
        """Return the measurements, or none if the database has not answered for a long time."""
        if (thread := self.refresh()) is not None:
            thread.join(max(0.0, self._wait_until - time.monotonic()))
        return self._measured if time.monotonic() - self._measured_at <= STALE_SECONDS else []

    def _read(self) -> None:
        try:
            if measure is not None:
                self._measured, self._measured_at = measure(self._using), time.monotonic()
        except Exception as error:
            logger.warning("The figures about the database could not be read for gauges: %s", log_text(error))
        self._tried_at = time.monotonic()
