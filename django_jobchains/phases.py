"""The transactions of one attempt: ``prepare``, ``complete``, and what the handler may do in which order."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, Unpack

from django.db import Error, OperationalError, transaction

from django_jobchains.exceptions import ConnectionLost, LeaseLost, PhaseError
from django_jobchains.hygiene import ThreadConnections, discard, is_broken, is_lost
from django_jobchains.job_types import new_continuation
from django_jobchains.middleware.hooks import Hook, around
from django_jobchains.models import Chain
from django_jobchains.own_statements import own
from django_jobchains.policies import Lease
from django_jobchains.processors import Processor, Registry
from django_jobchains.running import AbortSignal, Continuation, ContinuationOptions, PrepareMode
from django_jobchains.store import ClaimedJob, HeldLease, OpenTransaction, Store
from django_jobchains.store.leases import lost_reason


class AttemptPhases:
    """Opens the completion transaction at most once, and commits it only when the handler has returned."""

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
        self.lease = HeldLease(job.id, job.lease_number, lease.seconds)
        self.store = store
        self.registry = registry
        #: What middleware gets: a ``RunningJob``, or a ``Batch``.
        self.running: Any = None
        #: An error of a phase. The handler may swallow it, the attempt does not.
        self.error: BaseException | None = None
        self.continuation: Continuation | None = None
        #: The transaction that is open, or was open last, as the database knows it.
        self.transaction = OpenTransaction()
        self._atomic: transaction.Atomic | None = None
        self._prepared = False
        self._has_database_error = False
        self._completing = False

    def serve(self, running: Any) -> None:
        """Remembers what middleware gets, if there is any: two that know each other are freed by the garbage collector
        alone, and there are thousands of them in a second."""
        if self.processor.middleware:
            self.running = running

    def begin(self) -> None:
        """On the thread that runs the handler."""
        self._thread = threading.get_ident()
        self._connections = ThreadConnections()

    def end(self) -> None:
        """Nothing of the handler stays open, and after a database error its connections are not used again: on SQLite a
        half-read result refuses every later write."""
        self._connections.clean(suspicious=self._has_database_error)

    @property
    def is_open(self) -> bool:
        """Whether the completion transaction is open."""
        return self._atomic is not None

    @contextmanager
    def prepare(self, mode: PrepareMode) -> Iterator[None]:
        self._check_thread()
        if mode not in ("staged", "atomic"):
            raise PhaseError(f"prepare(mode={mode!r}): 'staged' or 'atomic'.")
        if self._prepared or self._completing:
            raise PhaseError("prepare() can be used once, and before complete().")
        self._prepared = True
        with self._recording():
            self.open()
            with self._around("around_prepare"):
                yield
            if mode == "staged":
                self._check_inside()
                self.renew()
                self.commit()

    @contextmanager
    def complete(self) -> Iterator[None]:
        self._check_thread()
        if self._completing:
            raise PhaseError("complete() can be used once.")
        self._completing = True
        with self._recording():
            if not self.is_open:
                self.open()
            with self._around("around_complete"):
                yield

    def continue_with(
        self,
        job_type: Any,
        input: Any,
        **options: Unpack[ContinuationOptions],
    ) -> Continuation:
        if self.continuation is not None:
            raise PhaseError("continue_with() can be used once: a job has one continuation.")
        target = self.registry.job_type(job_type)
        self.continuation = Continuation(new_continuation(self.job, self.processor.job_type, target, input, options))
        return self.continuation

    @own
    def blockers(self) -> list[Chain]:
        return Chain.blockers_of([self.job.id], self.store.using).get(self.job.id, [])

    def aprepare(self, function: Any, mode: PrepareMode) -> NoReturn:
        raise PhaseError("job.aprepare() is for 'async def' handlers: use 'with job.prepare():'.")

    def acomplete(self, function: Any) -> NoReturn:
        raise PhaseError("job.acomplete() is for 'async def' handlers: use 'with job.complete():'.")

    def ablockers(self) -> NoReturn:
        raise PhaseError("job.ablockers() is for 'async def' handlers: use job.blockers.")

    def open(self) -> None:
        """Opens the transaction, locks the job row and checks the lease, in this order; raises ``LeaseLost``."""
        if self._connections.is_left_open(self.store.connection):
            if is_lost(self.store.connection):
                raise ConnectionLost(self.store.using)
            raise PhaseError("Close your own transaction before job.prepare() or job.complete().")
        try:
            self._open_and_lock()
        except OperationalError as error:  # a connection that broke while idle, or SQLite's half-read results
            self.roll_back(error)
            if self.store.connection.in_atomic_block:  # inside a test's transaction
                raise
            discard(self.store.connection)
            self._open_and_lock()

    def _open_and_lock(self) -> None:
        atomic = transaction.atomic(using=self.store.using)
        atomic.__enter__()
        self._atomic = atomic
        self._connection = self.store.connection
        self._depth = self._open_blocks()
        self.transaction = OpenTransaction()
        self.lock()

    def lock(self) -> None:
        found = self.store.lock(self.job.id, self.transaction)
        if not self.signal.lock_row():
            raise LeaseLost(self.job.id, self.signal.reason or "error")
        if reason := lost_reason(found, self.job.lease_number):
            raise LeaseLost(self.job.id, reason)

    def unlocked(self) -> None:
        self.signal.is_row_locked = False

    def renew(self) -> None:
        """Nobody else could while the row was locked. Raises ``TransactionEnded``."""
        self.store.renew([self.lease], self.transaction)

    def _check_thread(self) -> None:
        """Raises on any other thread than the handler's, whose connection has no part in the attempt's transaction.

        The attempt fails even if the handler swallows the error. Only its own thread may roll it back.
        """
        if threading.get_ident() != self._thread:
            self.error = PhaseError(
                "job.prepare() and job.complete() were used on another thread than the handler's. Each thread has its "
                "own database connection: use them in the handler itself, and let other threads return values to it."
            )
            raise self.error

    def _check_inside(self) -> None:
        """Raises when the handler left an atomic block of its own open inside ours, or broke the transaction."""
        if self._open_blocks() != self._depth:
            raise PhaseError("An atomic block was opened inside job.complete() or job.prepare() and not closed.")
        if is_lost(self._connection):
            raise ConnectionLost(self._connection.alias)
        if is_broken(self._connection):
            raise PhaseError(
                "A database error was swallowed inside job.complete() or job.prepare(): the transaction is "
                "lost. Put the statement that may fail into an atomic block of its own."
            )

    def commit(self) -> None:
        if atomic := self._closing():
            atomic.__exit__(None, None, None)

    def give_up(self, error: BaseException) -> None:
        """The attempt does not complete."""
        self.note(error)
        self.roll_back(error)

    def note(self, error: BaseException) -> None:
        """Remembers what it says of the connections."""
        self._has_database_error |= isinstance(error, Error)

    def roll_back(self, error: BaseException) -> None:
        """Undoes what is open. Whatever is wrong with the connection, it is not used again."""
        atomic = self._closing()
        if atomic is None:
            return
        if self._open_blocks() != self._depth:
            discard(self.store.connection)
            return
        try:
            atomic.__exit__(type(error), error, error.__traceback__)
        except Exception:
            discard(self.store.connection)

    def _closing(self) -> transaction.Atomic | None:
        atomic, self._atomic = self._atomic, None
        self.unlocked()
        return atomic

    def check_after_handler(self) -> None:
        """Raises what stands against completing: a swallowed error of a phase, or a transaction left open."""
        if self.error is not None:
            raise self.error
        if self.is_open:
            self._check_inside()
            self.check_others()
        else:
            self._connections.check()

    def check_others(self) -> None:
        """Raises when a transaction was left open on another connection than that of the open phase."""
        self._connections.check_others(self._connection)

    def _open_blocks(self) -> int:
        return len(self._connection.savepoint_ids)

    def _around(self, hook: Hook) -> AbstractContextManager[object]:
        return around(self.processor.middleware, hook, self.running)

    def _recording(self) -> AbstractContextManager[None]:
        return _recorded(self)


@contextmanager
def _recorded(phases: AttemptPhases) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        phases.error = error
        phases.roll_back(error)
        raise
