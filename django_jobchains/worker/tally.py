"""A worker counts the attempts that it ends, and tells the counts to the database about once per heartbeat.

What is not told yet is lost when the process is killed; what was written, though the answer was lost, is told twice. So
the counts are for people to look at, and nothing is decided by them.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import getLogger

from django_jobchains.attempts import Ending, Outcome
from django_jobchains.hygiene import tidy
from django_jobchains.store import ReapedJob, Store, TypeTally
from django_jobchains.texts import log_text

logger = getLogger("django_jobchains")

#: Ends within so many seconds are told as of one moment, the middle: an attempt may be counted in the minute beside its
#: own when it ended half as many seconds from the edge.
SLICE_SECONDS = 5.0
#: Sums, of a type and a slice, that are kept while they cannot be told; the oldest are given up first.
MOST_KEPT = 10_000

# Looked up once: each attempt passes here.
_COMPLETED, _FAILED = Ending.COMPLETED, (Ending.RESCHEDULED, Ending.FAILED)


@dataclass(slots=True)
class _Sums:
    completed: int = 0
    failed: int = 0
    crashed: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0


class AttemptTally:
    """A part of the rounds. What goes wrong with it is told and harms nothing: the counts are kept for the next time.

    What was cancelled, handed back or abandoned does not count.
    """

    def __init__(self, store: Store, *, worker: str, seconds: float) -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        #: By the slice of time and the type; the oldest in front.
        self._sums: dict[tuple[float, str], _Sums] = {}
        #: The last telling failed.
        self.is_failing = False
        self.seconds = seconds

    def ended(self, outcome: Outcome) -> None:
        """From any thread: this outcome was written."""
        is_completed, seconds = outcome.ending is _COMPLETED, outcome.seconds
        if not is_completed and outcome.ending not in _FAILED:
            return
        with self._lock:
            sums = self._sums_of(outcome.job.type_name)
            if is_completed:
                sums.completed += 1
            else:
                sums.failed += 1
            sums.seconds += seconds
            if seconds > sums.longest_seconds:
                sums.longest_seconds = seconds

    def reaped(self, jobs: Iterable[ReapedJob]) -> None:
        """These attempts ended with their worker, or without it, at some time before."""
        with self._lock:
            for job in jobs:
                self._sums_of(job.type_name).crashed += 1

    def step(self) -> bool:
        """Whether there is more to do: never, what could not be told waits for the next time."""
        try:
            self._tell()
            self._store.prune_counts()
            self.is_failing = False
        except Exception as error:
            self._failed(error)
        return False

    def _sums_of(self, type_name: str) -> _Sums:
        key = (time.monotonic() // SLICE_SECONDS, type_name)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = _Sums()
            if len(self._sums) > MOST_KEPT:
                del self._sums[next(iter(self._sums))]
        return sums

    def _tell(self) -> None:
        with self._lock:
            taken, self._sums = self._sums, {}
        if not taken:
            return
        try:
            self._store.add_counts(_tallies(taken))
        except BaseException:
            self._take_back(taken)
            raise

    def _take_back(self, taken: dict[tuple[float, str], _Sums]) -> None:
        with self._lock:
            for key, sums in self._sums.items():
                taken[key] = _together(taken[key], sums) if key in taken else sums
            self._sums = taken

    def _failed(self, error: Exception) -> None:
        """Told once: a table that is missing stays so, and a database that is away is reported by others."""
        if not self.is_failing:
            text = "Worker %s could not tell how many attempts ended; its work goes on: %s"
            logger.warning(text, self._worker, log_text(error))
        self.is_failing = True
        tidy()


def _tallies(taken: dict[tuple[float, str], _Sums]) -> list[TypeTally]:
    now = time.monotonic()
    return [
        TypeTally(
            type_name,
            max(now - (slice_ + 0.5) * SLICE_SECONDS, 0.0),
            sums.completed,
            sums.failed,
            sums.crashed,
            sums.seconds,
            sums.longest_seconds,
        )
        for (slice_, type_name), sums in taken.items()
    ]


def _together(first: _Sums, second: _Sums) -> _Sums:
    return _Sums(
        first.completed + second.completed,
        first.failed + second.failed,
        first.crashed + second.crashed,
        first.seconds + second.seconds,
        max(first.longest_seconds, second.longest_seconds),
    )
