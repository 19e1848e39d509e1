"""Events of workers and their parts, and the base classes of events."""

from dataclasses import dataclass
from typing import ClassVar

from django_jobchains.telemetry import names
from django_jobchains.telemetry.names import MetricName


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of events. ``worker`` is the id of the worker, or "" outside of workers."""

    #: The counter that each event increments. Its attributes are fields or properties: see ``names.EVENT_FIELDS``.
    counter: ClassVar[MetricName | None] = None
    worker: str


@dataclass(frozen=True, slots=True)
class DetailEvent(Event):
    """The base class of events that are created only for sinks that request them, because there may be very many."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker has started. ``queues``: None for all queues. ``using``: the alias of its database."""

    slots: int
    #: 0 if no type has an async handler.
    async_slots: int
    type_names: tuple[str, ...]
    queues: tuple[str, ...] | None
    using: str


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    """A worker begins to stop. ``running``: how many attempts it waits for."""

    running: int


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A worker has stopped. ``abandoned``: attempts that did not end in time, and whose jobs were handed back."""

    abandoned: int


@dataclass(frozen=True, slots=True)
class ThreadFailed(Event):
    """A thread of the worker failed, and is restarted after a pause. ``fatal``: the worker gives up."""

    counter = names.THREAD_FAILED
    thread: str
    error: str
    failures: int
    fatal: bool


@dataclass(frozen=True, slots=True)
class IsolationWeakened(Event):
    """Child processes could not start, so attempts run at the level ``actual`` for now."""

    counter = names.ISOLATION_WEAKENED
    requested: str
    actual: str
    reason: str


@dataclass(frozen=True, slots=True)
class IsolationFailed(Event):
    """Child processes of a strict isolation could not start. Its jobs are handed back, and claimed again later."""

    counter = names.ISOLATION_FAILED
    requested: str
    reason: str
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """A supervisor started worker process ``number``. ``reason`` is "" if it does not replace another process."""

    number: int
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessNotStarted(Event):
    """The operating system could not start worker process ``number``."""

    counter = names.PROCESS_ENDED
    outcome = "not_started"
    number: int
    error: str
    restart_seconds: float


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    """A worker process ended. ``code``: exit code or negative signal. ``restart_seconds``: None for no restart."""

    counter = names.PROCESS_ENDED
    number: int
    pid: int
    code: int
    restart_seconds: float | None

    @property
    def outcome(self) -> str:
        return "exited" if self.code == 0 else "failed" if self.code > 0 else "killed"


@dataclass(frozen=True, slots=True)
class ProcessNotReplaced(Event):
    """The replacement of worker process ``number`` did not become ready, so the old process continues."""

    counter = names.PROCESS_ENDED
    outcome = "not_replaced"
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class SupervisorGaveUp(Event):
    """No worker process became ready, many times in a row."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeasesRenewed(DetailEvent):
    """All leases that were due were renewed in one statement. ``count``: how many."""

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
