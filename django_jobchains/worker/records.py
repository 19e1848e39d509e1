"""Runs records: rows of tables of the project. A lane for each model dequeues them for the free slots."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from logging import getLogger
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from django_jobchains.attempts.outcome import OutcomeKind
from django_jobchains.attempts.record_attempt import (
    EndedRecord,
    RecordAttempt,
    RecordEnvironment,
    call_hook,
    not_loaded,
)
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.notifications import EVERY, Hint, freed_queue, publish_after_commit
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordHidden
from django_jobchains.store.errors import blames_row, is_conflict, is_database_away
from django_jobchains.store.record_limits import RecordRotation
from django_jobchains.store.record_tables import Dequeued, RecordEnd, RecordKey, RecordTable
from django_jobchains.store.records import DequeueRequest
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import RecordCancelled
from django_jobchains.text.errors import log_error
from django_jobchains.worker.claim_wait import MIN_RATE_WAIT_SECONDS, MIN_START_WAIT_SECONDS
from django_jobchains.worker.end_writer import EndWriter, RecordSink, by_kind
from django_jobchains.worker.maintenance import RecordFailures
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import SlotPool
from django_jobchains.worker.threads import LOCK_SECONDS, returns_within, waiting

logger = getLogger("django_jobchains")

#: The numbers of records that a statement dequeues. They are few, because each statement text has its own plan.
SIZES = (100, 50, 20, 10, 5, 2, 1)
#: How long an answer is used: a budget may change while no slot is free.
ANSWER_SECONDS = 1.0
#: The wait before the next query if another worker was deciding about a limit.
LOCKED_SECONDS = 0.05
#: The condition that records must meet to be dequeued. False: no record is dequeued.
Condition = Q | bool

DEFERRED = (
    "%d ends of records of %r could not be written, for example because the records are locked. They are stored, and "
    "any worker applies them when this is possible."
)


class RecordWorkers:
    """The record workers of a process. ``pool_of`` returns the pool for the records of a model."""

    def __init__(self, context: WorkerContext, pool_of: Callable[[RecordType], SlotPool]) -> None:
        self._context = context
        self._store = context.store
        self._wake = context.wake
        self._kinds = context.options.records
        self.writer = EndWriter(context, RecordSink(context, self._on_written))
        self.lanes = {name: RecordLane(context, kind, pool_of(kind), self.writer) for name, kind in self._kinds.items()}
        #: Ends that ``finish`` has written or stored.
        self._finished: set[EndedRecord] = set()

    @property
    def steps(self) -> dict[str, Callable[[], object]]:
        """The steps of the threads, by name."""
        if not self._kinds:
            return {}
        hooks = {f"pre-dequeue-{each.name}": each.step for each in self._conditions}
        return {"record-writer": self.writer.step, **hooks}

    @property
    def is_quiet(self) -> bool:
        """Whether no hook that decides about the next record is running."""
        return all(lane.is_quiet for lane in self.lanes.values())

    def seconds_to_next(self) -> float:
        """Return the seconds until a lane may query for records again."""
        return min((lane.seconds_to_next() for lane in self.lanes.values()), default=self._context.options.poll_seconds)

    def on_hint(self, hint: Hint) -> None:
        if not self.lanes:
            return
        is_reason = [lane.on_hint(hint) for lane in self.lanes.values()]
        if any(is_reason) and self._wake.accepts_hints:
            self._wake.query_in(0.0, types=())

    def look_soon(self) -> None:
        """Let the next step of the claim loop query for records."""
        for lane in self.lanes.values():
            lane.look_soon()

    def _on_written(self, ended: EndedRecord) -> None:
        if ended.state in ("completed", "errored", "failed"):
            ending = OutcomeKind.RETRIED if ended.state == "errored" else OutcomeKind(ended.state)
            self._context.counter.count(ended.kind.name, ended.kind.queue, ended.seconds, ending)
        if ended.kind.queue in self._context.queues.limited:
            publish_after_commit(self._store.using, [freed_queue(ended.kind.queue)])
        lane = self.lanes[ended.kind.name]
        if ended.ending != "handed_back":  # Otherwise a table that is locked would be queried without a pause.
            lane.look_soon()
        elif ended.exception is not None:
            lane.look_later()
        if (
            self.writer.is_idle
            or self._wake.is_eager
            or ended.kind.slots is not None
            or ended.kind.limits is not None
            or self._context.queues.has_limits
        ):
            self._wake.set()

    @property
    def _conditions(self) -> "list[Conditions]":
        return [lane.conditions for lane in self.lanes.values() if lane.conditions is not None]

    # Stopping

    def hand_back(self, attempts: Iterable[Any]) -> int:
        """Hand back the records among attempts that were taken back from the slots; return how many."""
        of_records = [attempt for attempt in attempts if isinstance(attempt, RecordAttempt)]
        for attempt in of_records:
            self.writer.put(attempt.hand_back(has_begun=False))
        return len(of_records)

    def finish(self, seconds: float) -> int:
        """Write the last ends, then return the records of attempts that did not end to the queue; return how many."""
        deadline = time.monotonic() + seconds
        while not self.writer.is_idle and time.monotonic() < deadline:
            time.sleep(0.005)
        # Read first, so that an attempt that ends now is in at least one of the lists.
        held = [(leases.kind, key) for leases in self._context.record_leases.values() for key in leases.held()]
        pending = self.writer.pending()
        ended = {(each.kind, each.key) for each in pending}
        rest = [(kind, key) for kind, key in held if (kind, key) not in ended]
        unwritten = [each for each in pending if each.state is None and each not in self._finished]
        ends = [(each.kind, each.end) for each in unwritten if each.end is not None]
        self._finished.update(unwritten)
        ends += [(kind, RecordEnd(*key, "handed_back")) for kind, key in rest]
        if ends and not returns_within(seconds, partial(self._write, ends), "hand-back-records"):
            logger.warning("The database does not answer. Records are reset when their heartbeats are missing.")
        for kind, key in held:
            self._context.record_leases[kind.name].release([key])
        # The claim loop may have dequeued a record while it was being closed. No attempt at it was started.
        return sum(not self.lanes[kind.name].pool.is_idle for kind, _ in rest)

    def close(self) -> None:
        """End the waits of the threads, and of attempts that wait for the write of their ends."""
        self.writer.interrupt()
        for conditions in self._conditions:
            conditions.interrupt()
        for ended in self.writer.pending():
            ended.mark_written()

    def _write(self, ends: list[tuple[RecordType, RecordEnd]]) -> None:
        for kind, of_kind in by_kind(ends).items():
            self._write_ends(kind, of_kind)

    def _write_ends(self, kind: RecordType, ends: list[RecordEnd]) -> None:
        """Write ends. Ends that cannot be written now, for example because of a lock, are stored."""
        table = kind.table(self._store.using)
        try:
            with self._store.db.waits_at_most(LOCK_SECONDS):
                left = self._unwritten(table, ends)
            if left:
                # An end that is refused later errors.
                left = [end._replace(max_attempts=kind.max_attempts) for end in left]
                self._store.deferred.defer_records(table, left)
                logger.warning(DEFERRED, len(left), kind.name)
        except Exception as error:
            text = "Records of %r could not be queued again; they are reset when their heartbeats are missing: %s"
            log_error(logger, error, text, kind.name)

    def _unwritten(self, table: RecordTable, ends: Sequence[RecordEnd]) -> Sequence[RecordEnd]:
        """Write ends, and return the ends that are locked or refused. A refused end does not affect the others."""
        try:
            written = self._store.records.end(table, ends)
            lost = self._store.records.check(table, [end.key for end in ends if end.key not in written]).lost
        except Exception as error:
            if is_database_away(error):
                raise
            if len(ends) == 1 or is_conflict(error):
                return ends
            return [left for end in ends for left in self._unwritten(table, [end])]
        return [end for end in ends if end.key not in written and end.key not in lost]


class RecordLane:
    """A lane of the claim loop: decides when to query for records, and how many may be dequeued.

    The registration's ``slots`` limits its unfinished attempts; the queue's limit applies to all types of the queue
    together. Records of a model with ``pre_dequeue`` are dequeued one by one: the next call follows when ``pre_handle``
    has returned.
    """

    def __init__(
        self, context: WorkerContext, kind: RecordType, pool: SlotPool, writer: EndWriter[EndedRecord]
    ) -> None:
        self.source = RecordSource(context, kind, writer, pool.record_attempt)
        self.kind = kind
        self.pool = pool
        self.conditions: Conditions | None = None
        if "pre_dequeue" in kind.hooks:
            self.conditions = Conditions(kind, context.store.using, self._look_at_once)
        self._last: RecordAttempt | None = None
        self._queues = context.queues
        self._wake = context.wake
        self._failures = RecordFailures("Records of %r could not be dequeued: %s", context.store)
        self._poll_seconds = kind.poll_seconds(context.options.poll_seconds)
        self._due_at = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether no hook is running that may let the next record be dequeued."""
        return self.conditions is None or not (self._is_in_hook or self.conditions.has_answer)

    @property
    def _is_in_hook(self) -> bool:
        is_asked = self.conditions is not None and self.conditions.is_asked
        return is_asked or (self._last is not None and not self._last.is_prepared)

    def room(self) -> int:
        """Return how many records to dequeue now."""
        return 0 if self._seconds_to_look() > 0 else self._space()

    def has_slots(self) -> bool:
        """Return whether records could be dequeued now, even if it is not yet time to query for them."""
        return self._space() > 0

    def _space(self) -> int:
        if self.source.writer.is_behind or self._is_in_hook:
            return 0
        room = self.pool.room()
        if self.kind.slots is not None:
            room = min(room, self.kind.slots - self.source.leases.count_by_queue()[self.kind.queue])
        return max(self._queues.room_in(self.kind.queue, room), 0)

    def dequeue(self, limit: int) -> Iterator[list[RecordAttempt]]:
        """Yield lists of attempts. If there were records, the lane queries again now, or when its rate allows it.

        An error is logged, so that it does not stop the other lanes, and the lane queries again after its interval.
        """
        if self.conditions is not None and not self.conditions.has_answer:
            self.conditions.ask()
            return
        self.look_later()
        found = self._dequeue_many(limit) if self.conditions is None else self._dequeue_one(self.conditions)
        has_found = False
        try:
            for attempts in found:
                has_found = True
                if self.source.next_start_at is None:
                    self.look_soon()
                yield attempts
        except Exception as error:
            self._failures.failed(self.kind.name, error)
        else:
            if self.source.met_lock:
                self._due_at = min(self._due_at, time.monotonic() + LOCKED_SECONDS)
            if (starts_at := self.source.next_start_at) is not None:
                least = time.monotonic() + (MIN_START_WAIT_SECONDS if has_found else MIN_RATE_WAIT_SECONDS)
                self._due_at = min(self._due_at, max(starts_at, least))

    def _dequeue_many(self, limit: int) -> Iterator[list[RecordAttempt]]:
        """Dequeue until this number of records is found, or no more are ready."""
        left = limit
        while left > 0:
            size = next(size for size in SIZES if size <= left)
            found, attempts = self.source.dequeue(size, True)
            if attempts:
                yield attempts
            if found < size:
                return
            left -= len(attempts)

    def _dequeue_one(self, conditions: "Conditions") -> Iterator[list[RecordAttempt]]:
        found, attempts = self.source.dequeue(1, conditions.take(), on_prepared=self._look_at_once)
        if attempts:
            [self._last] = attempts
            yield attempts
        elif found:  # A record that is not handled.
            yield []

    def look_soon(self) -> None:
        """Let the next step of the claim loop query for records. Can be called from any thread."""
        self._due_at = 0.0

    def look_later(self) -> None:
        """Let the claim loop wait for the usual interval before it queries for records."""
        self._due_at = time.monotonic() + self._poll_seconds * random.uniform(0.8, 1)  # noqa: S311 - jitter

    def _look_at_once(self) -> None:
        self.look_soon()
        self._wake.set()

    def seconds_to_next(self) -> float:
        """Return the seconds until records may be queried. Without free slots, an event ends the wait instead."""
        return self._seconds_to_look() if self._space() else math.inf

    def _seconds_to_look(self) -> float:
        """Return the seconds to the next query. A worker that ends when nothing is found queries at every step."""
        if self._wake.is_eager:
            return 0.0
        return max(self._due_at - time.monotonic(), 0)

    def on_hint(self, hint: Hint) -> bool:
        """Return whether the hint is a reason to query."""
        if hint.kind == "job_scheduled" and hint.subject in (EVERY, self.kind.name):
            self.look_soon()
            return True
        return False


