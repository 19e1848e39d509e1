"""Events of records."""

from dataclasses import dataclass, field

from django_jobchains.telemetry import names
from django_jobchains.telemetry.worker_events import DetailEvent, Event


@dataclass(frozen=True, slots=True)
class RecordEnded(Event):
    """An attempt at a record has ended. ``record``: its primary key as text. ``type_name``: see ``processors.records``.

    ``ending``: the new state of the record, or "requeued" or "handed_back". ``attempt``: 0 if it could not be loaded.
    """

    record: str
    type_name: str
    attempt: int
    ending: str
    seconds: float
    error: str
    #: Like the field of ``AttemptEnded``.
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    queue: str = ""
    #: The seconds from when the record was due until it was dequeued, or None if they are unknown.
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RecordCanceled(Event):
    """A record was canceled instead of being started, because its flag was set."""

    counter = names.RECORD_CANCELED
    record: str
    type_name: str


@dataclass(frozen=True, slots=True)
class RecordReset(Event):
    """A record was taken back from a worker that sent no heartbeats. ``state``: "queued", "failed" or "canceled"."""

    counter = names.REAPED
    record: str
    type_name: str
    state: str
    resets: int

    @property
    def outcome(self) -> str:
        return "requeued" if self.state == "queued" else self.state


@dataclass(frozen=True, slots=True)
class RecordAbandoned(Event):
    """An attempt of this worker may no longer write to its record. ``reason`` is its abort reason."""

    counter = names.LEASE_LOST
    record: str
    type_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecordStuck(Event):
    """The handler of a record was asked to stop, but does not: see ``AttemptStuck``."""

    counter = names.SLOT_STUCK
    record: str
    type_name: str
    reason: str
    stuck: int
    stack: str


@dataclass(frozen=True, slots=True)
class RecordHookEnded(DetailEvent):
    """A hook of a record worker has ended. ``hook``: "pre_handle" or "post_handle". ``error_type``: its error or ""."""

    type_name: str
    hook: str
    seconds: float
    error_type: str
