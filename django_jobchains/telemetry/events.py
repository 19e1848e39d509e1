"""Events as frozen dataclasses. Only errors may quote payloads. All events except ``DetailEvent`` are logged."""

from dataclasses import dataclass, field
from uuid import UUID

from django_jobchains.telemetry import names
from django_jobchains.telemetry.record_events import (
    RecordAbandoned,
    RecordCanceled,
    RecordEnded,
    RecordHookEnded,
    RecordReset,
    RecordStuck,
)
from django_jobchains.telemetry.worker_events import (
    ChildRecycled,
    CodecFailed,
    DetailEvent,
    Event,
    IsolationFailed,
    IsolationWeakened,
    LeasesRenewed,
    NotifierConnected,
    NotifierFailed,
    OperationEnded,
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    ProcessStarted,
    SupervisorGaveUp,
    ThreadFailed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)

__all__ = (
    "AttemptAbandoned",
    "AttemptEnded",
    "AttemptStarted",
    "AttemptStuck",
    "BlockedJobFailed",
    "BlockedJobsSwept",
    "ChainCancelRequested",
    "ChainCreated",
    "ChainDeleted",
    "ChainEnded",
    "ChainsPruned",
    "ChildCrashed",
    "ChildKilled",
    "ChildRecycled",
    "CodecFailed",
    "CompletedWithoutWorker",
    "DetailEvent",
    "Event",
    "IsolationFailed",
    "IsolationWeakened",
    "JobCreated",
    "JobReaped",
    "JobRescheduled",
    "JobRetried",
    "JobTriggered",
    "JobUnblocked",
    "LeasesRenewed",
    "NotifierConnected",
    "NotifierFailed",
    "OperationEnded",
    "OutcomeDelayed",
    "ProcessEnded",
    "ProcessNotReplaced",
    "ProcessNotStarted",
    "ProcessStarted",
    "RecordAbandoned",
    "RecordCanceled",
    "RecordEnded",
    "RecordHookEnded",
    "RecordReset",
    "RecordStuck",
    "SupervisorGaveUp",
    "ThreadFailed",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
)


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """An attempt has ended. ``error``: one line, or "" without an error.

    ``ending``: "completed", "retried", "rescheduled", "failed", "cancelled", "handed_back" or "abandoned".
    """

    job_id: UUID
    chain_id: UUID
    type_name: str
    attempt: int
    ending: str
    seconds: float
    error: str
    #: The type of the continuation, if there is one.
    continued_with: str | None
    #: The error of a failed attempt, not redacted. Its traceback has no local variables.
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    queue: str = ""
    #: Why the attempt could not write, if ``ending`` is "abandoned".
    abandoned_reason: str = ""
    #: The seconds from when the job was due until it was claimed.
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobReaped(Event):
    """A job whose lease had run out was taken from its worker. ``attempt``: the number of the attempt that lost it."""

    counter = names.REAPED
    job_id: UUID
    chain_id: UUID
    type_name: str
    attempt: int
    status: str
    crashes: int

    @property
    def outcome(self) -> str:
        return "retried" if self.status == "pending" else self.status


@dataclass(frozen=True, slots=True)
class BlockedJobFailed(Event):
    """A job failed because a blocker failed or was cancelled. ``worker`` is "", because no worker has run the job."""

    counter = names.BLOCKED_FAILED
    job_id: UUID
    chain_id: UUID
    type_name: str
    error: str


@dataclass(frozen=True, slots=True)
class BlockedJobsSwept(Event):
    """Blocked jobs were checked. ``found`` of them waited for nothing and were unblocked: it should always be 0."""

    found: int
    job_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class ChainsPruned(Event):
    """Chains were deleted at the end of their retention. ``count``: how many in one round."""

    count: int


