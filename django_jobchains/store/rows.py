"""The arguments and results of the store. Payloads are JSON texts; times are aware.

The store encodes the payloads that it writes (see ``payloads.codecs``), except those that are encoded already. It
returns payloads as they are stored, so that a payload that cannot be decoded raises an error where it is used.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from django_jobchains.statuses import FINAL
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.errors import is_database_away

#: How an attempt failed, as ``FailedAttempt.Kind``: by an error, because it took too long, or because the process that
#: ran it died.
FailureKind = Literal["error", "timeout", "crash"]

#: One attempt: the job's id and the lease number it was claimed with.
AttemptKey = tuple[UUID, int]


@dataclass(slots=True)
class NewJob:
    """A job to create, due at ``run_at`` or ``delay_seconds`` from now. Without both, it is due immediately."""

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
    #: Chains to wait for, in the order that the handler receives them.
    blockers: tuple[UUID, ...] = ()
    #: Type names; None accepts chains of any type.
    accepted_blockers: frozenset[str] | None = None
    #: The type names of the blockers, by position, or None.
    blocker_slots: tuple[str, ...] | None = None
    on_blocker_failure: str = "wait"
    #: Only for the first job of a chain.
    deduplicate: Deduplicate | None = None
    #: The key of the chain.
    deduplication_key: str | None = None
    #: True for the continuation of a job that was asked to stop and completed nonetheless.
    is_cancelled: bool = False
    #: Above 0 if the id may have been used before, so that a stale attempt may still be running.
    lease_number: int = 0
    #: A JSON text for the handler.
    context: str | None = None
    #: The schedule that the chain comes from, and its tick. Each job of the chain has them.
    schedule_name: str | None = None
    scheduled_for: datetime | None = None
    #: When the job expires if it has not started: at a time, or this long after it is due.
    expires_at: datetime | None = None
    expires_seconds: float | None = None
    #: Whether its type is a task of Django's framework, which no jobs module declares.
    is_task: bool = False
    #: For jobs of limited types: the key whose values take turns, and the keys by which they and their starts are
    #: counted.
    limit_key: int | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None


class CreatedJob(NamedTuple):
    """A job that ``create`` created, or the first job of the chain that it found."""

    id: UUID
    created_at: datetime
    #: True if it existed already, or is the first with its key in a batch.
    is_deduplicated: bool = False
    #: True if the values of this item replaced the values of the chain that was found, or if this job is new and an
    #: item after it in the batch replaced its values.
    is_replaced: bool = False


@dataclass(slots=True)
class Effects:
    """What to announce after the commit. Methods of the store add to it."""

    #: Types with a job that may be due, or that has a new due date.
    due_types: set[str] = field(default_factory=set)
    #: How many jobs of a type became due, for the types where this is known exactly.
    due_counts: dict[str, int] = field(default_factory=dict, compare=False)
    #: Chains that ended or were deleted.
    finished_chains: set[UUID] = field(default_factory=set)
    #: Running jobs whose attempts should stop.
    stopped_jobs: set[UUID] = field(default_factory=set)
    #: Jobs that failed because a blocker failed or was cancelled, by their id.
    failed_waiters: dict[UUID, "FailedWaiter"] = field(default_factory=dict)
    #: Jobs that became free to run because their last blocker ended, with their types.
    unblocked: dict[UUID, str] = field(default_factory=dict, compare=False)
    #: The jobs that ``on_failure`` enqueued, with their types and queues.
    failure_jobs: dict[UUID, tuple[str, str]] = field(default_factory=dict, compare=False)
    #: The types of jobs that were taken from running attempts: others may take their places within a limit.
    freed_types: set[str] = field(default_factory=set, compare=False)

    #: Queues with limits in which jobs or records have ended, so that there may be free places.
    freed_queues: set[str] = field(default_factory=set, compare=False)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Forget what the block has added if it raises, because its transaction is rolled back.

        If the database failed, the transaction may have been committed, so nothing is forgotten.
        """
        before = {name: copy(value) for name in _PARTS_OF_EFFECTS if (value := getattr(self, name))}
        try:
            yield
        except BaseException as error:
            if not is_database_away(error):
                for name in _PARTS_OF_EFFECTS:
                    setattr(self, name, before[name] if name in before else type(getattr(self, name))())
            raise

    def add(self, other: "Effects") -> None:
        for name in other.due_types:
            self._add_type(name, other.due_counts.get(name))
        self.finished_chains |= other.finished_chains
        self.stopped_jobs |= other.stopped_jobs
        self.freed_types |= other.freed_types
        self.freed_queues |= other.freed_queues
        self.failed_waiters |= other.failed_waiters
        self.unblocked |= other.unblocked
        self.failure_jobs |= other.failure_jobs

    def add_due(self, type_names: Iterable[str], times: int = 1) -> None:
        counts: dict[str, int] = {}  # This is faster than a Counter.
        for name in type_names:
            counts[name] = counts.get(name, 0) + times
        for name, count in counts.items():
            self._add_type(name, count)

    def add_scheduled(self, type_names: Iterable[str]) -> None:
        """Add the types of jobs, whenever they are due."""
        for name in type_names:
            self._add_type(name, None)

    def _add_type(self, name: str, count: int | None) -> None:
        if count is None:
            self.due_counts.pop(name, None)
        elif name in self.due_counts or name not in self.due_types:
            self.due_counts[name] = self.due_counts.get(name, 0) + count
        self.due_types.add(name)


