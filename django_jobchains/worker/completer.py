"""Writes the outcomes of attempts, many in one transaction.

Only attempts that opened no transaction end here: one that wrote in ``complete()`` committed with its own rows. A crash
before the write runs the job again, as a crash before a commit would. Leases are renewed until the outcome is written.
"""

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from django_jobchains.announcing import announce
from django_jobchains.attempts import Ending, Outcome
from django_jobchains.leases import HeldLeases
from django_jobchains.store import AttemptKey, Effects, HeldLease, Store
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptEnded, LeaseLost
from django_jobchains.worker.threads import is_database_away, waiting

MOST_IN_A_BATCH = 200
#: How long the first result of a batch waits for others, and only while jobs wait for a slot.
GATHER_SECONDS = 0.004


class Completer:
    def __init__(
        self,
        store: Store,
        leases: HeldLeases,
        *,
        worker: str,
        is_busy: Callable[[], bool],
        on_written: Callable[[bool], None],
        on_ended: Callable[[Outcome], None],
    ) -> None:
        self._store = store
        self._leases = leases
        self._worker = worker
        self._is_busy = is_busy
        self._on_written = on_written
        self._on_ended = on_ended
        self._queue: queue.SimpleQueue[Outcome | Effects | None] = queue.SimpleQueue()
        #: Set when a batch need not wait for more outcomes.
        self._is_enough = threading.Event()
        self._batch: list[Outcome] = []
        #: Of the batch at hand: a retry after an error must not take its own writes for somebody else's.
        self._written: set[AttemptKey] = set()
        self._effects = Effects()
        #: Effects of attempts that committed themselves: put, and of these taken.
        self._unannounced = self._taken = 0
        self._unwritten = 0
        self._was_behind = False
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return not self._unwritten

    @property
    def is_through(self) -> bool:
        """Whether, besides, everybody was told what was written."""
        return self.is_idle and not self._unannounced

    @property
    def is_behind(self) -> bool:
        """Whether outcomes come in faster than they are written: then no more jobs are claimed."""
        return self._unwritten > 2 * MOST_IN_A_BATCH

    def put(self, outcome: Outcome) -> None:
        """Takes an outcome to write; one that is written already is through at once."""
        if outcome.is_committed:
            self._settle([outcome], {outcome.job.key})
            self._on_written(bool(outcome.effects.due_types))
            with self._lock:
                self._unannounced += 1
            self._queue.put(outcome.effects)
        else:
            with self._lock:
                self._unwritten += 1
            self._queue.put(outcome)
            if self._queue.qsize() >= MOST_IN_A_BATCH or not self._is_busy():
                self._is_enough.set()

    def wake(self) -> None:
        self._queue.put(None)

    def step(self) -> None:
        """Gathers a batch and writes it. After an error what is left of the batch is tried again."""
        self._store.connection.ensure_connection()  # in time: the slots might take the last one
        if not self._batch:
            self._gather()
        if self._batch:
            self._was_behind = False
            self._write(list(self._batch))
            self._written.clear()
            self._on_written(self._was_behind or bool(self._effects.due_types))
        self._announce()

    def _announce(self) -> None:
        effects, self._effects = self._effects, Effects()
        announce(self._store.using, effects)
        with self._lock:
            self._unannounced -= self._taken
        self._taken = 0

    def _gather(self) -> None:
        """One outcome, and those that come soon after it. It is not woken by each of them."""
        self._is_enough.clear()
        with waiting():
            self._take(self._queue.get())
        if self._is_busy():
            self._is_enough.wait(GATHER_SECONDS)
        with suppress(queue.Empty):
            while len(self._batch) < MOST_IN_A_BATCH:
                self._take(self._queue.get_nowait())

    def _take(self, item: Outcome | Effects | None) -> None:
        if isinstance(item, Effects):
            self._effects.add(item)
            self._taken += 1
        elif item is not None:
            self._batch.append(item)

    def _write(self, batch: Sequence[Outcome]) -> None:
        try:
            self._write_all(batch)
        except Exception as error:
            if is_database_away(error):
                raise
            for outcome in batch:  # one of them cannot be written: the others must not suffer for it
                self._write_one(outcome)

    def _write_one(self, outcome: Outcome) -> None:
        try:
            self._write_all([outcome])
        except Exception as error:
            if is_database_away(error) or outcome.job.key in self._written:
                raise
            outcome.replace_by_failure(error)
            self._write_all([outcome])

    def _write_all(self, batch: Sequence[Outcome]) -> None:
        open_ = [outcome for outcome in batch if outcome.job.key not in self._written]
        if finished := [outcome.finished for outcome in open_ if outcome.finished]:
            self._written |= self._store.finish(finished, self._effects)
        cancelled: set[AttemptKey] = set()
        for ending, end in ((Ending.RESCHEDULED, self._store.reschedule), (Ending.FAILED, self._store.fail)):
            if tries := [outcome.failed for outcome in open_ if outcome.failed and outcome.ending is ending]:
                statuses = end(tries, self._effects)
                self._written |= set(statuses)
                cancelled |= {key for key, status in statuses.items() if status == "cancelled"}
        if leases := [_lease(outcome) for outcome in open_ if outcome.ending is Ending.HANDED_BACK]:
            self._written |= self._store.hand_back(leases, self._effects)
        for outcome in open_:
            if outcome.job.key in cancelled:
                outcome.ending = Ending.CANCELLED
        self._settle(batch, self._written)
        self._forget(batch)

    def _settle(self, batch: Sequence[Outcome], written: Collection[AttemptKey]) -> None:
        """These are through, whatever happens to the rest of their batch."""
        held = self._leases.let_go(outcome.job for outcome in batch)
        for outcome in batch:
            self._report(outcome, outcome.job.key in written, outcome.job.key in held)

    def _forget(self, batch: Sequence[Outcome]) -> None:
        """Once, and last: what fails before it is tried again with the batch."""
        settled = {id(outcome) for outcome in batch}
        self._batch = [outcome for outcome in self._batch if id(outcome) not in settled]
        with self._lock:
            self._was_behind |= self.is_behind  # the claim loop may wait for it
            self._unwritten -= len(batch)

    def _report(self, outcome: Outcome, is_written: bool, was_held: bool) -> None:
        job = outcome.job
        if not is_written and not was_held:  # that it was lost was said when the worker heard of it
            return
        if not is_written:
            report(LeaseLost(self._worker, job.id, outcome.error or "taken_by_another_worker"))
            return
        self._on_ended(outcome)
        continuation = outcome.finished and outcome.finished.continuation
        report(
            AttemptEnded(
                self._worker,
                job.id,
                job.chain_id,
                job.type_name,
                job.attempt,
                outcome.ending,
                outcome.seconds,
                outcome.error,
                continuation.type_name if continuation else None,
            )
        )


def _lease(outcome: Outcome) -> HeldLease:
    return HeldLease(outcome.job.id, outcome.job.lease_number, 0)