@dataclass(frozen=True, slots=True)
class AttemptAbandoned(Event):
    """An attempt of this worker may no longer write. ``reason`` is its abort reason."""

    job_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeDelayed(Event):
    """The outcome of an attempt could not be written for ``seconds``, and is retried.

    If ``error`` is "", another transaction has locked the job, or a job that waits for its chain.
    """

    counter = names.OUTCOME_DELAYED
    job_id: UUID
    type_name: str
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class AttemptStuck(Event):
    """A handler was asked to stop, but does not, and occupies its slot. ``stack`` is its current stack."""

    counter = names.SLOT_STUCK
    job_id: UUID
    type_name: str
    reason: str
    #: The number of such slots of the worker.
    stuck: int
    stack: str


@dataclass(frozen=True, slots=True)
class ChildCrashed(Event):
    """A child process died while it ran an attempt. ``exitcode``: negative for the signal that killed it.

    ``job_id``: for a record, its primary key as text.
    """

    counter = names.CHILD_CRASHED
    job_id: UUID | str
    type_name: str
    pid: int
    exitcode: int
    error: str


@dataclass(frozen=True, slots=True)
class ChildKilled(Event):
    """A child process was ended because its attempt was asked to stop for this ``reason``, and did not.

    ``job_id``: for a record, its primary key as text.
    """

    counter = names.CHILD_KILLED
    job_id: UUID | str
    type_name: str
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobCreated(DetailEvent):
    """A job was created. ``chain_index`` is 0 for the first job of a chain. ``is_blocked``: it waits for blockers."""

    counter = names.SENT
    job_id: UUID
    chain_id: UUID
    type_name: str
    queue: str
    chain_index: int
    is_blocked: bool


@dataclass(frozen=True, slots=True)
class ChainCreated(DetailEvent):
    """A chain was created, with its first job, which has the same id."""

    chain_id: UUID
    type_name: str


@dataclass(frozen=True, slots=True)
class ChainEnded(DetailEvent):
    """A chain has ended. ``seconds``: from its creation to its end, by the database's clock."""

    counter = names.CHAIN_ENDED
    chain_id: UUID
    type_name: str
    status: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ChainDeleted(DetailEvent):
    """A chain was deleted by ``chains.delete``. ``ChainsPruned`` reports chains at the end of their retention."""

    chain_id: UUID


@dataclass(frozen=True, slots=True)
class ChainCancelRequested(DetailEvent):
    """``chains.cancel`` cancelled a chain, or asked its running job to stop. ``ChainEnded`` reports its end."""

    chain_id: UUID


@dataclass(frozen=True, slots=True)
class JobUnblocked(DetailEvent):
    """The last blocker of a job has ended, so that the job may run."""

    job_id: UUID
    type_name: str


@dataclass(frozen=True, slots=True)
class JobTriggered(DetailEvent):
    """``chains.run_now`` made a job due. ``target_id``: the id that was given, of a chain or a job."""

    target_id: UUID


@dataclass(frozen=True, slots=True)
class JobRescheduled(DetailEvent):
    """``chains.reschedule`` moved a job. ``target_id``: the id that was given, of a chain or a job.

    A handler that reschedules its own job is an ``AttemptEnded``.
    """

    target_id: UUID


@dataclass(frozen=True, slots=True)
class JobRetried(DetailEvent):
    """``chains.retry`` made a failed or cancelled job due. Retries after an error are reported by ``AttemptEnded``."""

    job_id: UUID


@dataclass(frozen=True, slots=True)
class CompletedWithoutWorker(DetailEvent):
    """A job was completed by ``chains.complete`` or ``current_job``. ``continued_with``: the next type, or None."""

    job_id: UUID
    chain_id: UUID
    type_name: str
    continued_with: str | None


@dataclass(frozen=True, slots=True)
class AttemptStarted(DetailEvent):
    """An attempt begins. ``wait_seconds``: from when the job was due until it was claimed."""

    job_id: UUID
    chain_id: UUID
    type_name: str
    queue: str
    attempt: int
    wait_seconds: float
