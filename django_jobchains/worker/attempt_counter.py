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
from django_jobchains.store.rows import ReapedJob
from django_jobchains.store.stats import TypeTally
from django_jobchains.worker.maintenance import FailureLog, PeriodicTask

#: Attempts that end within this time are stored with the time of its middle. So an attempt that ended less than half of
#: this time from the edge of a minute may be counted in the adjacent minute.
SLICE_SECONDS = 5.0
#: The limit of sums, one per type, queue and slice, that are kept while they cannot be stored. The oldest are dropped
#: first.
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
    jobs_failed: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    def __add__(self, other: "_Sums") -> "_Sums":
        sums = _Sums(*map(add, astuple(self), astuple(other)))
        sums.longest_seconds = max(self.longest_seconds, other.longest_seconds)
        return sums


#: What is counted together: a slice of time, a type and a queue.
_Key = tuple[float, str, str]


class AttemptCounter(PeriodicTask):
    """A periodic task. Errors are logged, and the counts are kept for the next time.

    The duration of a job's attempt is the time from its claim until its outcome is stored, as on the job's page: see
    docs/decisions/0078-durations-of-attempts.md. Attempts that were rescheduled by their handler, cancelled, returned
    to the queue or abandoned are not counted.
    """

    def __init__(self, store: Store, *, worker: str, seconds: float) -> None:
        self._store = store
        self._lock = threading.Lock()
        #: The oldest first.
        self._sums: dict[_Key, _Sums] = {}
        #: How long handlers of each type take on this worker. A long attempt outweighs short ones in this average.
        self.average_seconds: dict[str, float] = {}
        text = "Worker %s could not store its attempt counts, and continues to run jobs: %s"
        self.failures: FailureLog = FailureLog(text, worker)
        self.seconds = seconds

    def ended(self, outcomes: Iterable[Outcome], since: Iterable[float | None]) -> None:
        """Count those outcomes that are written. Can be called from any thread.

        ``since``: the monotonic times of their claims; None if the lease was lost.
        """
        with self._lock:
            now = time.monotonic()
            for outcome, claimed_at in zip(outcomes, since, strict=True):
                job, ending = outcome.job, outcome.ending
                if not outcome.is_written:
                    continue
                if outcome.failed is not None and outcome.failed.kind == "crash":
                    self._add_crash(now, job.type_name, job.queue, is_last=ending is OutcomeKind.FAILED)
                elif ending in _COUNTED:
                    self._add_to_average(job.type_name, outcome.seconds)
                    seconds = max(now - (now if claimed_at is None else claimed_at), outcome.seconds)
                    self._add(now, job.type_name, job.queue, seconds, ending)

    def count(self, type_name: str, queue: str, seconds: float, ending: OutcomeKind) -> None:
        """Count an attempt that was completed, retried or failed. Can be called from any thread."""
        with self._lock:
            self._add_to_average(type_name, seconds)
            self._add(time.monotonic(), type_name, queue, seconds, ending)

    def crashed(self, jobs: Iterable[ReapedJob]) -> None:
        """Count attempts whose lease expired."""
        with self._lock:
            now = time.monotonic()
            for job in jobs:
                self._add_crash(now, job.type_name, job.queue, is_last=job.status == "failed")

    def _add_crash(self, now: float, type_name: str, queue: str, *, is_last: bool) -> None:
        sums = self._sums_of(now, type_name, queue)
        sums.crashed += 1
        sums.jobs_failed += is_last

    def _add_to_average(self, type_name: str, seconds: float) -> None:
        average = self.average_seconds.get(type_name, seconds)
        average += (seconds - average) * NEWEST_WEIGHT
        self.average_seconds[type_name] = max(seconds, average)

    def _add(self, now: float, type_name: str, queue: str, seconds: float, ending: OutcomeKind) -> None:
        sums = self._sums_of(now, type_name, queue)
        if ending in _COMPLETED:
            sums.completed += 1
        else:
            sums.failed += 1
            sums.jobs_failed += ending is OutcomeKind.FAILED
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

    def _sums_of(self, now: float, type_name: str, queue: str) -> _Sums:
        key = (now // SLICE_SECONDS, type_name, queue)
        if (sums := self._sums.get(key)) is None:
            sums = self._sums[key] = _Sums()
            if len(self._sums) > MAX_KEPT_SUMS:
                del self._sums[next(iter(self._sums))]
        return sums

    def _store_counts(self) -> None:
        with self._lock:
            taken, self._sums = self._sums, {}
        if not taken:
            return
        now = time.monotonic()
        tallies = [
            TypeTally(type_name, queue, max(now - (slice_ + 0.5) * SLICE_SECONDS, 0.0), *astuple(sums))
            for (slice_, type_name, queue), sums in taken.items()
        ]
        try:
            self._store.stats.add_counts(tallies)
        except BaseException:
            with self._lock:
                for key, sums in self._sums.items():
                    taken[key] = taken[key] + sums if key in taken else sums
                self._sums = taken
            raise
