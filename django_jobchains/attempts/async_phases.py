"""The phases of async handlers."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from logging import getLogger
from typing import Any, Generic, NoReturn, Protocol, TypeVar, Unpack

from django_jobchains.attempts.async_tasks import create_library_task
from django_jobchains.attempts.phases import AttemptPhases
from django_jobchains.db.async_transactions import wait_uncancelled
from django_jobchains.enqueue_options import ContinuationOptions
from django_jobchains.exceptions import JobAborted, JobLocked, LeaseLost, PhaseError
from django_jobchains.handlers.abort_signal import refuse_on_event_loop
from django_jobchains.handlers.running_job import Continuation, PrepareMode
from django_jobchains.models import Chain

logger = getLogger("django_jobchains")

#: How long a phase waits on its thread for a row that another transaction has locked.
LOCK_SECONDS = 0.02
#: How long the phase then waits without a thread before each further try. The last value is repeated.
WAITS_SECONDS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)

ResultT = TypeVar("ResultT")


class Result(Generic[ResultT]):
    """The result of a call on another thread. An error is a value here, because futures cannot raise every error."""

    def __init__(self, function: Callable[[], ResultT]) -> None:
        self._error: BaseException | None = None
        try:
            self._value = function()
        except BaseException as error:
            self._error = error

    def get(self) -> ResultT:
        if self._error is not None:
            raise self._error
        return self._value


class TransactionThread(Protocol):
    """A thread that belongs to one attempt while its transaction is open."""

    def call(self, function: Callable[[], ResultT]) -> "asyncio.Future[Result[ResultT]]":
        """Call a function on the thread, after earlier calls, in a copy of the task's context."""
        ...

    def post(self, call: Callable[[], object]) -> None:
        """Call a function without returning its result."""
        ...


class TransactionThreads(Protocol):
    async def borrow(self) -> TransactionThread:
        """Wait for a free thread."""
        ...

    def give_back(self, thread: Any) -> None: ...


class AsyncPhases:
    """The phases of an async handler. Each call runs on the thread that has the transaction."""

    def __init__(self, phases: AttemptPhases, threads: TransactionThreads) -> None:
        self._phases = phases
        self._phases.lock_seconds = LOCK_SECONDS
        self._threads = threads
        #: The thread with the open transaction.
        self.thread: TransactionThread | None = None
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._blockers: Sequence[Chain] | None = None

    def prepare(self, mode: PrepareMode) -> NoReturn:
        raise PhaseError("In an 'async def' handler use 'await job.aprepare(function)' for job.prepare().")

    def complete(self) -> NoReturn:
        raise PhaseError("In an 'async def' handler use 'await job.acomplete(function)' for job.complete().")

    def continue_with(self, job_type: Any, input: Any, **options: Unpack[ContinuationOptions]) -> Continuation:
        return self._phases.continue_with(job_type, input, **options)

    def blockers(self) -> Sequence[Chain]:
        if self._blockers is None:
            refuse_on_event_loop("job.blockers would read the database on", "'await job.ablockers()'")
            self._blockers = self._phases.blockers()
        return self._blockers

    async def ablockers(self) -> Sequence[Chain]:
        return await self._call(self.blockers)

    async def aprepare(self, function: Callable[[], ResultT], mode: PrepareMode) -> ResultT:
        _check_plain_function(function, "aprepare")
        return await self._call(partial(self._inside, partial(self._phases.prepare, mode), function))

    async def acomplete(self, function: Callable[[], ResultT]) -> ResultT:
        _check_plain_function(function, "acomplete")
        return await self._call(partial(self._inside, self._phases.complete, function))

    # On the event loop

    async def complete_for_middleware(self) -> None:
        """``AttemptPhases.complete_for_middleware``, unless a phase still runs, which is an error of the handler."""
        if self._phases.needs_completion and not self._turn.locked():
            await self._call(self._phases.complete_for_middleware)

    async def _call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function on the thread, one at a time. A cancellation takes effect when the function has returned."""
        async with self._turn:
            for tries in count():
                if self._is_closed:
                    raise PhaseError("The handler has already returned. A handler must await what it starts.")
                is_new = self.thread is None
                thread = self.thread = self.thread or await self._threads.borrow()
                future = thread.call(partial(self._use, function, is_new=is_new))
                was_cancelled = await wait_uncancelled(future)
                self._give_back_unless_open()
                if was_cancelled:
                    raise asyncio.CancelledError
                try:
                    return future.result().get()
                except JobLocked:
                    await self._wait_for_row(tries)
            raise AssertionError("unreachable")

    async def _wait_for_row(self, tries: int) -> None:
        """Wait for a job row that another transaction has locked. Other attempts can use the thread while it waits."""
        job, signal = self._phases.job, self._phases.signal
        if signal.is_detached:
            raise LeaseLost(job.id, signal.reason or "error")
        if tries == len(WAITS_SECONDS):
            logger.warning("Job %s (%s) waits for another transaction that has locked it.", job.id, job.type_name)
        await asyncio.sleep(WAITS_SECONDS[min(tries, len(WAITS_SECONDS) - 1)])

    async def close(self) -> None:
        """Wait for a phase that the handler has not awaited. Not awaiting it is an error."""
        self._is_closed = True
        if not self._turn.locked():
            return
        self._phases.error = self._phases.error or PhaseError(
            "The handler ended before its job.aprepare() or job.acomplete() did: await them."
        )
        await wait_uncancelled(create_library_task(self._turn.acquire()))
        self._turn.release()

    async def call_last(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function on the thread with the transaction, even if the task is cancelled."""
        if self.thread is None:
            raise PhaseError("The attempt was given up, its transaction rolled back.")
        future = self.thread.call(partial(self._use, function, is_new=False))
        await wait_uncancelled(future)
        self._give_back_unless_open()
        return future.result().get()

    def abandon(self, *, is_loop_dead: bool = False) -> None:
        """Roll back the transaction of an attempt that does not end, unless a function still runs in it."""
        is_busy = self._is_closed or self._turn.locked()
        if self.thread is None or (is_busy and not is_loop_dead):
            return
        self._is_closed = True
        self._phases.error = self._phases.error or PhaseError("The attempt was given up, its transaction rolled back.")
        self.thread.post(self._abandon)
        self._give_back()

    def _give_back_unless_open(self) -> None:
        if not self._phases.is_open:
            self._give_back()

    def _give_back(self) -> None:
        thread, self.thread = self.thread, None
        if thread is not None:
            self._threads.give_back(thread)

    # On the thread

    def _use(self, function: Callable[[], ResultT], *, is_new: bool) -> ResultT:
        try:
            if is_new:
                self._begin()
            return function()
        except BaseException as error:
            self._phases.note(error)
            raise
        finally:
            if not self._phases.is_open:
                self._phases.end()

    def _begin(self) -> None:
        """Begin the phases. An error fails the attempt even if the handler swallows it."""
        try:
            self._phases.begin()
        except BaseException as error:
            self._phases.error = error
            raise

    def _inside(self, phase: Callable[[], AbstractContextManager[None]], function: Callable[[], ResultT]) -> ResultT:
        with phase():
            result = function()
            self._phases.check_other_connections()
            return result

    def _abandon(self) -> None:
        self._phases.give_up(JobAborted(self._phases.signal.reason or "error"))
        self._phases.end()


def _check_plain_function(function: Any, name: str) -> None:
    if not callable(function) or asyncio.iscoroutinefunction(function):
        raise TypeError(
            f"job.{name}() takes a plain function without arguments, not {function!r}: it runs on a thread."
        )