class RecordSource:
    """Dequeues records of a model, holds them, and creates their attempts with ``make``."""

    def __init__(
        self,
        context: WorkerContext,
        kind: RecordType,
        writer: EndWriter[EndedRecord],
        make: Callable[..., RecordAttempt] = RecordAttempt,
        *,
        joins_transaction: bool = False,
    ) -> None:
        self.kind = kind
        self.leases = context.record_leases[kind.name]
        self.writer = writer
        self._store = context.store
        self._queues = context.queues
        self._worker = context.worker
        self._hostname = context.options.name[: kind.model_field("worker_hostname").max_length]
        self._make = make
        self._joins_transaction = joins_transaction
        self._prefers_planned = False
        self._rotation = RecordRotation()
        self._environment = RecordEnvironment(kind, context.store, writer.put, context.worker)

    def dequeue(self, size: int, condition: Condition, **options: Any) -> tuple[int, list[RecordAttempt]]:
        """Return how many records were found, and the attempts of the records that are to be handled.

        Records that could not be loaded, and are queued again, do not count as found. ``options``: further arguments
        of the attempts.
        """
        if condition is False:
            return 0, []
        since = time.monotonic()
        found = self._dequeue(size, condition)
        made = self._attempts(found, since, options)
        queued_again = sum(isinstance(each, EndedRecord) and each.is_handed_back for each in made)
        return len(found) - queued_again, [each for each in made if isinstance(each, RecordAttempt)]

    def _dequeue(self, size: int, condition: Condition) -> list[Dequeued]:
        self._prefers_planned = not self._prefers_planned
        request = DequeueRequest(
            self.kind.select(self._store.using, condition if isinstance(condition, Q) else None),
            size,
            self._hostname,
            self.kind.queue,
            self.kind.retry_seconds,
            has_own_order=bool(self.kind.order_by),
            prefers_planned=self._prefers_planned,
        )
        with measured("record_dequeue", self._worker, self.kind.name), self._store.db.waits_at_most(LOCK_SECONDS):
            return self._queues.start(self._queues.limited.get(self.kind.queue), size, partial(self._start, request))

    def _start(self, request: DequeueRequest, limit: int) -> list[Dequeued]:
        table, store = self.kind.table(self._store.using), self._store
        request = request._replace(limit=next(size for size in SIZES if size <= limit))
        joins = self._joins_transaction or self.kind.queue in self._queues.limited
        limits = self.kind.limited(store.using, self._queues.overrides)
        if limits is None:
            return store.records.dequeue(table, request, joins_transaction=joins)
        return store.record_limits.dequeue(table, limits, self._rotation, request, joins_transaction=joins)

    @property
    def met_lock(self) -> bool:
        """Whether another worker was deciding about a limit in the last dequeue, so that there may be free places."""
        return self._rotation.met_lock or self._queues.met_lock

    @property
    def next_start_at(self) -> float | None:
        """The monotonic time when the next record may start, if the last dequeue found only the rate in the way."""
        return self._rotation.next_start_at

    def _attempts(
        self, found: list[Dequeued], since: float, options: dict[str, Any]
    ) -> list[RecordAttempt | EndedRecord]:
        """Hold the records that were started, and create their attempts. A record without an attempt ends."""
        keys = list(self._started(found))
        charges = {each.key: each.charge for each in found}
        try:
            signals = {key: self.leases.hold(key, self.kind.stalled_seconds, since, self.kind.queue) for key in keys}
            made = [self._attempt(key, record, signals[key], options) for key, record in self._load(keys)]
        except BaseException:
            for key in keys:
                end = RecordEnd(*key, "handed_back")
                self.writer.put(EndedRecord(self.kind, key, 0, end, charge=charges[key]))
            raise
        for each in made:
            each.charge = charges[each.key]
            if isinstance(each, EndedRecord):
                self.writer.put(each)
        return made

    def _started(self, found: list[Dequeued]) -> Iterator[RecordKey]:
        for record in found:
            if record.state == "processing":
                yield record.key
            else:
                report(RecordCancelled(self._worker, str(record.id), self.kind.name))

    def _attempt(
        self, key: RecordKey, record: Any, signal: AbortSignal, options: dict[str, Any]
    ) -> RecordAttempt | EndedRecord:
        """Return the attempt at a record, or its end if an error was loaded instead of the record."""
        if isinstance(record, BaseException):
            return not_loaded(self.kind, key, record)
        try:
            return self._make(record, key, self._environment, signal, **options)
        except BaseException as error:  # Reading a deferred field may fail, too.
            if not blames_row(error):
                raise
            return not_loaded(self.kind, key, error)

    def _load(self, keys: list[RecordKey]) -> list[tuple[RecordKey, Any]]:
        """Load the records with the queryset, in its order. The value of a record that cannot be loaded is an error.

        Raises an error that concerns all of them, such as that of a missing column or a time limit.
        """
        try:
            records = self._records(keys)
        except BaseException as error:
            if not blames_row(error):
                raise
            if len(keys) == 1:
                return [(keys[0], error)]
            return [loaded for key in keys for loaded in self._load([key])]
        by_id = {key[0]: key for key in keys}
        loaded = [(by_id.pop(record.pk), record) for record in records if record.pk in by_id]
        return [*loaded, *((key, RecordHidden(self.kind.name)) for key in by_id.values())]

    def _records(self, keys: list[RecordKey]) -> "QuerySet[Any] | list[Any]":
        if not keys:
            return []
        columns = self.kind.columns
        order = self.kind.order_by or (Coalesce(columns["process_after"], columns["queued_at"]), "pk")
        found = self.kind.queryset.using(self._store.using).filter(pk__in=[id_ for id_, _ in keys])
        with self._store.db.waits_at_most(LOCK_SECONDS), self._store.db.limited():
            return list(found.order_by(*order))


