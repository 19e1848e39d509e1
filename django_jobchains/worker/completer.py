"""Writes the outcomes of attempts, many in one transaction.

Only attempts that opened no transaction end here: one that wrote in ``complete()`` committed with its own rows. A crash
before the write runs the job again, as a crash before a commit would. Leases are renewed until the outcome is written.
"""

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from logging import getLogger

from django.db import Error

from django_jobchains.announcing import announce
from django_jobchains.attempts import Ending, Outcome
from django_jobchains.leases import HeldLeases
from django_jobchains.store import AttemptKey, Effects, EndedAttempt, HeldLease, Store
from django_jobchains.store.errors import is_conflict, is_database_away, is_out_of_time
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptEnded, LeaseLost
from django_jobchains.texts import describe, log_error
from django_jobchains.worker.delayed_outcomes import DelayedOutcomes
from django_jobchains.worker.threads import LOCK_SECONDS, waiting

MOST_IN_A_BATCH = 200
#: How long the first result of a batch waits for others, and only while jobs wait for a slot.
GATHER_SECONDS = 0.004
#: How often an outcome that meets a time limit alone is tried again before its attempt fails: the server may be busy.
MAX_TIMEOUTS = 3

logger = getLogger("django_jobchains")


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
        #: Attempts whose outcomes may be committed although the transaction raised.
        self._uncertain: set[AttemptKey] = set()
        self._delayed = DelayedOutcomes(worker)
        self._effects = Effects()
        #: Effects of attempts that committed themselves: put, and of these taken.
        self._unannounced = self._taken = 0
        self._unwritten: dict[AttemptKey, Outcome] = {}
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
        return len(self._unwritten) - len(self._delayed) > 2 * MOST_IN_A_BATCH

    def unwritten(self) -> list[EndedAttempt]:
        """From any thread: how attempts ended whose outcomes are not written yet."""
        with self._lock:
            return [_ended(outcome) for outcome in self._unwritten.values() if _has_row(outcome)]

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
                self._unwritten[outcome.job.key] = outcome
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
        with self._store.waits_at_most(LOCK_SECONDS):
            if self._batch:
                self._was_behind = False
                self._write(list(self._batch))
                self._on_written(self._was_behind or bool(self._effects.due_types))
            self._delayed.try_again(self._write_one)
            self._written.clear()
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
        with waiting(), suppress(queue.Empty):
            self._take(self._queue.get(timeout=self._delayed.seconds_to_next()))
        if self._batch and self._is_busy():
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
            self._raise_if_away(error, batch)
            for outcome in batch:  # one of them cannot be written: the others must not suffer for it
                self._write_one(outcome)

    def _raise_if_away(self, error: Exception, outcomes: Sequence[Outcome]) -> None:
        """They are tried again when the database answers; it may have committed them nevertheless."""
        if is_database_away(error):
            self._uncertain |= {outcome.job.key for outcome in outcomes}
            raise error

    def _write_one(self, outcome: Outcome) -> None:
        try:
            self._write_all([outcome])
        except Exception as error:
            self._raise_if_away(error, [outcome])
            if outcome.job.key in self._written:
                raise
            if is_conflict(error) or (is_out_of_time(error) and self._delayed.tries(outcome.job.key) < MAX_TIMEOUTS):
                self._delay(outcome, describe(error))
                return
            outcome.replace_by_failure(error)
            self._write_failure(outcome)

    def _write_failure(self, outcome: Outcome) -> None:
        """The failure of an attempt whose outcome cannot be written; whatever is wrong, it holds up no others."""
        try:
            self._write_all([outcome])
        except Error as error:
            self._raise_if_away(error, [outcome])
            log_error(logger, error, "The failure of job %s cannot be written yet: %s", outcome.job.id)
            self._delay(outcome, describe(error))

    # Outcomes that locks delay

    def _delay(self, outcome: Outcome, error: str = "") -> None:
        self._delayed.add(outcome, error)
        self._batch = [other for other in self._batch if other is not outcome]

    def _locked(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Those that were not written, and are still to be: someone else has locked their jobs."""
        missing = [outcome for outcome in outcomes if outcome.job.key not in self._written and _has_row(outcome)]
        if not missing:
            return []
        lost = self._store.check([_lease(outcome) for outcome in missing]).lost
        self._written |= {outcome.job.key for outcome in missing if self._was_committed(outcome)}
        return [outcome for outcome in missing if outcome.job.key not in lost]

    def _was_committed(self, outcome: Outcome) -> bool:
        """Whether the row says that a transaction whose commit was not answered has written this outcome."""
        if outcome.job.key not in self._uncertain:
            return False
        if outcome.failed:
            return self._store.has_failed(outcome.job.key)
        found = self._store.look(outcome.job.id)
        return found == ("completed" if outcome.finished else "pending", outcome.job.lease_number)

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
        locked = self._locked(open_)
        for outcome in locked:
            self._delay(outcome)
        keys = {outcome.job.key for outcome in locked}
        through = [outcome for outcome in batch if outcome.job.key not in keys]
        self._settle(through, self._written)
        self._forget(through)

    def _settle(self, batch: Sequence[Outcome], written: Collection[AttemptKey]) -> None:
        """These are through, whatever happens to the rest of their batch."""
        held = self._leases.let_go(outcome.job for outcome in batch)
        for outcome in batch:
            self._report(outcome, outcome.job.key in written, outcome.job.key in held)

    def _forget(self, batch: Sequence[Outcome]) -> None:
        """Once, and last: what fails before it is tried again with the batch."""
        settled = {id(outcome) for outcome in batch}
        self._batch = [outcome for outcome in self._batch if id(outcome) not in settled]
        keys = {outcome.job.key for outcome in batch}
        self._uncertain -= keys
        self._delayed.forget(keys)
        with self._lock:
            self._was_behind |= self.is_behind  # the claim loop may wait for it
            for key in keys:
                self._unwritten.pop(key, None)

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


def _has_row(outcome: Outcome) -> bool:
    """Whether there is something to write."""
    return outcome.ending is not Ending.ABANDONED


def _ended(outcome: Outcome) -> EndedAttempt:
    row = outcome.finished or outcome.failed or _lease(outcome)
    return EndedAttempt(outcome.ending.value, row)  # type: ignore[arg-type]


def _lease(outcome: Outcome) -> HeldLease:
    return HeldLease(outcome.job.id, outcome.job.lease_number, 0)