_PARTS_OF_EFFECTS = tuple(part.name for part in fields(Effects))


class ChainEnd(NamedTuple):
    """The status of a chain, None if it does not exist, and how it ended if it did. The output is a JSON text."""

    chain_id: UUID
    status: str | None
    output: str | None = None
    error: str | None = None
    #: The type of the last job.
    type_name: str = ""
    chain_type_name: str = ""
    #: Whether it was cancelled because its last job had not started when it expired.
    is_expired: bool = False

    @property
    def is_final(self) -> bool:
        return self.status is None or self.status in FINAL


class ChainWait(NamedTuple):
    """What decides when the last job of a chain may start. ``due_seconds``: until it is due, negative if it is."""

    type_name: str
    status: str
    queue: str
    due_seconds: float
    is_paused: bool
    has_worker: bool
    #: How often its attempts have failed, without crashes and reschedules.
    failures: int


class ChainLifetime(NamedTuple):
    """A chain that has ended, and the seconds from its creation to its end. The status may be "expired"."""

    chain_id: UUID
    type_name: str
    status: str
    seconds: float
    schedule_name: str | None = None


class ClaimedJob(NamedTuple):
    """A claimed job, with the columns that an attempt uses."""

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
    context: str | None
    crashes: int
    reschedules: int
    schedule_name: str | None
    scheduled_for: datetime | None
    last_attempt_at: datetime
    #: The id of the worker that claimed it.
    worker: str
    #: The id and the lease number. This is a field because each attempt reads it many times.
    key: AttemptKey

    @property
    def wait_seconds(self) -> float:
        """The seconds from when the job was due until it was claimed."""
        return max((self.last_attempt_at - self.run_at).total_seconds(), 0.0)

    @property
    def failures(self) -> int:
        """The number of failed attempts if this one fails, without crashes and reschedules."""
        return self.attempt - self.crashes - self.reschedules


class ExpiredJob(NamedTuple):
    """A job that had not started when it expired."""

    id: UUID
    chain_id: UUID
    type_name: str
    lease_number: int

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
class OfAttempt:
    """A value about one attempt."""

    job_id: UUID
    lease_number: int

    @property
    def key(self) -> AttemptKey:
        return self.job_id, self.lease_number


@dataclass(slots=True)
class FinishedJob(OfAttempt):
    """A completed attempt: an output, or the job that the chain continues with."""

    output: str | None = None
    continuation: NewJob | None = None


@dataclass(slots=True)
class FailedTry(OfAttempt):
    """An attempt that did not complete, with cleaned texts. ``run_at`` or ``delay_seconds``: when the next one runs.

    ``is_failure`` is False if the handler asked for another attempt: then ``error`` may be "".
    """

    error: str
    traceback: str
    run_at: datetime | None = None
    delay_seconds: float | None = None
    is_failure: bool = True
    #: Crashes are counted separately from the attempts.
    kind: FailureKind = "error"


@dataclass(slots=True)
class EndedAttempt:
    """An attempt that has ended, and how: an argument of ``finish``, ``reschedule``, ``fail`` or ``hand_back``."""

    ending: Literal["completed", "continued", "retried", "rescheduled", "failed", "handed_back"]
    row: FinishedJob | FailedTry | AttemptKey
    #: The wait before the job is tried again if this cannot be written. None: the job fails.
    retry_seconds: float | None = 10
    #: False if the job is returned to the queue before its handler was called.
    has_begun: bool = True

    @property
    def key(self) -> AttemptKey:
        return self.row if isinstance(self.row, tuple) else self.row.key


class NewLogLine(NamedTuple):
    """A log line: its position in the attempt, from 0, its monotonic time, and its fields as a JSON text."""

    position: int
    logged_at: float
    level: int
    text: str
    fields: str | None


class NewProgress(NamedTuple):
    """The progress of an attempt, from 0 to 1, and its monotonic time."""

    fraction: float
    text: str
    logged_at: float


