"""Every fact worth seeing, each a frozen event. Payloads are not in them."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Event:
    """``worker`` is the id of the worker it is about."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    slots: int
    #: 0 without a type whose handler is async.
    async_slots: int
    type_names: tuple[str, ...]
    queues: tuple[str, ...] | None
    using: str


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    running: int


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """``abandoned``: attempts that did not end in time; their jobs were handed back."""

    abandoned: int


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """``ending`` as in ``attempts.Ending``; ``error`` is one line, "" when the job is completed."""

    job_id: UUID
    chain_id: UUID
    type_name: str
    attempt: int
    ending: str
    seconds: float
    error: str
    #: The type the chain goes on with, if it does.
    continued_with: str | None


@dataclass(frozen=True, slots=True)
class JobReaped(Event):
    """A job was taken back whose lease had run out."""

    job_id: UUID
    type_name: str
    status: str
    crashes: int


@dataclass(frozen=True, slots=True)
class BlockedJobsSwept(Event):
    """Blocked jobs were looked at. ``found`` of them waited for nothing and were freed: it must stay 0."""

    found: int
    job_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class ChainsPruned(Event):
    """Chains that are kept no longer were deleted, so many in one round."""

    count: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """An attempt of this worker may no longer write; ``reason`` is its abort reason."""

    job_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeDelayed(Event):
    """The outcome of an attempt could not be written for ``seconds`` and is tried again.

    Someone else has locked the job, or a job that waits for its chain; ``error`` is "" or says what happened instead.
    """

    job_id: UUID
    type_name: str
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class AttemptStuck(Event):
    """A handler was asked to stop and does not: its slot is lost to it. ``stack`` says where it is."""

    job_id: UUID
    type_name: str
    reason: str
    #: Slots of the worker that are held so.
    stuck: int
    stack: str


@dataclass(frozen=True, slots=True)
class ThreadFailed(Event):
    """A part of the worker failed and is tried again after a wait; ``fatal``: the worker gives up."""

    thread: str
    error: str
    failures: int
    fatal: bool


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """A supervisor started worker process ``number``; ``reason`` is "" when it is not in the place of another."""

    number: int
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessNotStarted(Event):
    """The system could not start worker process ``number``."""

    number: int
    error: str
    restart_seconds: float


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    """``code``: its exit code, negative when a signal killed it. ``restart_seconds``: None when it stays ended."""

    number: int
    pid: int
    code: int
    restart_seconds: float | None


@dataclass(frozen=True, slots=True)
class ProcessNotReplaced(Event):
    """What was started in the place of worker process ``number`` did not begin to work: the old one goes on."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class SupervisorGaveUp(Event):
    """No worker process began to work, many times in a row."""

    reason: str
