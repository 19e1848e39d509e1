"""Lanes: job types that are claimed together, with the pool in which their attempts run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django_jobchains.attempts.attempt import Attempt, Environment
from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.leases import HeldLeases
from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import ClaimedJob, RecordKey
from django_jobchains.worker.isolated.child_run import ChildRun
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.isolated.isolated_record import IsolatedRecordAttempt

AnyAttempt = Attempt | BatchAttempt | IsolatedAttempt | RecordAttempt
#: What a slot runs in a child process.
ChildTask = ChildRun | IsolatedRecordAttempt
#: What a slot runs: an attempt, or the attempts of a child process.
SlotTask = Attempt | BatchAttempt | ChildRun | RecordAttempt
Claimed = tuple[ClaimedJob, AbortSignal]


def single(claimed: Sequence[Claimed], environment: Environment) -> Attempt:
    ((job, signal),) = claimed
    return Attempt(job, environment, signal)


class SlotPool(Protocol):
    """Runs attempts: on threads, on an event loop or in child processes. ``count``: how many at once."""

    count: int

    @property
    def running(self) -> int: ...
    @property
    def stuck(self) -> int: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def has_waiting(self) -> bool: ...
    @property
    def is_out_of_slots(self) -> bool: ...
    def start(self) -> None: ...
    def attempts(self) -> Sequence[AnyAttempt]: ...
    def room(self) -> int: ...
    def free(self) -> int: ...
    def record_attempt(self, kind: RecordType, record: Any, key: RecordKey, **options: Any) -> RecordAttempt: ...
    def put(self, attempts: Sequence[Any]) -> None: ...
    def take_back(self, waited_seconds: float = ...) -> Sequence[AnyAttempt | SlotTask]: ...
    def close(self) -> None: ...
    def join(self, deadline: float) -> list[str]: ...
    def write_off(self, attempt: Any) -> bool: ...
    def stack_of(self, attempt: Any) -> str: ...


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
