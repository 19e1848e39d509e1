"""The data that gauges read: the slots and listeners of this process's workers, and figures about queues."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

#: How long figures about queues are used before they are read again.
CACHE_SECONDS = 10.0
#: Figures that could not be refreshed for this long are no longer reported.
STALE_SECONDS = 60.0


class SlotCount(NamedTuple):
    """``kind``: "thread" or "async". ``state``: "idle", "busy" or "stuck". ``slots``: their number."""

    kind: str
    state: str
    slots: int


class NotifierState(NamedTuple):
    backend: str
    is_connected: bool


class QueueFigures(NamedTuple):
    """The jobs of a queue by status, counted to a limit. ``oldest_due_age_seconds``: 0 if none is due."""

    name: str
    jobs: dict[str, int]
    oldest_due_age_seconds: float


class RecordFigures(NamedTuple):
    """The records of a record worker by state, counted to a limit. ``oldest_due_age_seconds``: 0 if none is due."""

    queue: str
    name: str
    records: dict[str, int]
    oldest_due_age_seconds: float


class DatabaseFigures(NamedTuple):
    """The results of a few bounded database queries. ``oldest_transaction_seconds``: None if unknown."""

    queues: tuple[QueueFigures, ...]
    oldest_transaction_seconds: float | None
    records: tuple[RecordFigures, ...] = ()


class WorkerProbe(Protocol):
    """A running worker of this process. ``using``: the alias of its database."""

    using: str

    def slot_counts(self) -> Iterable[SlotCount]: ...
    def slot_peaks(self) -> dict[str, int]: ...
    def notifier_state(self) -> NotifierState: ...


_workers: list[WorkerProbe] = []

#: Reads the figures of an alias; None for the configured one. Set by the app config, because this package does not
#: import the store.
read_figures: Callable[[str | None], DatabaseFigures] | None = None


def add_worker(worker: WorkerProbe) -> None:
    _workers.append(worker)


def remove_worker(worker: WorkerProbe) -> None:
    if worker in _workers:
        _workers.remove(worker)


def workers() -> list[WorkerProbe]:
    return list(_workers)


class CachedFigures:
    """Figures of a database that a separate thread refreshes when they are needed and older than ``CACHE_SECONDS``.

    A reader gets the last figures, and never waits longer than ``wait_seconds`` for the database.
    """

    def __init__(self, using: str | None = None, wait_seconds: float = 0.25) -> None:
        self._using = using
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._figures: DatabaseFigures | None = None
        self._read_at = 0.0

    def get(self) -> DatabaseFigures | None:
        """Return the figures, or None if the database has not answered for a long time."""
        with self._lock:
            if self._age() > CACHE_SECONDS and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._read, name="jobchains-figures", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None and self._age() > CACHE_SECONDS:
            thread.join(self._wait_seconds)
        return self._figures if self._age() <= STALE_SECONDS else None

    def _age(self) -> float:
        return float("inf") if self._figures is None else time.monotonic() - self._read_at

    def _read(self) -> None:
        if read_figures is not None:
            self._figures, self._read_at = read_figures(self._using), time.monotonic()
