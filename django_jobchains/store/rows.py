"""The rows that go into and come out of the store. Values are JSON texts; times are aware."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from django_jobchains.deduplication import Deduplicate

#: One attempt: the job's id and the lease number it was claimed with.
AttemptKey = tuple[UUID, int]


@dataclass(slots=True)
class NewJob:
    """A job to create. ``run_at`` or ``delay_seconds`` from now; neither: due at once."""

    id: UUID
    chain_id: UUID
    chain_index: int
    chain_type_name: str
    type_name: str
    queue: str
    input: str
    priority: int = 0
    run_at: datetime | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    #: Chains to wait for, in the order the handler sees them; None accepts chains of any type.
    blockers: tuple[UUID, ...] = ()
    accepted_blockers: frozenset[str] | None = None
    on_blocker_failure: str = "wait"
    #: Of a first job.
    deduplicate: Deduplicate | None = None
    #: Of the chain.
    deduplication_key: str | None = None
    #: The continuation of a job that was asked to stop, and completed.
    is_cancelled: bool = False
    #: Of an id that may have been used before, and of which a stale attempt may still run.
    lease_number: int = 0
    #: Stored for the handler, as a JSON text.
    context: str | None = None


class CreatedJob(NamedTuple):
    """``created_at`` None: not created yet."""

    id: UUID
    created_at: datetime | None
    #: It existed already, or is the first of its key in a batch.
    is_deduplicated: bool = False


@dataclass(slots=True)
class Effects:
    """Who has to hear of what was written, after its commit. A method of the store adds to it."""

    #: Types of which a job may be due, or have a due date that is new.
    due_types: set[str] = field(default_factory=set)
    #: How many jobs of a type became due; those of which more is to be known are not in it.
    due_counts: dict[str, int] = field(default_factory=dict, compare=False)
    #: Chains that ended, or are gone.
    finished_chains: set[UUID] = field(default_factory=set)
    #: Running jobs whose attempts have to stop.
    stopped_jobs: set[UUID] = field(default_factory=set)

    def add(self, other: "Effects") -> None:
        for name in other.due_types:
            self._add_type(name, other.due_counts.get(name))
        self.finished_chains |= other.finished_chains
        self.stopped_jobs |= other.stopped_jobs

    def add_due(self, type_names: Iterable[str]) -> None:
        """The type of each job that became due."""
        for name, count in Counter(type_names).items():
            self._add_type(name, count)

    def add_scheduled(self, type_names: Iterable[str]) -> None:
        """The types of jobs that are due some time."""
        for name in type_names:
            self._add_type(name, None)

    def _add_type(self, name: str, count: int | None) -> None:
        if count is None:
            self.due_counts.pop(name, None)
        elif name in self.due_counts or name not in self.due_types:
            self.due_counts[name] = self.due_counts.get(name, 0) + count
        self.due_types.add(name)


class ClaimedJob(NamedTuple):
    """What an attempt needs to know of its job."""

    id: UUID
    chain_id: UUID
    chain_index: int
    chain_type_name: str
    type_name: str
    queue: str
    priority: int
    run_at: datetime
    attempt: int
    lease_number: int
    max_attempts: int | None
    input: str
    last_error: str | None
    created_at: datetime
    deduplication_key: str | None
    context: str | None = None
    crashes: int = 0

    @property
    def key(self) -> AttemptKey:
        return self.id, self.lease_number

    @property
    def failures(self) -> int:
        """The number of failed attempts if this one fails. Crashes are counted apart."""
        return self.attempt - self.crashes


class HeldLease(NamedTuple):
    """The right to write the outcome of one attempt of the job with this id."""

    id: UUID
    lease_number: int
    seconds: float

    @property
    def key(self) -> AttemptKey:
        return self.id, self.lease_number


@dataclass(slots=True)
class OpenTransaction:
    """The caller's transaction as the database knows it: ``lock`` fills it in, and later calls compare it."""

    id: str | None = None


@dataclass(slots=True)
class FinishedJob:
    """A completed attempt: an output, or the job the chain goes on with."""

    job_id: UUID
    lease_number: int
    output: str | None = None
    continuation: NewJob | None = None

    @property
    def key(self) -> AttemptKey:
        return self.job_id, self.lease_number


@dataclass(slots=True)
class FailedTry:
    """An attempt that did not complete. Texts are cleaned; ``run_at`` or ``delay_seconds`` says when to try again."""

    job_id: UUID
    lease_number: int
    error: str
    traceback: str
    run_at: datetime | None = None
    delay_seconds: float | None = None

    @property
    def key(self) -> AttemptKey:
        return self.job_id, self.lease_number


@dataclass(slots=True)
class EndedAttempt:
    """An attempt that has ended, and how: what ``finish``, ``reschedule``, ``fail`` or ``hand_back`` takes."""

    ending: Literal["completed", "rescheduled", "failed", "handed_back"]
    row: FinishedJob | FailedTry | HeldLease

    @property
    def key(self) -> AttemptKey:
        return self.row.key


class SaidLine(NamedTuple):
    """A log line. ``position`` counts from 0 in its attempt; ``said`` is a monotonic time; ``fields`` a JSON text."""

    position: int
    said: float
    level: int
    text: str
    fields: str | None


class SaidProgress(NamedTuple):
    """``fraction``: 0 to 1; ``said``: a monotonic time."""

    fraction: float
    text: str
    said: float


@dataclass(slots=True)
class Said:
    """What an attempt has said since it was last asked. Texts are cleaned."""

    job_id: UUID
    lease_number: int
    attempt: int
    lines: list[SaidLine]
    progress: SaidProgress | None = None
    #: Positions of lines that are kept no longer.
    outdated: range = range(0)

    @property
    def key(self) -> AttemptKey:
        return self.job_id, self.lease_number


class ReapedJob(NamedTuple):
    id: UUID
    type_name: str
    status: str
    crashes: int


class Renewal(NamedTuple):
    """``lost``: the attempts that have no lease any more, with the abort reason. ``cancelled``: those to stop."""

    lost: dict[AttemptKey, str]
    cancelled: set[AttemptKey]
