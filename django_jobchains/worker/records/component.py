"""Everything that a worker needs to run records, as one component."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from typing import Any

from django_jobchains.attempts.record_attempt import EndedRecord, RecordAttempt
from django_jobchains.db.connections import close_thread_connections
from django_jobchains.notifications import Hint
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import RecordEnd, RecordTable
from django_jobchains.store.errors import is_conflict, is_database_away
from django_jobchains.text.errors import log_error
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.record_ends import RecordSink, by_kind
from django_jobchains.worker.records.conditions import Conditions
from django_jobchains.worker.records.lane import RecordLane
from django_jobchains.worker.slots.lanes import SlotPool
from django_jobchains.worker.threads import LOCK_SECONDS

logger = getLogger("django_jobchains")

DEFERRED = (
    "%d ends of records of %r could not be written, for example because the records are locked. They are stored, and "
    "any worker applies them when the locks are released."
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
            self._wake.query_in(0.0, is_shared=False)

    def _on_written(self, ended: EndedRecord) -> None:
        if ended.state in ("completed", "errored", "failed"):
            self._context.counter.count(ended.kind.name, ended.seconds, is_completed=ended.state == "completed")
        lane = self.lanes[ended.kind.name]
        if ended.ending != "handed_back":  # Otherwise a table that is locked would be queried without a pause.
            lane.look_soon()
        elif ended.exception is not None:
            lane.look_later()
        if (
            self.writer.is_idle
            or self._wake.is_eager
            or ended.kind.slots is not None
            or self._context.queues.has_limits
        ):
            self._wake.set()

    @property
    def _conditions(self) -> list[Conditions]:
        return [lane.conditions for lane in self.lanes.values() if lane.conditions is not None]

    # Stopping

    def hand_back(self, attempts: Iterable[Any]) -> int:
        """Hand back the records among attempts that were taken back from the slots; return how many."""
        of_records = [attempt for attempt in attempts if isinstance(attempt, RecordAttempt)]
        for attempt in of_records:
            self.writer.put(attempt.hand_back())
        return len(of_records)

    def finish(self, seconds: float) -> int:
        """Write the last ends, then hand back the records of attempts that did not end; return how many."""
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
        if ends:
            self._write_on_thread(ends, seconds)
        for kind, key in held:
            self._context.record_leases[kind.name].release([key])
        return len(rest)

    def close(self) -> None:
        """End the waits of the threads, and of attempts that wait for the write of their ends."""
        self.writer.interrupt()
        for conditions in self._conditions:
            conditions.interrupt()
        for ended in self.writer.pending():
            ended.mark_written()

    def _write_on_thread(self, ends: list[tuple[RecordType, RecordEnd]], seconds: float) -> None:
        """Write on another thread, so that an unresponsive database cannot delay the end."""
        thread = threading.Thread(target=self._write, args=[ends], name="jobchains-hand-back-records", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            logger.warning("The database does not answer. Records are reset when their heartbeats are missing.")

    def _write(self, ends: list[tuple[RecordType, RecordEnd]]) -> None:
        try:
            for kind, of_kind in by_kind(ends).items():
                self._write_ends(kind, of_kind)
        finally:
            close_thread_connections()

    def _write_ends(self, kind: RecordType, ends: list[RecordEnd]) -> None:
        """Write ends. Those that cannot be written now, for example because of a lock, are stored."""
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
            text = "Records of %r could not be handed back; they are reset when their heartbeats are missing: %s"
            log_error(logger, error, text, kind.name)

    def _unwritten(self, table: RecordTable, ends: Sequence[RecordEnd]) -> Sequence[RecordEnd]:
        """Write ends, and return those that are locked or refused. One that is refused does not affect the others."""
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
