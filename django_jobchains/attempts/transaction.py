"""The transaction of an attempt: ``prepare``, ``complete``, and the order in which a handler may use them."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, Error, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.attempts.outcome import raising_phase_conflict
from django_jobchains.db.connections import (
    ThreadConnections,
    close_thread_connections,
    drop_connection,
    is_broken,
    is_lost,
    usable_connections,
)
from django_jobchains.exceptions import ConnectionLost, JobLocked, LeaseLost, PhaseError, TransactionEnded
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.running_job import PrepareMode
from django_jobchains.middleware.hooks import Middleware, around, defines
from django_jobchains.store import Store
from django_jobchains.store.database import OpenTransaction
from django_jobchains.store.errors import is_lock_timeout
from django_jobchains.store.rows import HeldLease
from django_jobchains.telemetry.tracing import phase
from django_jobchains.text.errors import log_error

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

logger = getLogger("django_jobchains")


class TransactionOwner(ABC):
    """The part of an attempt that its transaction uses: the connections of the handler's thread, and the rows to lock.

    Most attempts only read the defaults, because there may be thousands of attempts per second.
    """

    #: The argument of middleware. Set only if there is middleware, because it creates a reference cycle.
    running: Any = None
    #: The span around the handler. None without tracing.
    span: "AttemptSpan | None" = None
    #: How long to wait for rows that another transaction has locked. None: until they are free.
    lock_seconds: float | None = None
    #: Whether ``prepare`` or ``complete`` is tried again after ``JobLocked``.
    retries_locked = False
    #: The transaction, created at its first use.
    transaction: "AttemptTransaction | None" = None
    #: An error of the transaction or of its use. It fails the attempt even if the handler catches it.
    error: BaseException | None = None
    #: The connections of the thread that runs the handler or, on an event loop, the current call.
    connections: ThreadConnections | None = None
    _thread = 0
    _has_database_error = False

    def __init__(self, store: Store, middleware: tuple[Middleware[Any], ...], signal: AbortSignal) -> None:
        self.store = store
        self.middleware = middleware
        self.signal = signal
        self._process_id = os.getpid()

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of the attempt in logs."""

    @property
    def leases(self) -> Sequence[HeldLease]:
        """The leases that ``prepare`` renews, because the worker could not do this while the rows were locked."""
        return ()

    @abstractmethod
    def lock(self, transaction: OpenTransaction, *, skips: bool) -> None:
        """Lock the rows and check the leases, in this order. Raise ``LeaseLost``.

        ``skips``: raise ``JobLocked`` immediately if another transaction has locked a row, instead of waiting.
        """

    @abstractmethod
    def lost(self, reason: str) -> LeaseLost:
        """Return the error of an attempt that may no longer write."""

    @property
    def is_open(self) -> bool:
        """Whether the transaction is open."""
        return self.transaction is not None and self.transaction.is_open

    def own_transaction(self) -> "AttemptTransaction":
        if self.transaction is None:
            self.transaction = AttemptTransaction(self)
        return self.transaction

    def begin(self) -> None:
        """Check the connections of this thread, which calls the handler."""
        self._thread = threading.get_ident()
        self.connections = usable_connections()

    def end(self) -> None:
        """Clean up the thread's connections. A failure does not change how the attempt ended.

        After a database error the connections are not used again: on SQLite, a result that was not read completely
        blocks all later writes.
        """
        try:
            if self.connections is not None:
                self.connections.clean(suspicious=self._has_database_error)
        except BaseException as error:
            text = "The connections of %s could not be cleaned up, so they are closed: %s"
            log_error(logger, error, text, self.label)
            close_thread_connections()

    def note(self, error: BaseException) -> None:
        """Record whether the connections had an error."""
        self._has_database_error |= isinstance(error, Error)

    def give_up(self, error: BaseException) -> None:
        """Roll back, because this error ended the attempt."""
        self.note(error)
        if self.transaction is not None:
            self.transaction.roll_back(error)

    def check(self) -> None:
        """Raise what prevents completing: a swallowed error of the transaction, or a transaction left open."""
        if self.error is not None:
            raise self.error
        if self.transaction is not None and self.transaction.is_open:
            self.transaction.check()
        elif self.connections is not None:
            self.connections.check()

    def check_thread(self) -> None:
        """Raise ``PhaseError`` on other threads, whose connections are not part of the attempt's transaction.

        The attempt fails even if the handler swallows the error. Only the handler's thread may roll it back.
        """
        if threading.get_ident() != self._thread:
            self.error = PhaseError(
                "job.prepare() and job.complete() were used on a thread other than the handler's. Each thread has its "
                "own database connection: use them in the handler itself, and let other threads return values to it."
            )
            raise self.error

    def end_fork(self) -> None:
        """End this process if the handler has forked it: the attempt and its connections belong to the parent."""
        if os.getpid() != self._process_id:
            text = (
                "A process that the handler of %s has forked left the handler, so it ends with exit code 1. End such "
                "a process with os._exit(), or use subprocess or multiprocessing."
            )
            logger.error(text, self.label)
            os._exit(1)

    @property
    def needs_completion(self) -> bool:
        """Whether middleware has hooks around ``complete()``, which the handler has not used."""
        if self.error is not None or (self.transaction is not None and self.transaction.is_completing):
            return False
        return defines(self.middleware, "around_complete")

    def complete_for_middleware(self) -> None:
        """Call ``complete()`` for a handler that has returned without it, if middleware has hooks around it."""
        if self.needs_completion:
            self.check()
            with self.own_transaction().complete():
                pass


