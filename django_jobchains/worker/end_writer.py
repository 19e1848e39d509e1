"""Writes the ends of attempts at jobs and records, many in one transaction, and publishes their effects.

After a crash before the write, the job or record runs again, as after a crash before a commit. Leases are renewed until
the end is written. An attempt that opened a transaction in ``complete()`` has written its outcome itself.
"""

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db import Error

from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.attempts.record_attempt import EndedRecord
from django_jobchains.notifications import job_scheduled, publish_after_commit
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.notifications.wakeups import publish, report_created
from django_jobchains.payloads.codecs import encode_text
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.errors import is_conflict, is_database_away, is_out_of_time, is_statement_invalid
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.store.rows import AttemptKey, Effects, EndedAttempt
from django_jobchains.telemetry import measured, observes, report
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, ChainEnded, OutcomeDelayed
from django_jobchains.text.errors import describe, log_error, log_text
from django_jobchains.text.redaction import redacted_text
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.threads import LOCK_SECONDS, waiting

logger = getLogger("django_jobchains")

#: How many ends are written together. A write begins when half of them wait: docs/decisions/0016-short-attempts.md.
MAX_BATCH_SIZE = 300
#: How long the first end of a batch waits for others. It waits only while claimed attempts wait for a slot.
GATHER_SECONDS = 0.01
#: The number of retries of a single end that exceeds a time limit before it is replaced. The server may be busy.
MAX_TIMEOUTS = 3

#: The wait before the first retry of an end, which doubles with each further retry, and the longest wait.
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 1.0
#: Retries stop after this time, so that new ends are written.
MAX_RETRY_SECONDS = 0.2

#: The abort reason of an attempt whose lost lease was only noticed when its end was written.
TAKEN = "taken_by_another_worker"

EndT = TypeVar("EndT")


class Sink(Generic[EndT]):
    """Where the ends of one source are written: the table of jobs, or the tables of records.

    Only the writer's thread calls its methods, except ``accept``.
    """

    #: Whether what depends on the written ends has been published.
    is_published = True

    def accept(self, end: EndT) -> bool:
        """Prepare an end that was put. Return whether it is still to be written. Called from any thread."""
        raise NotImplementedError

    def take(self, batch: Iterable[EndT]) -> None:
        """Note the ends of the next batch."""

    def groups(self, batch: Collection[EndT]) -> Iterable[Sequence[EndT]]:
        """Return the parts of a batch that can be written together."""
        raise NotImplementedError

    def has_written(self, end: EndT) -> bool:
        """Return whether nothing is left to write of an end."""
        raise NotImplementedError

    def write(self, ends: Sequence[EndT], uncertain: Collection[int]) -> list[EndT]:
        """Write ends that are not written yet. Return those whose rows are locked.

        ``uncertain``: the identities of ends that an earlier try may have written, although it raised an error.
        """
        raise NotImplementedError

    def replace(self, end: EndT, error: Exception) -> bool:
        """Replace an end that cannot be written by a simpler one. Return False if it can only be tried again."""
        raise NotImplementedError

    def release(self, ends: Sequence[EndT]) -> None:
        """Report ends that are written or lost, and drop their leases."""
        raise NotImplementedError

    def released(self, ends: Sequence[EndT]) -> None:
        """React to ends after the writer has removed them."""

    def report_delay(self, end: EndT, seconds: float, error: str) -> None:
        """Report an end that could not be written for this time."""
        raise NotImplementedError

    def publish(self) -> None:
        """Publish what depends on the written ends, after each step."""