class Conditions:
    """The conditions for the next record of a model, each from one call of ``pre_dequeue``.

    ``on_answer``: called when there is a new answer. The claim loop calls ``ask`` and ``take``, a thread calls
    ``step``.
    """

    def __init__(self, kind: RecordType, using: str, on_answer: Callable[[], object]) -> None:
        self.name = kind.name
        self._kind = kind
        self._using = using
        self._on_answer = on_answer
        self._question = threading.Event()
        self._answer: Condition | None = None
        self._answered_at = 0.0
        self._throttle = WarningThrottle()
        #: Whether the thread has not answered yet.
        self.is_asked = False

    @property
    def has_answer(self) -> bool:
        return self._answer is not None and time.monotonic() - self._answered_at < ANSWER_SECONDS

    def ask(self) -> None:
        self.is_asked = True
        self._question.set()

    def take(self) -> Condition:
        """Return the answer, once. Without an answer, nothing is dequeued."""
        answer, self._answer = self._answer, None
        return answer is not None and answer

    def step(self) -> None:
        """Wait for a question, and answer it."""
        with waiting():
            self._question.wait()
        if self.is_asked:
            answer = condition_of(self._kind, self._using, self._throttle)
            self._question.clear()  # Not earlier: after an error, the next step answers the same question.
            self._answer, self._answered_at = answer, time.monotonic()
            self.is_asked = False  # Cleared last, so that there is always a question or an answer.
            self._on_answer()

    def interrupt(self) -> None:
        """End the wait for a question."""
        self._question.set()


def condition_of(kind: RecordType, using: str, throttle: WarningThrottle) -> Condition:
    """Return the result of ``pre_dequeue``. An error is logged, and nothing is dequeued."""
    if "pre_dequeue" not in kind.hooks:
        return True
    results: list[Any] = []
    error = call_hook(lambda: results.append(kind.processor.pre_dequeue()), using)
    result = results[0] if results else False
    if error is None and not isinstance(result, bool | Q):
        error = TypeError(f"pre_dequeue() returned {result!r:.50}, neither a bool nor a Q")
    if error is not None:
        if throttle.allows():
            log_error(logger, error, "No record of %r is dequeued: %s", kind.name)
        return False
    return result
