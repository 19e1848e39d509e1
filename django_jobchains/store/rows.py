"""The rows that go into and come out of the store. Values are JSON texts; times are aware."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
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
    #: Chains that ended, or are gone.
    finished_chains: set[UUID] = field(default_factory=set)
    #: Running jobs whose attempts have to stop.
    stopped_jobs: set[UUID] = field(default_factory=set)

    def add(self, other: "Effects") -> None:
        self.due_types |= other.due_types
        self.finished_chains |= other.finished_chains
        self.stopped_jobs |= other.stopped_jobs


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

    @property
    def key(self) -> AttemptKey:
        return self.id, self.lease_number


class HeldLease(NamedTuple):
    """The right to write the outcome of one attempt of the job with this id."""

    id: UUID
    lease_number: int
    seconds: float

    @property
    def key(self) -> AttemptKey:
        return self.id, self.lease_number


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


class ReapedJob(NamedTuple):
    id: UUID
    type_name: str
    status: str
    crashes: int


class Renewal(NamedTuple):
    """``lost``: the attempts that have no lease any more, with the abort reason. ``cancelled``: those to stop.
    ``skipped``: those whose row somebody has locked; their leases were not prolonged."""

    lost: dict[AttemptKey, str]
    cancelled: set[AttemptKey]
    skipped: Collection[AttemptKey] = frozenset()