class AttemptTransaction:
    """Opens the completion transaction at most once, and commits it only after the handler has returned."""

    def __init__(self, owner: TransactionOwner) -> None:
        self.store = owner.store
        #: The last transaction that was opened, as the database identifies it.
        self.opened: OpenTransaction
        self.is_completing = False
        #: Whether it was rolled back, and the handler's writes with it.
        self.is_undone = False
        self._owner = owner
        self._connection: BaseDatabaseWrapper
        self._atomic: transaction.Atomic | None = None
        self._is_prepared = False

    @property
    def is_open(self) -> bool:
        return self._atomic is not None

    @contextmanager
    def prepare(self, mode: PrepareMode) -> Iterator[None]:
        owner = self._owner
        owner.check_thread()
        if mode not in ("staged", "atomic"):
            raise PhaseError(f"prepare(mode={mode!r}) takes one of the modes 'staged' and 'atomic'.")
        if self._is_prepared or self.is_completing:
            raise PhaseError("prepare() can be used once, and before complete().")
        try:
            self.open()
            self._is_prepared = True
            with phase(owner.span, "prepare"), around(owner.middleware, "around_prepare", owner.running):
                yield
            if mode == "staged":
                self._check_inside()
                self.store.leases.renew(owner.leases, self.opened)
                self.commit()
        except BaseException as error:
            self._fail(error)
            raise

    @contextmanager
    def complete(self) -> Iterator[None]:
        owner = self._owner
        owner.check_thread()
        if self.is_completing:
            raise PhaseError("complete() can be used once in an attempt: write everything in one block.")
        try:
            if self._atomic is None:
                self.open()
            self.is_completing = True
            if owner.span is None and not owner.middleware:
                yield
            else:
                with phase(owner.span, "complete"), around(owner.middleware, "around_complete", owner.running):
                    yield
        except BaseException as error:
            self._fail(error)
            raise

    def check(self) -> None:
        """Raise what prevents the commit of an open transaction."""
        self._check_inside()
        self.check_other_connections()

    def check_other_connections(self) -> None:
        """Raise ``TransactionLeftOpen`` if any connection except the transaction's has an open transaction."""
        if self._owner.connections is not None:
            self._owner.connections.check_others(self._connection)

    def finish(self, write: Callable[[], None], committed: Callable[[], str]) -> None:
        """Write how the attempt ended in the open transaction, and commit it.

        ``committed`` is called after an error: it describes what was committed nevertheless, or returns "".
        """
        try:
            write()
            self.commit()
        except TransactionEnded:
            raise
        except Exception as error:
            # The reply to the commit may be lost, or an on_commit hook may have failed. The rows show which.
            self.roll_back(error)
            if not (text := committed()):
                with raising_phase_conflict():
                    raise
            log_error(logger, error, "%s. An error after the commit does not change that: %s", text)

    def roll_back(self, error: BaseException) -> None:
        """Undo an open transaction. If that fails, the connection is not used again."""
        atomic = self._close()
        if atomic is None:
            return
        self.is_undone = True
        if len(self._connection.savepoint_ids) != self._depth:
            drop_connection(self.store.connection)
            return
        try:
            atomic.__exit__(type(error), error, error.__traceback__)
        except Exception:
            drop_connection(self.store.connection)

    # Opening and closing it

    def open(self) -> None:
        """Open the transaction, lock the rows and check the leases, in this order.

        Raise ``LeaseLost``, and ``JobLocked`` if a row stays locked for longer than ``lock_seconds``.
        """
        connection, connections = self.store.connection, self._owner.connections
        if connections is not None:
            if connections.is_left_open(connection):
                if is_lost(connection):
                    raise ConnectionLost(self.store.using)
                raise PhaseError("Close your own transaction before job.prepare() or job.complete().")
            connections.checked = None  # Middleware runs in the transaction of a handler that has returned.
        seconds = self._owner.lock_seconds
        try:
            self._open_on_sound_connection(None if seconds is None else 0)
        except JobLocked as error:
            # The first attempt does not wait, because a time limit needs additional statements.
            self.roll_back(error)
            self._open_on_sound_connection(seconds)

    def _open_on_sound_connection(self, seconds: float | None) -> None:
        try:
            self._open_and_lock(seconds)
        except DatabaseError as error:
            # The connection broke while it was idle, SQLite has a half-read result, another transaction has written the
            # row while this one waited, or a handler has changed the session, for example with DISCARD ALL.
            self.roll_back(error)
            if self.store.connection.in_atomic_block:  # inside a test's transaction
                raise
            drop_connection(self.store.connection)
            with raising_phase_conflict():
                self._open_and_lock(seconds)

    def _open_and_lock(self, seconds: float | None) -> None:
        """``seconds``: how long to wait for locked rows; 0 for not at all, None for no limit."""
        atomic = transaction.atomic(using=self.store.using)
        atomic.__enter__()
        self._atomic, self.is_undone = atomic, False
        self._connection = self.store.connection
        self._depth = len(self._connection.savepoint_ids)
        self.opened = OpenTransaction()
        if not seconds:
            self._owner.lock(self.opened, skips=seconds is not None)
            return
        try:
            with self.store.db.waits_within(seconds):
                self._owner.lock(self.opened, skips=False)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            raise JobLocked from error

    def commit(self) -> None:
        if atomic := self._close():
            atomic.__exit__(None, None, None)

    def _close(self) -> transaction.Atomic | None:
        atomic, self._atomic = self._atomic, None
        self._owner.signal.unlock_row()
        return atomic

    def _fail(self, error: BaseException) -> None:
        self._owner.end_fork()
        if not (self._owner.retries_locked and isinstance(error, JobLocked)):
            self._owner.error = error
        self.roll_back(error)

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