class EndWriter(Generic[EndT]):
    """Takes ends from the threads of attempts, and writes them to its sink on another thread."""

    def __init__(self, context: WorkerContext, sink: Sink[EndT]) -> None:
        self._context = context
        self._store = context.store
        self._sink = sink
        self._queue: queue.SimpleQueue[EndT | None] = queue.SimpleQueue()
        #: Set when a batch need not wait for more ends.
        self._is_enough = threading.Event()
        # The keys are identities, because the hash of a job's id is slow to compute.
        self._batch: dict[int, EndT] = {}
        #: All ends that were put and are not written and reported yet.
        self._pending: dict[int, EndT] = {}
        self._lock = threading.Lock()
        #: Ends that may be committed although the transaction raised an error.
        self._uncertain: set[int] = set()
        self._delayed: DelayedEnds[EndT] = DelayedEnds(sink.report_delay)
        self._was_behind = False

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def is_drained(self) -> bool:
        """Whether every end is written and its effects are published."""
        return self.is_idle and self._sink.is_published

    @property
    def is_behind(self) -> bool:
        """Whether ends arrive faster than they are written: then nothing more is claimed."""
        return len(self._pending) - len(self._delayed) > 2 * MAX_BATCH_SIZE

    def pending(self) -> list[EndT]:
        """Return the ends that are not written and reported yet. Can be called from any thread."""
        with self._lock:
            return list(self._pending.values())

    def put(self, end: EndT) -> None:
        """Add an end to write. One that its attempt has committed is only reported and published."""
        is_to_write = self._sink.accept(end)
        with self._lock:
            self._pending[id(end)] = end
        self._queue.put(end)
        if is_to_write and (not any(self._context.backlogs) or self._queue.qsize() >= MAX_BATCH_SIZE // 2):
            self._is_enough.set()

    def interrupt(self) -> None:
        """End the wait for an end."""
        self._queue.put(None)

    def step(self) -> None:
        """Gather a batch and write it. After an error, the next step continues with the rest of the batch."""
        self._store.connection.ensure_connection()  # Opened early, because the slots might take the last connection.
        if not self._batch:
            self._gather()
        with self._store.db.waits_at_most(LOCK_SECONDS):
            for ends in self._sink.groups(self._batch.values()):
                self._write(ends)
            self._delayed.retry(self._write_one)
        if self._was_behind:  # The claim loop may wait for this.
            self._was_behind = False
            self._context.wake.set()
        self._sink.publish()

    def _gather(self) -> None:
        """Wait for an end, then for others that follow soon. Not every end wakes this thread."""
        self._is_enough.clear()
        with waiting(), suppress(queue.Empty):
            if (end := self._queue.get(timeout=self._delayed.seconds_to_next())) is not None:
                self._batch[id(end)] = end
        if self._batch and any(self._context.backlogs):
            self._is_enough.wait(GATHER_SECONDS)
        with suppress(queue.Empty):
            while len(self._batch) < MAX_BATCH_SIZE:
                if (end := self._queue.get_nowait()) is not None:
                    self._batch[id(end)] = end
        self._sink.take(self._batch.values())

    def _write(self, ends: Sequence[EndT]) -> None:
        try:
            self._write_together(ends)
        except Exception as error:
            self._raise_if_away(error, ends)
            for end in ends:  # An end that cannot be written must not affect the others.
                self._write_one(end)

    def _write_one(self, end: EndT) -> None:
        try:
            self._write_together([end])
        except Exception as error:
            self._raise_if_away(error, [end])
            if self._sink.has_written(end):
                raise
            is_slow = is_out_of_time(error) and self._delayed.errors(end) < MAX_TIMEOUTS
            # The end is not to blame for a missing column or privilege.
            if is_slow or is_conflict(error) or is_statement_invalid(error):
                self._delay(end, describe(error))
            elif self._sink.replace(end, error):
                self._write_one(end)
            else:
                self._delay(end, describe(error))

    def _raise_if_away(self, error: Exception, ends: Collection[EndT]) -> None:
        """Raise the error of an unavailable database, which may have committed the ends. They are retried later."""
        if is_database_away(error):
            self._uncertain |= {id(end) for end in ends}
            raise error

    def _write_together(self, ends: Sequence[EndT]) -> None:
        locked = self._sink.write(ends, self._uncertain)
        for end in locked:
            self._delay(end)
        if locked:
            ids = set(map(id, locked))
            ends = [end for end in ends if id(end) not in ids]
        self._sink.release(ends)
        # The last step, because an earlier error retries the batch.
        self._delayed.forget(ends)
        self._uncertain.difference_update(map(id, ends))
        with self._lock:
            self._was_behind |= self.is_behind
            for identity in map(id, ends):
                self._batch.pop(identity, None)
                self._pending.pop(identity, None)
        self._sink.released(ends)

    def _delay(self, end: EndT, error: str = "") -> None:
        self._delayed.add(end, error)
        self._batch.pop(id(end), None)


@dataclass(slots=True)
class _Delayed(Generic[EndT]):
    end: EndT
    since: float = field(default_factory=time.monotonic)
    wait_seconds: float = FIRST_WAIT_SECONDS / 2
    errors: int = 0
    due_at: float = 0.0


class DelayedEnds(Generic[EndT]):
    """Ends to retry, each after its own wait: another transaction has locked a row that they change, or an error may
    disappear. Only the thread of the writer uses it.

    ``report``: called once for an end that reaches the longest wait, with the time since its first try and the error.
    """

    def __init__(self, report: Callable[[EndT, float, str], None]) -> None:
        self._report = report
        #: By identity of the end, in the order of the first tries.
        self._delayed: dict[int, _Delayed[EndT]] = {}

    def __len__(self) -> int:
        return len(self._delayed)

    def add(self, end: EndT, error: str = "") -> None:
        """Delay an end, each time for longer. ``error``: "" for a lock."""
        delayed = self._delayed.setdefault(id(end), _Delayed(end))
        was_short = delayed.wait_seconds < MAX_WAIT_SECONDS
        delayed.errors += bool(error)
        delayed.wait_seconds = min(2 * delayed.wait_seconds, MAX_WAIT_SECONDS)
        now = time.monotonic()
        delayed.due_at = now + delayed.wait_seconds
        if was_short and delayed.wait_seconds == MAX_WAIT_SECONDS:
            self._report(end, now - delayed.since, error)

    def errors(self, end: EndT) -> int:
        """Return how often an end has been delayed by an error."""
        delayed = self._delayed.get(id(end))
        return delayed.errors if delayed else 0

    def forget(self, ends: Iterable[EndT]) -> None:
        if self._delayed:
            for end in ends:
                self._delayed.pop(id(end), None)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next retry, None if no end is delayed."""
        if not self._delayed:
            return None
        return max(min(delayed.due_at for delayed in self._delayed.values()) - time.monotonic(), 0)

    def retry(self, write: Callable[[EndT], object]) -> None:
        """Call ``write`` with each end whose wait is over, for a limited time."""
        if not self._delayed:
            return
        began = time.monotonic()
        due = [delayed for delayed in self._delayed.values() if delayed.due_at <= began]
        for delayed in sorted(due, key=lambda delayed: delayed.due_at):
            write(delayed.end)
            if time.monotonic() - began > MAX_RETRY_SECONDS:
                return


class JobSink(Sink[Outcome]):
    """Writes outcomes to the table of jobs."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._store = context.store
        self._worker = context.worker
        #: The identities of outcomes that were replaced by the failure of their write.
        self._replaced: set[int] = set()
        #: Effects to publish: from this thread's writes, and from attempts that committed their outcome themselves.
        self._effects, self._committed = Effects(), Effects()
        #: The chains in these effects whose end has been reported.
        self._reported_chains: set[UUID] = set()

    def accept(self, outcome: Outcome) -> bool:
        """The claim loop can immediately claim a continuation that the attempt committed."""
        if outcome.effects is not None and outcome.effects.due_types:
            self._context.wake.set(outcome.effects.due_types)
        self._context.log_buffer.ended(outcome.job.key)
        return outcome.effects is None

    def take(self, batch: Iterable[Outcome]) -> None:
        for outcome in batch:
            if outcome.effects is not None:
                outcome.is_written = True
                self._committed.add(outcome.effects)

    def groups(self, batch: Collection[Outcome]) -> Iterator[Sequence[Outcome]]:
        """Yield one outcome of each attempt. Another one follows in the next step."""
        if batch:
            yield list({id(outcome.job): outcome for outcome in batch}.values())

    def has_written(self, outcome: Outcome) -> bool:
        return outcome.is_written

    def write(self, outcomes: Sequence[Outcome], uncertain: Collection[int]) -> list[Outcome]:
        by_kind: dict[OutcomeKind, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            if not outcome.is_written and outcome.ending is not OutcomeKind.ABANDONED:
                by_kind[OutcomeKind.COMPLETED if outcome.finished else outcome.ending].append(outcome)
        if not by_kind:
            return []
        with measured("finish", self._worker):
            missing = [outcome for kind in by_kind for outcome in self._write_kind(kind, by_kind[kind])]
        if not missing:
            return []
        leases = self._store.leases.check([outcome.job.key for outcome in missing])
        for outcome in missing:
            outcome.abandoned_reason = leases.lost.get(outcome.job.key, "")
            if id(outcome) in uncertain:
                outcome.is_written = self._was_committed(outcome, leases.completed)
        return [outcome for outcome in missing if outcome.job.key not in leases.lost]

    def _write_kind(self, kind: OutcomeKind, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write outcomes of one kind with as many statements as for a single outcome. Return those not written."""
        attempts, effects, cancelled = self._store.attempts, self._effects, set[AttemptKey]()
        rows: list[Any] = [outcome.finished or outcome.failed or outcome.job.key for outcome in outcomes]
        written: Collection[AttemptKey]
        if kind is OutcomeKind.COMPLETED:
            written = attempts.finish(rows, effects)
        elif kind is OutcomeKind.HANDED_BACK:
            begun = [outcome.job.key for outcome in outcomes if outcome.processor]
            waiting = [outcome.job.key for outcome in outcomes if not outcome.processor]
            written = attempts.hand_back(begun, effects) | attempts.hand_back(waiting, effects, has_begun=False)
        else:
            end = attempts.fail if kind is OutcomeKind.FAILED else attempts.reschedule
            written = statuses = end(rows, effects)
            cancelled = {key for key, status in statuses.items() if status == "cancelled"}
        are_all = len(written) == len(rows)  # The hash of a job's id is slow to compute.
        for outcome in outcomes:
            outcome.is_written = are_all or outcome.job.key in written
            if cancelled and outcome.job.key in cancelled:
                outcome.ending = OutcomeKind.CANCELLED
        return [] if are_all else [outcome for outcome in outcomes if not outcome.is_written]

    def _was_committed(self, outcome: Outcome, completed: Collection[AttemptKey]) -> bool:
        """Return whether a transaction that got no reply to its commit has written this outcome."""
        if outcome.failed and outcome.failed.is_failure:
            return self._store.attempts.has_failed(outcome.job.key, outcome.failed.kind)
        if outcome.finished:
            return outcome.job.key in completed
        state = self._store.jobs.state_of(outcome.job.id)
        return state in [(status, outcome.job.lease_number) for status in ("pending", "cancelled")]

    def replace(self, outcome: Outcome, error: Exception) -> bool:
        """Replace an outcome by a failure. If that cannot be written either, only this outcome is delayed."""
        if id(outcome) not in self._replaced:
            self._replaced.add(id(outcome))
            outcome.replace_by_failure(error)
            return True
        if not isinstance(error, Error):
            raise error
        log_error(logger, error, "The failure of job %s cannot be written yet: %s", outcome.job.id)
        return False

    def release(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes and drop their leases, regardless of the rest of their batch.

        Also reports the continuation of a completed job, or the end of its chain if it has only this job. The ends of
        other chains are read from the database.
        """
        holdings = self._context.leases.release(outcome.job.key for outcome in outcomes)
        self._context.counter.ended(outcomes, [holding.since if holding else None for holding in holdings])
        limited = self._context.queues.limited
        self._effects.freed_queues.update(outcome.job.queue for outcome in outcomes if outcome.job.queue in limited)
        is_end_observed, sharing = observes(ChainEnded), self._context.sharing_limits
        attempts, chains, continuations = [], [], []
        for outcome, holding in zip(outcomes, holdings, strict=True):
            job, finished = outcome.job, outcome.finished
            continuation = finished.continuation if finished else None
            ending, abandoned_reason, is_written = outcome.ending, "", outcome.is_written
            if not is_written:
                ending, abandoned_reason = OutcomeKind.ABANDONED, outcome.abandoned_reason or TAKEN
                if holding and not holding.is_reported:  # Otherwise the loss was reported when it was noticed.
                    reason = outcome.abandoned_reason or outcome.error or TAKEN
                    report(AttemptAbandoned(self._worker, job.id, reason))
            if sharing and job.type_name in sharing:
                self._effects.add_scheduled(sharing[job.type_name])
            attempts.append(
                AttemptEnded(
                    self._worker,
                    job.id,
                    job.chain_id,
                    job.type_name,
                    job.attempt,
                    ending,
                    outcome.seconds,
                    outcome.error,
                    continuation.type_name if continuation else None,
                    outcome.exception,
                    job.queue,
                    abandoned_reason,
                    job.wait_seconds,
                )
            )
            if is_written:
                self._context.observers.ended(outcome)
            if is_written and continuation:
                continuations.append((continuation, outcome.effects or self._effects))
            elif is_written and finished and not job.chain_index and is_end_observed:
                seconds = (job.last_attempt_at - job.created_at).total_seconds() + outcome.seconds
                facts = job.chain_id, job.type_name, "completed", max(seconds, 0.0), job.schedule_name
                chains.append(ChainEnded(self._worker, *facts))
                self._reported_chains.add(job.chain_id)
            if outcome.span is not None:
                created = [continuation.id] if is_written and continuation else []
                outcome.span.end(str(ending), outcome.exception, abandoned_reason, created)
        self._replaced.difference_update(map(id, outcomes))
        report(*attempts)
        report(*chains)
        for continuation, effects in continuations:
            report_created(self._store.using, [continuation], effects)
        self.is_published = False

    def report_delay(self, outcome: Outcome, seconds: float, error: str) -> None:
        report(OutcomeDelayed(self._worker, outcome.job.id, outcome.job.type_name, seconds, error))

    def publish(self) -> None:
        if not self.is_published:
            wake = self._context.wake
            if self._context.queues.has_limits or wake.is_eager:
                wake.set()
            elif self._effects.due_types:
                wake.set(self._effects.due_types)
        effects, committed, reported = self._effects, self._committed, self._reported_chains
        self._effects, self._committed, self._reported_chains = Effects(), Effects(), set()
        effects.add(committed)
        try:
            publish(self._store.using, effects, reported)
        finally:
            self.is_published = True


def ended_attempts(outcomes: Collection[Outcome]) -> list[EndedAttempt]:
    """Return the ends of attempts whose outcomes are still to be written."""
    return [
        EndedAttempt(
            outcome.ending.value,  # type: ignore[arg-type]
            outcome.finished or outcome.failed or outcome.job.key,
            outcome.retry_seconds(),
            has_begun=outcome.processor is not None,
        )
        for outcome in outcomes
        if outcome.effects is None and outcome.ending is not OutcomeKind.ABANDONED
    ]


#: The states of a record that was written, by the end of its attempt. Without an end, another process may have written
#: any state.
_WRITTEN = {
    "completed": ("completed",),
    "requeued": ("queued", "cancelled"),
    "handed_back": ("queued", "cancelled"),
    "errored": ("errored", "failed", "cancelled"),
    "failed": ("failed", "cancelled"),
}


class RecordSink(Sink[EndedRecord]):
    """Writes the ends of attempts to the tables of record models. ``on_written`` is called with each written one."""

    def __init__(self, context: WorkerContext, on_written: Callable[[EndedRecord], None] = lambda ended: None) -> None:
        self._context = context
        self._store = context.store
        self._worker = context.worker
        self._on_written = on_written
        self._throttle = WarningThrottle()
        #: The names of limited records with ends that were written, so that other workers may dequeue more of them.
        self._freed: set[str] = set()

    def accept(self, ended: EndedRecord) -> bool:
        ended.end = ended.end and _fitting(ended.kind, ended.end)
        return True

    def groups(self, batch: Collection[EndedRecord]) -> Iterable[Sequence[EndedRecord]]:
        return by_kind((ended.kind, ended) for ended in batch).values()

    def has_written(self, ended: EndedRecord) -> bool:
        return ended.state is not None or ended.end is None

    def write(self, ends: Sequence[EndedRecord], uncertain: Collection[int]) -> list[EndedRecord]:
        unwritten = {ended.key: ended for ended in ends if ended.end is not None and ended.state is None}
        if not unwritten:
            return []
        kind = ends[0].kind
        table = kind.table(self._store.using)
        with measured("record_end", self._worker, kind.name):
            states = self._store.records.end(table, [ended.end for ended in unwritten.values() if ended.end])
        written = [unwritten.pop(key) for key in states]
        for ended in written:
            ended.state = states[ended.key]
        if charges := [ended.charge for ended in written if ended.charge is not None and ended.is_handed_back]:
            self._store.rates.refund(charges)
        if not unwritten:
            return []
        found = self._store.records.check(table, list(unwritten))
        for key in found.lost.keys() & unwritten.keys():
            ended = unwritten[key]
            ended.abandoned_reason = found.lost[key]
            if id(ended) in uncertain and ended.end:
                state, number = self._store.records.state_of(table, key[0]) or ("", 0)
                if number == key[1] and state in _WRITTEN[ended.end.kind]:
                    ended.state = state
        return [unwritten[key] for key in found.locked]

    def replace(self, ended: EndedRecord, error: Exception) -> bool:
        """Replace an end that is refused: by an error, then by one without a message, and then only release the record.

        The record is then reset when its heartbeats are missing.
        """
        assert ended.end is not None  # noqa: S101 - for the type checker
        if ended.end.kind in ("completed", "requeued"):
            ended.error, ended.exception = describe(error), error
            end = ended.end._replace(kind="errored", message=ended.error, max_attempts=ended.kind.max_attempts)
            ended.end = _fitting(ended.kind, end)
        elif ended.end.message:
            log_error(logger, error, "The failure message of record %s cannot be written: %s", ended.key[0])
            ended.end = ended.end._replace(message="")
        else:
            text = "The end of record %s cannot be written. The record is reset when its heartbeats are missing: %s"
            log_error(logger, error, text, ended.key[0])
            ended.end, ended.abandoned_reason = None, "error"
        return True

    def release(self, ends: Sequence[EndedRecord]) -> None:
        for ended in ends:
            leases = self._context.record_leases[ended.kind.name]
            [holding] = leases.release([ended.key])
            if ended.is_handed_back and ended.exception is not None and self._throttle.allows():
                text = "Record %s of %r could not be loaded, and is queued again: %s"
                logger.warning(text, ended.key[0], ended.kind.name, log_text(ended.exception))
            reason = "" if ended.state is not None else ended.abandoned_reason or TAKEN
            if not reason:
                report(_event(self._worker, ended))
            elif holding and not holding.is_reported:  # Otherwise the loss was reported when it was noticed.
                report(AttemptAbandoned(self._worker, str(ended.key[0]), reason, ended.kind.name, kind="record"))
            if ended.span is not None:
                ended.span.end(ended.ending, ended.exception, reason, ())

    def released(self, ends: Sequence[EndedRecord]) -> None:
        self._freed.update(ended.kind.name for ended in ends if ended.kind.limits and ended.kind.limits.concurrency)
        for ended in ends:
            self._on_written(ended)
            ended.mark_written()

    @property
    def is_published(self) -> bool:  # type: ignore[override]
        return not self._freed

    def publish(self) -> None:
        freed, self._freed = self._freed, set()
        if freed:
            publish_after_commit(self._store.using, set(map(job_scheduled, freed)))

    def report_delay(self, ended: EndedRecord, seconds: float, error: str) -> None:
        report(OutcomeDelayed(self._worker, str(ended.key[0]), ended.kind.name, seconds, error, kind="record"))


def by_kind(pairs: Iterable[tuple[RecordType, Any]]) -> dict[RecordType, list[Any]]:
    grouped: dict[RecordType, list[Any]] = defaultdict(list)
    for kind, value in pairs:
        grouped[kind].append(value)
    return grouped


def _fitting(kind: RecordType, end: RecordEnd) -> RecordEnd:
    """Return the end with a message that fits into its column, also encoded. It is redacted before it is cut."""
    limit = kind.model_field("failure_message").max_length
    if limit is None or len(encode_text(end.message)) <= limit:
        return end
    message = redacted_text(end.message)[:limit]
    while len(encode_text(message)) > limit:
        message = message[: len(message) // 2]
    return end._replace(message=message)


def _event(worker: str, ended: EndedRecord) -> AttemptEnded:
    return AttemptEnded(
        worker,
        str(ended.key[0]),
        None,
        ended.kind.name,
        ended.attempt,
        ended.ending,
        ended.seconds,
        ended.error,
        None,
        ended.exception,
        ended.kind.queue,
        wait_seconds=ended.wait_seconds,
        kind="record",
    )
