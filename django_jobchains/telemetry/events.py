"""Events as frozen dataclasses. Each class declares its log level, its line in the terminal, and its counter.

Only errors may quote payloads. All events except ``DetailEvent`` are logged.
"""

from dataclasses import dataclass, field
from datetime import datetime
from logging import DEBUG, ERROR, INFO, WARNING
from typing import ClassVar
from uuid import UUID

from django_jobchains.telemetry import names
from django_jobchains.text.humanize import span

#: The log levels of attempts by their ending. Others are warnings. Of one "abandoned", an AttemptAbandoned was logged.
_LEVELS = {
    **dict.fromkeys(("completed", "continued", "rescheduled", "requeued", "abandoned"), DEBUG),
    **dict.fromkeys(("cancelled", "handed_back"), INFO),
    "failed": ERROR,
}
_MARKS = {
    "completed": "✓", "continued": "✓", "retried": "↻", "errored": "↻", "rescheduled": "↷", "requeued": "↷",
    "failed": "✗", "cancelled": "⊘", "handed_back": "↩",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of events. ``worker`` is the id of the worker, or "" outside of workers."""

    #: The counter that each event increments. Its attributes are fields or properties: see ``names.EVENT_FIELDS``.
    counter: ClassVar[names.MetricName | None] = None
    worker: str

    @property
    def level(self) -> int:
        """The level at which the event is logged."""
        return INFO

    @property
    def verbosity(self) -> int:
        """The lowest ``--verbosity`` at which ``run_jobworker`` shows the event."""
        return 1

    @property
    def style(self) -> str:
        """The style of the line, as in Django's management commands, or ""."""
        return {WARNING: "WARNING", ERROR: "ERROR"}.get(self.level, "")

    def line(self) -> str:
        """Return what ``run_jobworker`` shows, or "" for nothing. The texts of the event must be redacted."""
        return ""


@dataclass(frozen=True, slots=True)
class DetailEvent(Event):
    """The base class of events that are created only for sinks that request them, because there may be very many."""


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """An attempt has ended. ``error``: one line, or "".

    ``ending``: "completed", "continued", "retried", "rescheduled", "failed", "cancelled", "handed_back" or "abandoned".
    For records, the new state, or "requeued" or "handed_back".
    """

    #: The primary key of a record, as a text.
    job_id: UUID | str
    #: None for a record.
    chain_id: UUID | None
    #: The name of the record registration, for a record.
    type_name: str
    #: 0 for a record that could not be loaded.
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
    #: The seconds from when the job was due until it was claimed, or None if they are unknown.
    wait_seconds: float | None = 0.0
    #: "job" or "record".
    kind: str = "job"

    @property
    def level(self) -> int:
        return _LEVELS.get(self.ending, WARNING)

    @property
    def verbosity(self) -> int:
        return 2 if self.ending in ("completed", "continued", "rescheduled", "requeued", "handed_back") else 1

    @property
    def style(self) -> str:
        return {"completed": "SUCCESS", "continued": "SUCCESS", "failed": "ERROR"}.get(self.ending, "WARNING")

    def line(self) -> str:
        if self.ending == "abandoned":  # An AttemptAbandoned was shown.
            return ""
        parts = [
            f"{_MARKS.get(self.ending, '·')} {self.type_name} {self.job_id}",
            f"attempt {self.attempt}" if self.attempt > 1 or self.error else "",
            span(self.seconds),
            f"→ {self.continued_with}" if self.continued_with else "",
            self.error.splitlines()[0][:200] if self.error else "",
        ]
        return "  ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class AttemptAbandoned(Event):
    """An attempt of this worker may no longer write. ``reason`` is its abort reason. ``type_name`` is "" for a job.

    An abandoned attempt at a job ends with an ``AttemptEnded``, which counts it. For an attempt at a record, this is
    the only event, and is counted by `jobchains.lease.lost`.
    """

    level = WARNING
    job_id: UUID | str
    reason: str
    type_name: str = ""
    kind: str = "job"

    def line(self) -> str:
        is_record = self.kind == "record"
        lost = f"{self.type_name} {self.job_id} is lost" if is_record else f"job {self.job_id} lost its lease"
        return f"! {lost}: {self.reason.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class AttemptStuck(Event):
    """A handler was asked to stop, but does not, and occupies its slot. ``stack`` is its current stack."""

    counter = names.SLOT_STUCK
    level = ERROR
    verbosity = 0
    job_id: UUID | str
    type_name: str
    reason: str
    #: The number of such slots of the worker.
    stuck: int
    stack: str
    kind: str = "job"

    def line(self) -> str:
        facts = f"{self.reason.replace('_', ' ')}, but it does not stop; {self.stuck} slots occupied"
        return f"! {self.type_name} {self.job_id} is stuck: {facts}"


@dataclass(frozen=True, slots=True)
class OutcomeDelayed(Event):
    """The outcome of an attempt could not be written for ``seconds``. The write is repeated.

    If ``error`` is "", another transaction has locked the job or record, or a job that waits for its chain.
    """

    counter = names.OUTCOME_DELAYED
    level = WARNING
    job_id: UUID | str
    type_name: str
    seconds: float
    error: str
    kind: str = "job"

    def line(self) -> str:
        reason = self.error or "another transaction has locked it, or a job that waits for it"
        return f"! {self.type_name} {self.job_id} has ended, not stored for {self.seconds:.1f} s: {reason}"


@dataclass(frozen=True, slots=True)
class JobReaped(Event):
    """A job was taken back from its worker, because its lease had expired. ``attempt``: the number of the attempt."""

    counter = names.REAPED
    style = "WARNING"
    job_id: UUID
    chain_id: UUID
    type_name: str
    attempt: int
    status: str
    crashes: int

    @property
    def outcome(self) -> str:
        return "retried" if self.status == "pending" else self.status

    @property
    def level(self) -> int:
        return ERROR if self.status == "failed" else WARNING

    def line(self) -> str:
        return f"↺ {self.type_name} {self.job_id} taken from a dead worker: {self.status}, crash {self.crashes}"


@dataclass(frozen=True, slots=True)
class RecordReset(Event):
    """A record was taken back from a worker that sent no heartbeats. ``state``: "queued", "failed" or "cancelled"."""

    counter = names.REAPED
    style = "WARNING"
    record: str
    type_name: str
    state: str
    resets: int

    @property
    def outcome(self) -> str:
        return "requeued" if self.state == "queued" else self.state

    @property
    def level(self) -> int:
        return ERROR if self.state == "failed" else WARNING

    def line(self) -> str:
        return f"↺ {self.type_name} {self.record} taken from a dead worker: {self.state}, reset {self.resets}"


@dataclass(frozen=True, slots=True)
class RecordCancelled(Event):
    """A record was cancelled before it started, because its column ``cancel`` was set."""

    counter = names.RECORD_CANCELLED
    style = "WARNING"
    record: str
    type_name: str

    def line(self) -> str:
        return f"⊘ {self.type_name} {self.record} cancelled before it started"


@dataclass(frozen=True, slots=True)
class JobExpired(Event):
    """A job had not started when it expired, and is cancelled."""

    counter = names.JOB_EXPIRED
    style = "WARNING"
    job_id: UUID
    chain_id: UUID
    type_name: str

    def line(self) -> str:
        return f"⊘ {self.type_name} {self.job_id} expired before it started"


@dataclass(frozen=True, slots=True)
class BlockedJobFailed(Event):
    """A job failed because a blocker failed or was cancelled. ``worker`` is "", because no worker has run the job."""

    counter = names.BLOCKED_FAILED
    level = ERROR
    job_id: UUID
    chain_id: UUID
    type_name: str
    error: str

    def line(self) -> str:
        return f"✗ {self.type_name} {self.job_id} failed without an attempt: {self.error}"


@dataclass(frozen=True, slots=True)
class BlockedJobsSwept(Event):
    """Blocked jobs were checked. ``found``: how many waited for nothing and were unblocked. It should be 0."""

    found: int
    job_ids: tuple[UUID, ...]

    @property
    def level(self) -> int:
        return ERROR if self.found else DEBUG


@dataclass(frozen=True, slots=True)
class ChainsPruned(Event):
    """Chains were deleted after their retention. ``count``: how many in one batch."""

    count: int


@dataclass(frozen=True, slots=True)
class ScheduleFired(Event):
    """A chain was enqueued for a tick of a schedule. ``delay_seconds``: the time since the tick."""

    level = DEBUG
    schedule_name: str
    type_name: str
    chain_id: UUID
    scheduled_for: datetime
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class TicksDropped(Event):
    """Ticks of a schedule do not fire. ``outcome``: "missed" if no worker ran, or "skipped" because of ``overlap``."""

    schedule_name: str
    type_name: str
    outcome: str
    count: int

    @property
    def level(self) -> int:
        return WARNING if self.outcome == "missed" else INFO

    def line(self) -> str:
        return f"⏰ {self.schedule_name}: {self.count} {self.outcome}"


@dataclass(frozen=True, slots=True)
class ScheduleFailed(Event):
    """The tick of a schedule could not be fired. It is tried again."""

    counter = names.SCHEDULE_FAILED
    level = ERROR
    verbosity = 0
    schedule_name: str
    error: str

    def line(self) -> str:
        return f"! schedule {self.schedule_name} cannot fire, trying again: {self.error}"


@dataclass(frozen=True, slots=True)
class LimitChanged(Event):
    """A limit was changed at run time. ``kind``: "limit" or "queue". Numbers that did not change are None."""

    kind: str
    name: str
    concurrency: int | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class ChildDied(Event):
    """A child process died while it ran an attempt. ``exitcode``: negative for the signal that killed it."""

    counter = names.CHILD_CRASHED
    level = WARNING
    job_id: UUID | str
    type_name: str
    pid: int
    exitcode: int
    error: str

    def line(self) -> str:
        return f"! {self.type_name} {self.job_id}, process {self.pid}: {self.error}"


@dataclass(frozen=True, slots=True)
class ChildKilled(Event):
    """A child process was killed, because its attempt was asked to stop for this ``reason`` and did not."""

    counter = names.CHILD_KILLED
    level = WARNING
    job_id: UUID | str
    type_name: str
    pid: int
    reason: str

    def line(self) -> str:
        return f"! {self.type_name} {self.job_id}, process {self.pid} was killed: {self.reason.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class IsolationWeakened(Event):
    """Child processes could not start, so attempts run at the level ``actual`` for now."""

    counter = names.ISOLATION_WEAKENED
    level = WARNING
    verbosity = 0
    requested: str
    actual: str
    reason: str

    def line(self) -> str:
        return f"! handlers run with isolation {self.actual!r} instead of {self.requested!r}: {self.reason}"


@dataclass(frozen=True, slots=True)
class IsolationFailed(Event):
    """Child processes of a strict isolation could not start. Its jobs are returned to the queue."""

    counter = names.ISOLATION_FAILED
    level = WARNING
    verbosity = 0
    style = "ERROR"
    requested: str
    reason: str
    retry_seconds: float

    def line(self) -> str:
        return f"! isolation {self.requested!r} failed, trying again in {self.retry_seconds:g} s: {self.reason}"


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker has started. ``queues``: None for all queues. ``using``: the alias of its database."""

    slots: int
    #: 0 if no type has an async handler.
    async_slots: int
    type_names: tuple[str, ...]
    queues: tuple[str, ...] | None
    using: str

    def line(self) -> str:
        if not self.slots:
            return f"Worker {self.worker} · maintenance only · database {self.using!r}"
        queues = ", ".join(self.queues) if self.queues else "all queues"
        slots = f"{self.slots} slots" + (f" and {self.async_slots} async" if self.async_slots else "")
        return f"Worker {self.worker} · {slots} · {queues} · database {self.using!r} · {', '.join(self.type_names)}"


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    """A worker begins to stop. ``running``: how many attempts it waits for."""

    running: int

    def line(self) -> str:
        return f"Stopping: {self.running} running."


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A worker has stopped. ``abandoned``: the number of attempts that did not end, whose jobs were requeued."""

    style = "SUCCESS"
    abandoned: int


@dataclass(frozen=True, slots=True)
class ThreadFailed(Event):
    """A thread of the worker failed. It is restarted after a pause, or if ``fatal`` is true, the worker stops."""

    counter = names.THREAD_FAILED
    level = ERROR
    verbosity = 0
    thread: str
    error: str
    failures: int
    fatal: bool

    def line(self) -> str:
        ending = "the worker gives up" if self.fatal else "trying again"
        return f"! {self.thread} failed ({self.failures} in a row), {ending}: {self.error}"


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """A supervisor started worker process ``number``. ``reason`` is "" if it does not replace another process."""

    number: int
    pid: int
    reason: str

    def line(self) -> str:
        return f"Process {self.number} started: pid {self.pid}" + (f", {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class ProcessNotStarted(Event):
    """The operating system could not start worker process ``number``."""

    counter = names.PROCESS_ENDED
    outcome = "not_started"
    level = ERROR
    verbosity = 0
    number: int
    error: str
    restart_seconds: float

    def line(self) -> str:
        return f"! process {self.number} cannot be started, retrying in {self.restart_seconds:.1f} s: {self.error}"


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    """A worker process ended. ``code``: exit code or negative signal. ``restart_seconds``: None without a restart."""

    counter = names.PROCESS_ENDED
    number: int
    pid: int
    code: int
    restart_seconds: float | None

    @property
    def outcome(self) -> str:
        return "exited" if self.code == 0 else "failed" if self.code > 0 else "killed"

    @property
    def level(self) -> int:
        return WARNING if self.code else INFO

    @property
    def verbosity(self) -> int:
        return 0 if self.code else 1

    def line(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with code {self.code}"
        restart = "" if self.restart_seconds is None else f"; restarting in {self.restart_seconds:.1f} s"
        return f"Process {self.number} ({self.pid}) {how}{restart}"


@dataclass(frozen=True, slots=True)
class ProcessNotReplaced(Event):
    """The replacement for worker process ``number`` did not become ready, so the old process continues."""

    counter = names.PROCESS_ENDED
    outcome = "not_replaced"
    level = ERROR
    verbosity = 0
    number: int
    reason: str

    def line(self) -> str:
        return f"! process {self.number} is not replaced, the old one continues: {self.reason}"


@dataclass(frozen=True, slots=True)
class SupervisorGaveUp(Event):
    """The supervisor stops, because worker processes failed to become ready many times in a row."""

    level = ERROR
    verbosity = 0
    reason: str

    def line(self) -> str:
        return f"! The supervisor gives up: {self.reason}"


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
    """A chain has ended. ``seconds``: from its creation to its end. ``status``: its status, or "expired"."""

    counter = names.CHAIN_ENDED
    chain_id: UUID
    type_name: str
    status: str
    seconds: float
    schedule_name: str | None = None


@dataclass(frozen=True, slots=True)
class ChainDeleted(DetailEvent):
    """``chains.delete`` deleted a chain. ``ChainsPruned`` reports chains that are deleted after their retention."""

    chain_id: UUID


@dataclass(frozen=True, slots=True)
class ChainCancelRequested(DetailEvent):
    """``chains.cancel`` cancelled a chain, or asked its running job to stop. ``ChainEnded`` reports its end."""

    chain_id: UUID


@dataclass(frozen=True, slots=True)
class JobUnblocked(DetailEvent):
    """The last blocker of a job has ended, so the job may run."""

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
    schedule_name: str | None = None


@dataclass(frozen=True, slots=True)
class RecordHookEnded(DetailEvent):
    """A hook of a record worker has ended. ``hook``: "pre_handle" or "post_handle". ``error_type``: its error or ""."""

    type_name: str
    hook: str
    seconds: float
    error_type: str


@dataclass(frozen=True, slots=True)
class LeasesRenewed(DetailEvent):
    """Leases were renewed in one statement. ``count``: how many."""

    count: int


@dataclass(frozen=True, slots=True)
class OperationEnded(DetailEvent):
    """A statement or transaction of the library has ended, such as a claim. ``error_type``: its error class or ""."""

    operation: str
    seconds: float
    error_type: str
    #: The name of the record worker, or "" for statements about jobs.
    type_name: str = ""


@dataclass(frozen=True, slots=True)
class NotifierConnected(DetailEvent):
    """A listener for wake-ups is connected. ``backend``: the class of the listener."""

    backend: str


@dataclass(frozen=True, slots=True)
class NotifierFailed(DetailEvent):
    """A listener for wake-ups has lost its connection, or could not connect. Workers poll until it is connected."""

    counter = names.NOTIFIER_FAILED
    backend: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True)
class ChildRecycled(DetailEvent):
    """A child process has reached a limit of its pool, such as ``max_jobs_per_worker``, and was replaced."""

    counter = names.CHILD_RECYCLED
    pool_level: str
    pool_key: str
    pid: int


@dataclass(frozen=True, slots=True)
class CodecFailed(DetailEvent):
    """The payload codec could not "encode" or "decode" a value (``operation``). ``error_type``: the error class."""

    counter = names.CODEC_FAILED
    operation: str
    error_type: str
