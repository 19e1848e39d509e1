"""Writes the ends of record attempts, in one statement per model."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import getLogger

from django_jobchains.attempts.record_attempt import EndedRecord
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.payload_codecs import encode_text
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import RecordEnd
from django_jobchains.store.errors import (
    is_conflict,
    is_database_away,
    is_lock_timeout,
    is_out_of_time,
    is_statement_invalid,
)
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded
from django_jobchains.text.errors import describe, log_error, log_text
from django_jobchains.text.redaction import redacted_text
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.outcome_writer import GATHER_SECONDS, MAX_BATCH_SIZE, MAX_TIMEOUTS, TAKEN
from django_jobchains.worker.records.leases import by_kind
from django_jobchains.worker.threads import LOCK_SECONDS, waiting

logger = getLogger("django_jobchains")

#: The wait before a locked record is tried again.
LOCKED_WAIT_SECONDS = 0.1
#: The longest wait after other conflicts. It doubles with each retry.
MAX_WAIT_SECONDS = 5.0
#: The states of a record that was written, by the end of its attempt. Without an end, another process may have written
#: any state.
_WRITTEN = {
    "completed": ("completed",),
    "requeued": ("queued", "canceled"),
    "handed_back": ("queued", "canceled"),
    "errored": ("errored", "failed", "canceled"),
    "failed": ("failed", "canceled"),
}


class RecordWriter:
    """Takes the ends of attempts from the slots' threads and writes them on its own thread.

    ``on_written`` is called with each end that is written.
    """

    def __init__(self, context: WorkerContext, on_written: Callable[[EndedRecord], None] = lambda ended: None) -> None:
        self._context = context
        self.store = context.store
        self.worker = context.worker
        self.on_written = on_written
        self._queue: queue.SimpleQueue[EndedRecord | None] = queue.SimpleQueue()
        self._is_enough = threading.Event()
        self._lock = threading.Lock()
        #: All ends that were put and are not written and reported yet, by identity.
        self._pending: dict[int, EndedRecord] = {}
        self._batch: dict[int, EndedRecord] = {}
        #: Ends that could not be written, for example because of a lock, and when to try them again.
        self._delayed: list[tuple[float, EndedRecord]] = []
        #: The number of conflicts and time limits of each end, by identity.
        self._conflicts: Counter[int] = Counter()
        self._throttle = WarningThrottle()
        #: Ends that may be committed although the statement raised an error.
        self._uncertain: set[int] = set()

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def is_behind(self) -> bool:
        return len(self._pending) - len(self._delayed) > 2 * MAX_BATCH_SIZE

    def pending(self) -> list[EndedRecord]:
        """Return the ends that are not written and reported yet. Can be called from any thread."""
        with self._lock:
            return list(self._pending.values())

    def put(self, ended: EndedRecord) -> None:
        ended.end = ended.end and _fitting(ended.kind, ended.end)
        with self._lock:
            self._pending[id(ended)] = ended
        self._queue.put(ended)
        if not any(self._context.backlogs) or self._queue.qsize() >= MAX_BATCH_SIZE:
            self._is_enough.set()

    def interrupt(self) -> None:
        """End the wait for an end."""
        self._queue.put(None)

    def step(self) -> None:
        """Gather ends and write them. After an error, the next step continues with the rest."""
        self.store.connection.ensure_connection()  # Opened early, because the slots might take the last connection.
        if not self._batch:
            self._gather()
        with self.store.db.waits_at_most(LOCK_SECONDS):
            for kind, ends in by_kind((ended.kind, ended) for ended in self._batch.values()).items():
                self._write(kind, ends)

    def _gather(self) -> None:
        self._is_enough.clear()
        with waiting(), suppress(queue.Empty):
            self._take(self._queue.get(timeout=self._seconds_to_next()))
        if self._batch and any(self._context.backlogs):
            self._is_enough.wait(GATHER_SECONDS)
        with suppress(queue.Empty):
            while len(self._batch) < MAX_BATCH_SIZE:
                self._take(self._queue.get_nowait())
        now = time.monotonic()
        self._batch |= {id(ended): ended for due_at, ended in self._delayed if due_at <= now}
        self._delayed = [(due_at, ended) for due_at, ended in self._delayed if due_at > now]

    def _take(self, ended: EndedRecord | None) -> None:
        if ended is not None:
            self._batch[id(ended)] = ended

    def _seconds_to_next(self) -> float | None:
        if not self._delayed:
            return None
        return max(min(due_at for due_at, _ in self._delayed) - time.monotonic(), 0)

    # Writing

    def _write(self, kind: RecordType, ends: Sequence[EndedRecord]) -> None:
        try:
            self._write_all(kind, ends)
        except Exception as error:
            self._raise_if_away(error, ends)
            for ended in ends:  # An end that cannot be written must not affect the others.
                self._write_one(kind, ended)

    def _write_one(self, kind: RecordType, ended: EndedRecord) -> None:
        try:
            self._write_all(kind, [ended])
        except Exception as error:
            self._raise_if_away(error, [ended])
            is_slow = is_out_of_time(error) and self._conflicts[id(ended)] < MAX_TIMEOUTS
            if is_slow or is_conflict(error) or is_statement_invalid(error):
                self._try_again(ended, error)
            else:
                self._reduce(ended, error)

    def _try_again(self, ended: EndedRecord, error: Exception) -> None:
        """Delay an end after a conflict, or if its table lacks a column: each time for longer, unless it is locked."""
        if self._throttle.allows():
            log_error(logger, error, "The end of record %s cannot be written yet: %s", ended.key[0])
        if is_lock_timeout(error):
            self._delay(ended)
            return
        seconds = LOCKED_WAIT_SECONDS * 2.0 ** min(self._conflicts[id(ended)], 10)
        self._conflicts[id(ended)] += 1
        self._delay(ended, min(seconds, MAX_WAIT_SECONDS))

    def _reduce(self, ended: EndedRecord, error: Exception) -> None:
        """Replace an end that is refused: by an error, then by one without a message, and then only release the record.

        The record is then reset when its heartbeats are missing.
        """
        assert ended.end is not None  # noqa: S101 - for the type checker
        if ended.end.kind in ("completed", "requeued"):
            ended.error, ended.exception = describe(error), error
            end = ended.end._replace(kind="errored", message=ended.error, max_attempts=ended.kind.max_attempts)
            ended.end = _fitting(ended.kind, end)
            self._delay(ended)
        elif ended.end.message:
            log_error(logger, error, "The failure message of record %s cannot be written: %s", ended.key[0])
            ended.end = ended.end._replace(message="")
            self._delay(ended)
        else:
            text = "The end of record %s cannot be written. The record is reset when its heartbeats are missing: %s"
            log_error(logger, error, text, ended.key[0])
            ended.end, ended.abandoned_reason = None, "error"
            self._release(ended)

    def _raise_if_away(self, error: Exception, ends: Sequence[EndedRecord]) -> None:
        """Raise the error of an unavailable database, which may have committed the ends. They are retried later."""
        if is_database_away(error):
            self._uncertain |= {id(ended) for ended in ends}
            raise error

    def _write_all(self, kind: RecordType, ends: Sequence[EndedRecord]) -> None:
        table = kind.table(self.store.using)
        unwritten = {ended.key: ended for ended in ends if ended.end is not None and ended.state is None}
        if unwritten:
            with measured("record_end", self.worker, kind.name):
                states = self.store.records.end(table, [ended.end for ended in unwritten.values() if ended.end])
            for key, state in states.items():
                unwritten.pop(key).state = state
        locked = self._locked(kind, unwritten) if unwritten else set()
        for ended in ends:
            if ended.key in locked:
                self._delay(ended)
            else:
                self._release(ended)

    def _locked(self, kind: RecordType, unwritten: dict[tuple[object, int], EndedRecord]) -> set[tuple[object, int]]:
        """Return the records to retry, because they are still held. Note the records that were written before."""
        table = kind.table(self.store.using)
        found = self.store.records.check(table, list(unwritten))
        for key in found.lost.keys() & unwritten.keys():
            ended = unwritten[key]
            ended.abandoned_reason = found.lost[key]
            if id(ended) in self._uncertain and ended.end:
                state, number = self.store.records.state_of(table, key[0]) or ("", 0)
                if number == key[1] and state in _WRITTEN[ended.end.kind]:
                    ended.state = state
        return found.locked

    def _delay(self, ended: EndedRecord, seconds: float = LOCKED_WAIT_SECONDS) -> None:
        self._delayed.append((time.monotonic() + seconds, ended))
        self._batch.pop(id(ended), None)

    def _release(self, ended: EndedRecord) -> None:
        """Report an end and release its record."""
        was_held = self._context.record_leases.release(ended.kind, ended.key)
        if ended.is_handed_back and ended.exception is not None and self._throttle.allows():
            text = "Record %s of %r could not be loaded, and is queued again: %s"
            logger.warning(text, ended.key[0], ended.kind.name, log_text(ended.exception))
        if ended.state is not None:
            report(_event(self.worker, ended))
        elif was_held:  # Otherwise the loss was reported when the worker noticed it.
            record, reason = str(ended.key[0]), ended.abandoned_reason or TAKEN
            report(AttemptAbandoned(self.worker, record, reason, ended.kind.name, kind="record"))
        if ended.span is not None:
            reason = "" if ended.state is not None else ended.abandoned_reason or TAKEN
            ended.span.end(ended.ending, ended.exception, reason, ())
        with self._lock:
            self._pending.pop(id(ended), None)
            self._uncertain.discard(id(ended))
        self._conflicts.pop(id(ended), None)
        self._batch.pop(id(ended), None)
        self.on_written(ended)
        ended.mark_written()


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
