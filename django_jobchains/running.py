"""What a handler receives: the running job, its abort signal, and the continuation it may return."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation

from django_jobchains.context import decoded
from django_jobchains.exceptions import JobAborted
from django_jobchains.models import Chain
from django_jobchains.notes import Notebook, Notes
from django_jobchains.saying import fraction_of, level_of, said_fields, said_text, short_text
from django_jobchains.store import NewJob
from django_jobchains.texts import log_error

if TYPE_CHECKING:
    from django_jobchains.store import ClaimedJob

InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")

AbortReason = Literal[
    "taken_by_another_worker", "already_completed", "not_found", "error", "cancelled", "timed_out", "worker_stopping"
]
PrepareMode = Literal["staged", "atomic"]

logger = getLogger("django_jobchains")

#: Of all jobs: held for moments.
_making_notes = threading.Lock()


class AbortSignal:
    """Tells a handler that it should stop, and why. The first reason stays. Safe to use from any thread."""

    #: Shared: held for moments, and a lock or an event for each of thousands of jobs a second is dear.
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._event: threading.Event | None = None
        self._async_event: asyncio.Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        #: Of the library itself, which does not wait in them.
        self.listeners: list[Callable[[], object]] = []
        self.reason: AbortReason | None = None
        #: When it was asked to stop; monotonic.
        self.aborted_at: float | None = None
        #: While a transaction of the attempt itself has the job's row locked: then nobody else can take the job.
        self.is_row_locked = False
        #: The handler has returned: nobody is left to tell. A lost lease is seen when the outcome is written.
        self.is_over = False
        #: It did not stop: the worker wrote the outcome in its stead, and the attempt may write nothing any more.
        self.is_disowned = False

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def raise_if_aborted(self) -> None:
        """Raises ``JobAborted`` once the attempt was asked to stop."""
        if self.reason is not None:
            raise JobAborted(self.reason)

    def wait(self, seconds: float) -> bool:
        """Sleeps until the attempt is asked to stop, at most so long; True when it was."""
        refuse_on_event_loop("job.signal.wait() would block", "'await job.signal.async_wait(seconds)'")
        with self._lock:
            if self.aborted:
                return True
            self._event = self._event or threading.Event()
        return self._event.wait(seconds)

    async def async_wait(self, seconds: float) -> bool:
        """``wait`` for async code. The handler's own task is cancelled when the attempt is asked to stop: it is for
        tasks that are shielded from that, or started by the handler."""
        if self._async_event is None:
            self._async_event = asyncio.Event()
            loop = asyncio.get_running_loop()
            self.listeners.append(lambda: call_on(loop, self._set_async_event))
            if self.aborted:
                return True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._async_event.wait()
        return self.aborted

    def _set_async_event(self) -> None:
        if self._async_event is not None:
            self._async_event.set()

    def on_abort(self, callback: Callable[[], object]) -> None:
        """Calls back once on abort, on a thread of its own; at once, on this one, when it happened already."""
        with self._lock:
            if not self.aborted:
                self._callbacks.append(callback)
                return
        _call_all([callback])

    def abort(self, reason: AbortReason) -> None:
        with self._lock:
            if self.aborted:
                return
            self.reason, self.aborted_at = reason, time.monotonic()
        if self._event is not None:
            self._event.set()
        _call_all(self.listeners)
        if self._callbacks:  # they may take their time, and this thread has other attempts to look after
            threading.Thread(target=_call_all, args=[self._callbacks], name="jobchains-on-abort", daemon=True).start()

    # Between the attempt and the worker that may disown it

    @property
    def has_ended(self) -> bool:
        """Its outcome is about to be written, by itself or in its stead."""
        return self.is_over or self.is_disowned

    def lock_row(self) -> bool:
        """The attempt has the row locked; False when it was disowned meanwhile and must let it go."""
        with self._lock:
            self.is_row_locked = not self.is_disowned
            return self.is_row_locked

    def end(self) -> bool:
        """The handler has returned; False when its outcome comes too late."""
        with self._lock:
            self.is_over = not self.is_disowned
            return self.is_over

    def disown(self) -> bool:
        """The worker writes the outcome; False when that was said before, or the attempt is about to do so itself."""
        with self._lock:
            if self.is_disowned or self.is_over or self.is_row_locked:
                return False
            self.is_disowned = True
            return True


def _call_all(callbacks: Sequence[Callable[[], object]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            log_error(logger, error, "An on_abort callback failed: %s")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Calls back on an event loop, from any thread; a loop that has ended has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def refuse_on_event_loop(problem: str, remedy: str) -> None:
    """Raises ``SynchronousOnlyOperation`` on the thread of an event loop, while it runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousOnlyOperation(f"{problem} the event loop: use {remedy}.")


@dataclass(frozen=True)
class Continuation:
    """The next job of a chain, made by ``job.continue_with`` and created when the handler returns it."""

    job: NewJob


class ContinuationOptions(TypedDict, total=False):
    """The keyword arguments of ``continue_with``; ``delay`` is a timedelta or seconds."""

    run_at: datetime | None
    delay: timedelta | float | None
    blockers: Sequence[Chain | UUID]
    priority: int | None
    queue: str | None


