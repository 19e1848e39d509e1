"""The transactions of one attempt: ``prepare``, ``complete``, and the order in which a handler may use them."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from logging import getLogger
from typing import TYPE_CHECKING, Any, NoReturn, Unpack
from uuid import UUID

from django.db import DatabaseError, Error, OperationalError, transaction

from django_jobchains.attempts.outcome import raising_phase_conflict
from django_jobchains.db.connections import (
    ThreadConnections,
    close_thread_connections,
    drop_connection,
    is_broken,
    is_lost,
    own_statements,
)
from django_jobchains.enqueue_options import ContinuationOptions
from django_jobchains.exceptions import ConnectionLost, JobLocked, LeaseLost, PhaseError, TransactionEnded
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.running_job import Continuation, PrepareMode
from django_jobchains.middleware.hooks import around, defines
from django_jobchains.models import Chain
from django_jobchains.policies import Lease
from django_jobchains.registry.job_types import Processor, new_continuation
from django_jobchains.registry.registry import Registry
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, HeldLease, OpenTransaction, Store
from django_jobchains.store.errors import is_lock_timeout
from django_jobchains.store.leases import lost_reason
from django_jobchains.telemetry.tracing import phase
from django_jobchains.text.errors import log_error

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

logger = getLogger("django_jobchains")


class AttemptPhases:
    """Opens the completion transaction at most once, and commits it only after the handler has returned."""

    #: How long to wait for a job row that another transaction has locked. None: until it is free.
    lock_seconds: float | None = None

    def __init__(
        self,
        job: ClaimedJob,
        processor: Processor,
        lease: Lease,
        store: Store,
        registry: Registry,
        signal: AbortSignal,
    ) -> None:
        self.signal = signal
        self.job = job
        self.processor = processor
        self._lease_seconds = lease.seconds
        self.store = store
        self.registry = registry
        #: The argument of middleware hooks: a ``RunningJob`` or a ``Batch``. Set only if there is middleware, because
        #: it creates a reference cycle, and there may be thousands of attempts per second.
        self.running: Any = None
        #: The error of a phase. It fails the attempt even if the handler swallows it.
        self.error: BaseException | None = None
        self.continuation: Continuation | None = None
        #: The spans of the handler and of the attempt at this job, which differ in batches. None without tracing.
        self.span: AttemptSpan | None = None
        self.job_span: AttemptSpan | None = None
        #: The last transaction that was opened, as the database identifies it.
        self.transaction: OpenTransaction | None = None
        self._atomic: transaction.Atomic | None = None
        self._is_prepared = self._is_completing = False
        self._has_database_error = False

    # Around the handler

    def begin(self) -> None:
        """Check the connections of the handler's thread. Close all of them if one cannot even be checked."""
        self._thread = threading.get_ident()
        try:
            self._connections = ThreadConnections()
        except Exception:
            close_thread_connections()
            self._connections = ThreadConnections()

    def end(self) -> None:
        """Clean up the thread's connections. A failure does not change how the attempt ended.

        After a database error the connections are not used again: on SQLite, a result that was not read completely
        blocks all later writes.
        """
        try:
            self._connections.clean(suspicious=self._has_database_error)
        except BaseException as error:
            text = "The connections of job %s could not be cleaned up, so they are closed: %s"
            log_error(logger, error, text, self.job.id)
            close_thread_connections()

    def check_after_handler(self) -> None:
        """Raise what prevents completing: a swallowed error of a phase, or a transaction left open."""
        if self.error is not None:
            raise self.error
        if self._atomic:
            self._check_inside()
            self._connections.check_others(self._connection)
        else:
            self._connections.check()

    @property
    def needs_completion(self) -> bool:
        """Whether middleware has hooks around ``complete()``, which the handler has not used."""
        if self._is_completing or self.error is not None:
            return False
        return defines(self.processor.middleware, "around_complete")

    def complete_for_middleware(self) -> None:
        """Call ``complete()`` for a handler that has returned without it, if middleware has hooks around it."""
        if self.needs_completion:
            self.check_after_handler()
            with self.complete():
                pass

    def finish(self, finished: Sequence[FinishedJob]) -> Effects:
        """Write the completed attempts in the open transaction, and commit it.

        Raise ``LeaseLost`` if another worker has taken a job. A database error counts as an error of the phase, because
        the handler's writes are undone.
        """
        effects = Effects()
        try:
            self._write(finished, effects)
            self.commit()
        except (LeaseLost, TransactionEnded):
            raise
        except Exception as error:
            # The reply to the commit may be lost, or an on_commit hook may have failed. The rows show which.
            self.error = error
            self.roll_back(error)
            if not self._is_committed(finished):
                with raising_phase_conflict():
                    raise
            text = "Completed %s. An error after the commit does not change that: %s"
            log_error(logger, error, text, ", ".join(f"job {row.job_id}" for row in finished))
        return effects

    def _write(self, finished: Sequence[FinishedJob], effects: Effects) -> None:
        written = self.store.attempts.finish(
            finished, effects, is_locked=True, transaction=self.transaction, is_last=True
        )
        for row in finished:
            if row.key not in written:
                raise LeaseLost(row.job_id, "taken_by_another_worker")

    def _is_committed(self, finished: Sequence[FinishedJob]) -> bool:
        """Query the first job. The others were in the same transaction."""
        return bool(self.store.leases.check([row.key for row in finished[:1]]).completed)

    def give_up(self, error: BaseException) -> None:
        """Roll back, because this error ended the attempt."""
        self.note(error)
        self.roll_back(error)

    def note(self, error: BaseException) -> None:
        """Record whether the connections had an error."""
        self._has_database_error |= isinstance(error, Error)

    # Methods that handlers call

    @contextmanager
    def prepare(self, mode: PrepareMode) -> Iterator[None]:
        self._check_thread()
        if mode not in ("staged", "atomic"):
            raise PhaseError(f"prepare(mode={mode!r}): 'staged' or 'atomic'.")
        if self._is_prepared or self._is_completing:
            raise PhaseError("prepare() can be used once, and before complete().")
        try:
            self.open()
            self._is_prepared = True
            with phase(self.span, "prepare"), around(self.processor.middleware, "around_prepare", self.running):
                yield
            if mode == "staged":
                self._check_inside()
                self.renew()
                self.commit()
        except BaseException as error:
            self._fail(error)
            raise

    @contextmanager
    def complete(self) -> Iterator[None]:
        self._check_thread()
        if self._is_completing:
            raise PhaseError("complete() can be used once.")
        try:
            if not self._atomic:
                self.open()
            self._is_completing = True
            with phase(self.span, "complete"), around(self.processor.middleware, "around_complete", self.running):
                yield
        except BaseException as error:
            self._fail(error)
            raise

    def continue_with(self, job_type: Any, input: Any, **options: Unpack[ContinuationOptions]) -> Continuation:
        if self.continuation is not None:
            raise PhaseError("continue_with() can be used once: a job has one continuation.")
        target = self.registry.job_type(job_type)
        new = new_continuation(self.job, self.processor.job_type, target, input, options)
        if self.job_span is not None:
            self.job_span.send(new, self.store.chains.contexts)
        self.continuation = Continuation(new)
        return self.continuation

    def blockers(self) -> list[Chain]:
        return read_blockers([self.job.id], self.store, self.registry).get(self.job.id, [])

    def aprepare(self, function: Any, mode: PrepareMode) -> NoReturn:
        raise PhaseError("job.aprepare() is for 'async def' handlers: use 'with job.prepare():'.")

    def acomplete(self, function: Any) -> NoReturn:
        raise PhaseError("job.acomplete() is for 'async def' handlers: use 'with job.complete():'.")

    def ablockers(self) -> NoReturn:
        raise PhaseError("job.ablockers() is for 'async def' handlers: use job.blockers.")

    # The transaction

    @property
    def is_open(self) -> bool:
        return self._atomic is not None

    @property
    def lease(self) -> HeldLease:
        return HeldLease(self.job.id, self.job.lease_number, self._lease_seconds)

    def open(self) -> None:
        """Open the transaction, lock the job row and check the lease, in this order.

        Raise ``LeaseLost``, and ``JobLocked`` if the row stays locked for longer than ``lock_seconds``.
        """
        if self._connections.is_left_open(self.store.connection):
            if is_lost(self.store.connection):
                raise ConnectionLost(self.store.using)
            raise PhaseError("Close your own transaction before job.prepare() or job.complete().")
        try:
            self._open_on_sound_connection(partial(self.lock, skips=self.lock_seconds is not None))
        except JobLocked as error:
            # The first attempt does not wait, because a time limit needs additional statements.
            self.roll_back(error)
            self._open_on_sound_connection(self._lock_within_limit)

    def _open_on_sound_connection(self, lock: Callable[[], None]) -> None:
        try:
            self._open_and_lock(lock)
        except DatabaseError as error:
            # The connection broke while it was idle, SQLite has a half-read result, another transaction has written the
            # row while this one waited, or a handler has changed the session, for example with DISCARD ALL.
            self.roll_back(error)
            if self.store.connection.in_atomic_block:  # inside a test's transaction
                raise
            drop_connection(self.store.connection)
            with raising_phase_conflict():
                self._open_and_lock(lock)

    def _open_and_lock(self, lock: Callable[[], None]) -> None:
        atomic = transaction.atomic(using=self.store.using)
        atomic.__enter__()
        self._atomic = atomic
        self._connection = self.store.connection
        self._depth = len(self._connection.savepoint_ids)
        self.transaction = OpenTransaction()
        lock()

    def _lock_within_limit(self) -> None:
        try:
            with self.store.db.waits_within(self.lock_seconds or 0):
                self.lock()
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            raise JobLocked from error

    def lock(self, *, skips: bool = False) -> None:
        found = self.store.attempts.lock(self.job.id, self.transaction, skips=skips)
        if not self.signal.lock_row():
            raise LeaseLost(self.job.id, self.signal.reason or "error")
        if reason := lost_reason(found, self.job.lease_number):
            raise LeaseLost(self.job.id, reason)

    def unlock(self) -> None:
        """Note that the transaction no longer locks the job row."""
        self.signal.is_row_locked = False

    def renew(self) -> None:
        """Renew the lease, which the worker could not do while the row was locked. Raise ``TransactionEnded``."""
        self.store.leases.renew([self.lease], self.transaction)

    def commit(self) -> None:
        if atomic := self._close():
            atomic.__exit__(None, None, None)

    def roll_back(self, error: BaseException) -> None:
        """Undo an open transaction. If that fails, the connection is not used again."""
        atomic = self._close()
        if atomic is None:
            return
        if len(self._connection.savepoint_ids) != self._depth:
            drop_connection(self.store.connection)
            return
        try:
            atomic.__exit__(type(error), error, error.__traceback__)
        except Exception:
            drop_connection(self.store.connection)

    def _close(self) -> transaction.Atomic | None:
        atomic, self._atomic = self._atomic, None
        self.unlock()
        return atomic

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, JobLocked):  # The phase has not begun then, and may be tried again.
            self.error = error
        self.roll_back(error)

    # Checks

    def check_other_connections(self) -> None:
        """Raise ``TransactionLeftOpen`` if any connection except the open phase's has an open transaction."""
        self._connections.check_others(self._connection)

    def _check_thread(self) -> None:
        """Raise ``PhaseError`` on other threads, whose connections are not part of the attempt's transaction.

        The attempt fails even if the handler swallows the error. Only the handler's thread may roll it back.
        """
        if threading.get_ident() != self._thread:
            self.error = PhaseError(
                "job.prepare() and job.complete() were used on a thread other than the handler's. Each thread has its "
                "own database connection: use them in the handler itself, and let other threads return values to it."
            )
            raise self.error

    def _check_inside(self) -> None:
        """Raise ``PhaseError`` if the handler left an atomic block open inside ours, or broke the transaction."""
        if len(self._connection.savepoint_ids) != self._depth:
            raise PhaseError("An atomic block was opened inside job.complete() or job.prepare() and not closed.")
        if is_lost(self._connection):
            raise ConnectionLost(self._connection.alias)
        if is_broken(self._connection):
            raise PhaseError(
                "A database error was swallowed inside job.complete() or job.prepare(): the transaction is lost. Put "
                "a statement that may fail into its own atomic block."
            )


@own_statements
def read_blockers(job_ids: Collection[UUID], store: Store, registry: Registry) -> dict[UUID, list[Chain]]:
    """Return the blockers of each job, in the order they were given."""
    blockers = Chain.blockers_of(job_ids, store.using)
    for found in chain.from_iterable(blockers.values()):
        found.job_type = registry.find(found.last_type_name)
    return blockers
