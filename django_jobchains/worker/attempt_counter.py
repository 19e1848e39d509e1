"""Counts the attempts that this worker ends, and adds the counts to the database about once per heartbeat.

Counts that are not stored yet are lost when the process is killed; if the reply to a write is lost, they are added
twice. So the stored counts are only for display, and no decision depends on them.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from operator import add

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.store import Store
from django_jobchains.store.stats import TypeTally
from django_jobchains.worker.maintenance import FailureLog, PeriodicTask

#: Attempts that end within this time are stored with the time of its middle. So an attempt that ended less than half of
#: this time from the edge of a minute may be counted in the adjacent minute.
SLICE_SECONDS = 5.0
#: The limit of sums, one per type and slice, that are kept while they cannot be stored. The oldest are dropped first.
MAX_KEPT_SUMS = 10_000
#: Weight of the newest attempt in the average of its type.
NEWEST_WEIGHT = 0.2

# Looked up once, because every attempt is counted.
_COMPLETED = (OutcomeKind.COMPLETED, OutcomeKind.CONTINUED)
_COUNTED = (*_COMPLETED, OutcomeKind.RETRIED, OutcomeKind.FAILED)


@dataclass(slots=True)
class _Sums:
    """The counts and seconds of a ``TypeTally``, in its order."""

    completed: int = 0
    failed: int = 0
    crashed: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0


class AttemptCounter(PeriodicTask):
    """A periodic task. Errors are logged, and the counts are kept for the next time.

    Attempts that were rescheduled by their handler, cancelled, handed back or abandoned are not counted.
    """

    def __init__(self, store: Store, *, worker: str, seconds: float) -> None:
        self._store = store
        self._lock = threading.Lock()
        #: By slice of time and type, the oldest first.
        self._sums: dict[tuple[float, str], _Sums] = {}
        #: How long attempts of each type take on this worker. A long attempt outweighs short ones in this average.
        self.average_seconds: dict[str, float] = {}
        text = "Worker %s could not store its attempt counts, and continues to run jobs: %s"
        self.failures: FailureLog = FailureLog(text, worker)
        self.seconds = seconds

    def ended(self, outcomes: Iterable[Outcome]) -> None:
        """Count those outcomes that are written. Can be called from any thread."""
        with self._lock:
            slice_ = time.monotonic() // SLICE_SECONDS
            for outcome in outcomes:
                if not outcome.is_written:
                    continue
                if outcome.failed is not None and outcome.failed.kind == "crash":
                    self._sums_of(slice_, outcome.job.type_name).crashed += 1
                elif outcome.ending in _COUNTED:
                    self._add(slice_, outcome.job.type_name, outcome.seconds, outcome.ending in _COMPLETED)

    def count(self, type_name: str, seconds: float, *, is_completed: bool) -> None:
        """Count an attempt that was completed or failed. Can be called from any thread."""
        with self._lock:
            self._add(time.monotonic() // SLICE_SECONDS, type_name, seconds, is_completed)

    def crashed(self, type_names: Iterable[str]) -> None:
        """Count attempts whose process died, or whose lease expired."""
        with self._lock:
            slice_ = time.monotonic() // SLICE_SECONDS
            for type_name in type_names:
                self._sums_of(slice_, type_name).crashed += 1

    def _add(self, slice_: float, type_name: str, seconds: float, is_completed: bool) -> None:
        average = self.average_seconds.get(type_name, seconds)
        average += (seconds - average) * NEWEST_WEIGHT
        self.average_seconds[type_name] = max(seconds, average)
        sums = self._sums_of(slice_, type_name)
        if is_completed:
            sums.completed += 1
        else:
            sums.failed += 1
        sums.seconds += seconds
        if seconds > sums.longest_seconds:
            sums.longest_seconds = seconds

    def step(self) -> bool:
        """Store the counts. Returns False, because counts that cannot be stored wait for the next time."""
        try:
            self._store_counts()
            self._store.stats.prune_counts()
            self.failures.succeeded()
        except Exception as error:
            self.failures.failed(error)
        return False

    def _sums_of(self, slice_: float, type_name: str) -> _Sums:
        if (sums := self._sums.get((slice_, type_name))) is None:
            sums = self._sums[slice_, type_name] = _Sums()
            if len(self._sums) > MAX_KEPT_SUMS:
                del self._sums[next(iter(self._sums))]
        return sums

    def _store_counts(self) -> None:
        with self._lock:
            taken, self._sums = self._sums, {}
        if not taken:
            return
        try:
            self._store.stats.add_counts(_tallies(taken))
        except BaseException:
            self._take_back(taken)
            raise

    def _take_back(self, taken: dict[tuple[float, str], _Sums]) -> None:
        with self._lock:
            for key, sums in self._sums.items():
                taken[key] = _together(taken[key], sums) if key in taken else sums
            self._sums = taken


def _tallies(taken: dict[tuple[float, str], _Sums]) -> list[TypeTally]:
    now = time.monotonic()
    return [
        TypeTally(type_name, max(now - (slice_ + 0.5) * SLICE_SECONDS, 0.0), *astuple(sums))
        for (slice_, type_name), sums in taken.items()
    ]


def _together(first: _Sums, second: _Sums) -> _Sums:
    sums = _Sums(*map(add, astuple(first), astuple(second)))
    sums.longest_seconds = max(first.longest_seconds, second.longest_seconds)
    return sums