class Phases(Protocol):
    """What an attempt does for its running job."""

    def prepare(self, mode: PrepareMode) -> AbstractContextManager[None]: ...
    def complete(self) -> AbstractContextManager[None]: ...
    def continue_with(
        self,
        job_type: Any,
        input: Any,
        **options: Unpack[ContinuationOptions],
    ) -> Continuation: ...

    def blockers(self) -> Sequence[Chain]: ...
    def aprepare(self, function: Callable[[], ResultT], mode: PrepareMode) -> Coroutine[Any, Any, ResultT]: ...
    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]: ...
    def ablockers(self) -> Coroutine[Any, Any, Sequence[Chain]]: ...


class RunningJob(Generic[InputT]):
    """A job while its handler runs. ``attempt`` counts from 1; times are aware."""

    def __init__(
        self, claimed: "ClaimedJob", input: InputT, signal: AbortSignal, phases: Phases, notebook: Notebook
    ) -> None:
        self.id: UUID = claimed.id
        self.chain_id: UUID = claimed.chain_id
        self.type_name: str = claimed.type_name
        self.input: InputT = input
        self.attempt: int = claimed.attempt
        self.last_error: str | None = claimed.last_error
        self.created_at: datetime = claimed.created_at
        self.run_at: datetime = claimed.run_at
        self.priority: int = claimed.priority
        self.queue: str = claimed.queue
        #: What was bound where the chain was enqueued, as a JSON text; None: nothing,
        self.stored_context: str | None = claimed.context
        #: and its values, for this attempt. Middleware and the handler may add whatever they need; it is not stored.
        self.context: dict[str, Any] = {} if claimed.context is None else decoded(claimed.context)
        self.signal = signal
        self._phases = phases
        self._blockers: Sequence[Chain] | None = None
        self._claimed = claimed
        self._notebook = notebook
        self._notes: Notes | None = None

    @property
    def blockers(self) -> Sequence[Chain]:
        """The chains this job waited for, in the order they were given, each with its ``output``."""
        if self._blockers is None:
            self._blockers = self._phases.blockers()
        return self._blockers

    def ablockers(self) -> Coroutine[Any, Any, Sequence[Chain]]:
        """``blockers`` for async handlers: ``await job.ablockers()``; from then on ``job.blockers`` has them too."""
        return self._phases.ablockers()

    def prepare(self, mode: PrepareMode = "staged") -> AbstractContextManager[None]:
        """Phase 1, at most once: a transaction of its own that locks the job row and checks the lease.

        ``staged`` commits at the end of the block; ``atomic`` keeps the transaction open until the handler returned.
        """
        return self._phases.prepare(mode)

    def complete(self) -> AbstractContextManager[None]:
        """The final phase, at most once: opens the transaction, locks the job row and checks the lease.

        It commits when the handler returns, together with the output and the continuation; an exception after the
        block undoes the block too. Raises ``LeaseLost`` when this attempt may no longer write.
        """
        return self._phases.complete()

    def aprepare(self, function: Callable[[], ResultT], mode: PrepareMode = "staged") -> Coroutine[Any, Any, ResultT]:
        """``prepare`` for async handlers: calls a sync function without arguments inside the transaction, on a thread.

        ``await job.aprepare(function)`` returns what the function returned.
        """
        return self._phases.aprepare(function, mode)

    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        """``complete`` for async handlers: calls a sync function without arguments inside the transaction, on a thread.

        ``await job.acomplete(function)`` returns what the function returned. The transaction commits when the handler
        returns; keep what comes in between short, because the job's row is locked and a thread is taken.
        """
        return self._phases.acomplete(function)

    def log(self, text: str, /, level: str | int = "info", **fields: Any) -> None:
        """Keeps a line for people: in the admin about a second later, whatever becomes of this attempt.

        From any thread and in any phase, also on the event loop: it asks no database and waits for nobody. ``level`` is
        "debug", "info", "warning", "error" or "critical", or the number in ``logging``. ``fields`` are written as JSON;
        what is none, as its ``str``. Long texts are cut, and of many lines the first and the last are kept. Raises
        ``TypeError`` for what is no text, ``ValueError`` for an unknown level.
        """
        self._own_notes().say(level_of(level), said_text(text), said_fields(fields))

    def set_progress(self, fraction: float, text: str = "") -> None:
        """Says how far this attempt is, from 0 to 1; otherwise like ``log``. What is said last counts.

        Raises ``TypeError`` for what is no number or no text, and ``ValueError`` for a number outside that range.
        """
        self._own_notes().set_progress(fraction_of(fraction), short_text(text))

    def _own_notes(self) -> Notes:
        """Most jobs say nothing, and have none."""
        with _making_notes:
            if self._notes is None:
                self._notes = Notes(self._claimed, self._notebook)
            return self._notes

    def continue_with(
        self,
        job_type: Any,
        input: Any = None,
        **options: Unpack[ContinuationOptions],
    ) -> Continuation:
        """The next job of the chain, to be *returned*: it completes this job and creates the next one atomically.

        ``job_type`` is a JobType or its name. Priority and queue are those of its processor, or else this job's, unless
        given. It waits for the chains in ``blockers``. Raises ``ContinuationNotAllowed``, ``JobTypeNotFound`` and
        ``InvalidInput``; ``ChainNotFound`` and ``InvalidBlockers`` for blockers come when the handler has returned.
        """
        return self._phases.continue_with(job_type, input, **options)