@dataclass(slots=True)
class LogEntries(OfAttempt):
    """What an attempt has logged since the last write. Texts are cleaned."""

    attempt: int
    lines: list[NewLogLine]
    progress: NewProgress | None = None
    #: Positions of lines to delete.
    outdated: range = range(0)


class FailedWaiter(NamedTuple):
    """A job that waited for a chain and failed with it."""

    job_id: UUID
    chain_id: UUID
    type_name: str
    error: str


class ReapedJob(NamedTuple):
    id: UUID
    chain_id: UUID
    type_name: str
    attempt: int
    status: str
    crashes: int
    queue: str


class Renewal(NamedTuple):
    """The attempts that lost their lease, with the abort reason, and the attempts that should stop.

    ``completed``: the attempts that lost their lease because they have completed their jobs themselves. ``locked``: the
    records whose heartbeat was not written, because another transaction has locked them.
    """

    lost: dict[tuple[Any, int], str]
    cancelled: set[tuple[Any, int]]
    completed: AbstractSet[tuple[Any, int]] = frozenset()
    locked: AbstractSet[tuple[Any, int]] = frozenset()


# Outcomes of attempts as JSON: stored until their jobs are free, or sent by the child process that ran the attempt


def outcome_json(values: Mapping[str, Any]) -> str:
    """Return the values of outcomes as a JSON text."""
    return json.dumps(values, default=_plain)


def outcome_values(attempt: EndedAttempt) -> dict[str, Any]:
    """Return how an attempt ended, without its key."""
    row = {"has_begun": attempt.has_begun} if isinstance(attempt.row, tuple) else asdict(attempt.row)
    return {**row, "ending": attempt.ending, "retry_seconds": attempt.retry_seconds}


def ended_attempt(key: AttemptKey, values: Mapping[str, Any]) -> EndedAttempt:
    """Return how the attempt with this key ended, from values that were read from JSON."""
    ending = values["ending"]
    if ending in ("completed", "continued"):
        continuation = values["continuation"] and _new_job(values["continuation"])
        return EndedAttempt(ending, FinishedJob(*key, values["output"], continuation))
    if ending == "handed_back":
        return EndedAttempt(ending, key, has_begun=values.get("has_begun", True))
    texts = (values["error"], values["traceback"])
    when = (_time(values["run_at"]), values["delay_seconds"])
    return EndedAttempt(ending, FailedTry(*key, *texts, *when, values["is_failure"], values["kind"]))


def effects_values(effects: Effects) -> dict[str, Any]:
    """Return the values of effects, which are announced after a commit."""
    pairs = {"unblocked": [*effects.unblocked.items()], "failure_jobs": [*effects.failure_jobs.items()]}
    return {**asdict(effects), "failed_waiters": [*effects.failed_waiters.values()], **pairs}


def effects_of(values: Mapping[str, Any]) -> Effects:
    """Return effects from values that were read from JSON."""
    waiters = [
        FailedWaiter(UUID(job_id), UUID(chain_id), *rest) for job_id, chain_id, *rest in values["failed_waiters"]
    ]
    return Effects(
        set(values["due_types"]),
        values["due_counts"],
        {UUID(id_) for id_ in values["finished_chains"]},
        {UUID(id_) for id_ in values["stopped_jobs"]},
        {waiter.job_id: waiter for waiter in waiters},
        {UUID(id_): type_name for id_, type_name in values["unblocked"]},
        {UUID(id_): (type_name, queue) for id_, (type_name, queue) in values["failure_jobs"]},
        set(values["freed_types"]),
        set(values["freed_queues"]),
    )


def _plain(value: Any) -> Any:
    match value:
        case UUID():
            return value.hex
        case datetime():
            return value.isoformat()
        case set() | frozenset():
            return sorted(value, key=str)
    raise TypeError(f"{value!r} is not part of an outcome.")


def _new_job(values: Mapping[str, Any]) -> NewJob:
    accepted, slots = values["accepted_blockers"], values["blocker_slots"]
    read = {
        "id": UUID(values["id"]),
        "chain_id": UUID(values["chain_id"]),
        "run_at": _time(values["run_at"]),
        "scheduled_for": _time(values.get("scheduled_for")),
        "expires_at": _time(values.get("expires_at")),
        "blockers": tuple(UUID(id_) for id_ in values["blockers"]),
        "accepted_blockers": None if accepted is None else frozenset(accepted),
        "blocker_slots": None if slots is None else tuple(slots),
    }
    known = {field.name for field in fields(NewJob)}  # A worker of a later version may have stored more.
    return NewJob(**{name: value for name, value in {**values, **read}.items() if name in known})


def _time(text: str | None) -> datetime | None:
    return text and datetime.fromisoformat(text)  # type: ignore[return-value]
