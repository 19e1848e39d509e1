"""The pools in which attempts run, and the lanes: job types that are claimed together for a pool."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.store import ClaimedJob, PoolState
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.held_leases import HeldLeases
from django_jobchains.worker.isolated.child_run import ChildRun
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.isolated.isolated_record import IsolatedRecordAttempt

#: While attempts are shorter than this, jobs are claimed ahead of free slots, for this time at most. Claims of one or
#: two jobs cost the database many times as much per job as claims of twenty.
AHEAD_SECONDS = 0.05
MAX_AHEAD = 100
#: A claimed job that has waited this long for a slot is handed back, because other workers may be idle.
PATIENCE_SECONDS = 0.5
#: Weight of the newest attempt in the average.
NEWEST_WEIGHT = 0.1

AnyAttempt = JobAttempt | BatchAttempt | IsolatedAttempt | RecordAttempt
#: What a slot runs in a child process.
ChildTask = ChildRun | IsolatedRecordAttempt
#: What a slot runs: an attempt, or the attempts of a child process.
SlotTask = JobAttempt | BatchAttempt | ChildRun | RecordAttempt
Claimed = tuple[ClaimedJob, AbortSignal]
TaskT = TypeVar("TaskT")


def single(claimed: Sequence[Claimed], environment: Environment) -> JobAttempt:
    ((job, signal),) = claimed
    return JobAttempt(job, environment, signal)


class Backlog(deque[tuple[float, TaskT]]):
    """Claimed attempts that wait for a slot, each with the monotonic time when its wait began."""

    #: How long attempts take. Until they prove to be short, no job is claimed ahead.
    average_seconds = AHEAD_SECONDS

    def put(self, attempts: Iterable[TaskT]) -> None:
        now = time.monotonic()
        self.extend((now, attempt) for attempt in attempts)

    def take_back(self, waited_seconds: float) -> list[TaskT]:
        """Remove and return all attempts, if the first of them has waited this long."""
        if not self or time.monotonic() - self[0][0] < waited_seconds:
            return []
        attempts = [attempt for _, attempt in self]
        self.clear()
        self.average_seconds = max(self.average_seconds, AHEAD_SECONDS)
        return attempts

    def count_seconds(self, seconds: float, weight: float = NEWEST_WEIGHT) -> None:
        """Add the duration of an attempt to the average, or the average duration of several with their weight."""
        self.average_seconds += (seconds - self.average_seconds) * weight

    def ahead(self, slots: int) -> int:
        """Return how many jobs to claim ahead of this number of slots."""
        if self.average_seconds >= AHEAD_SECONDS:
            return 0
        return min(int(slots * AHEAD_SECONDS / self.average_seconds), MAX_AHEAD)


class SlotPool:
    """Runs attempts: on threads, on an event loop or in child processes. ``count``: how many at once."""

    count = 0

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.backlog: Backlog[Any] = Backlog()
        self._changed = threading.Condition()

    @property
    def running(self) -> int:
        """The number of running attempts, including stuck ones, that no other pool counts."""
        return 0

    @property
    def stuck(self) -> int:
        """The number of attempts that were asked to stop and have not stopped."""
        return 0

    @property
    def is_out_of_slots(self) -> bool:
        """Whether every slot is held by a stuck attempt, and no more slots may be replaced."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        raise NotImplementedError

    @property
    def lag_seconds(self) -> float:
        """How long an event loop has not advanced."""
        return 0.0

    @property
    def closed_seconds(self) -> float:
        """How long child processes will not be started."""
        return 0.0

    def start(self) -> None:
        """Start the threads of the pool."""

    def states(self) -> tuple[PoolState, ...]:
        """Return the state of its child processes."""
        return ()

    def attempts(self) -> Sequence[AnyAttempt]:
        """Return the running attempts."""
        raise NotImplementedError

    def room(self) -> int:
        """Return how many jobs to claim now."""
        raise NotImplementedError

    def free(self) -> int:
        """Return how many attempts could start at once."""
        return self.room()

    def record_attempt(self, *args: Any, **options: Any) -> RecordAttempt:
        return RecordAttempt(*args, **options)

    def put(self, attempts: Sequence[Any]) -> None:
        """Run attempts as soon as there are slots."""
        raise NotImplementedError

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> Sequence[AnyAttempt | SlotTask]:
        """Remove and return the attempts that wait for a slot, if the first of them has waited this long."""
        with self._changed:
            return self.backlog.take_back(waited_seconds)

    def close(self) -> None:
        """Start no more attempts. Waiting attempts were taken back before."""

    def join(self, deadline: float) -> list[str]:
        """Wait for running attempts. Returns the names of those that still run at the deadline."""
        return []

    def write_off(self, attempt: Any) -> bool:
        """Mark an attempt as stuck, and free its slot if that is allowed. Returns False if there is nothing to do."""
        return False

    def stack_of(self, attempt: Any) -> str:
        """Return where an attempt is, as a traceback; "" if it has ended."""
        return ""

    def check_lag(self) -> None:
        """Report what blocks an event loop."""


@dataclass(frozen=True)
class Lane:
    """Job types that are claimed together. ``leases``: the seconds of a lease by type. ``batch_limit``: the number of
    jobs that one attempt can take, if it takes several. ``make``: creates an attempt for claimed jobs."""

    pool: SlotPool
    leases: Mapping[str, float]
    batch_limit: int | None = None
    make: Callable[[Sequence[Claimed], Environment], AnyAttempt] = single

    def room(self) -> int:
        """Return how many jobs to claim now."""
        if self.batch_limit is None:
            return self.pool.room()
        return self.batch_limit if self.pool.free() else 0

    def has_slots(self) -> bool:
        return self.room() > 0

    def free(self) -> int:
        """Return how many jobs could start at once."""
        return self.pool.free() * (self.batch_limit or 1)


def release(attempt: AnyAttempt | SlotTask, leases: HeldLeases, error: BaseException) -> None:
    """Release what an attempt holds that ended without an outcome, so that its job or record is taken back."""
    leases.release(job.key for job in attempt.jobs)
    if isinstance(attempt, RecordAttempt):
        attempt.abandon(error)
