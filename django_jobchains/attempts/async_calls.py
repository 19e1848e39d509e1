"""The calls of async handlers on threads: their transactions, and other calls that may wait for the database."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, isawaitable
from itertools import count
from logging import getLogger
from typing import Any, Generic, Protocol, TypeVar

from django_jobchains.attempts.handler_task import create_library_task
from django_jobchains.attempts.transaction import TransactionOwner
from django_jobchains.db.async_transactions import wait_uncancelled
from django_jobchains.exceptions import JobAborted, JobLocked, PhaseError
from django_jobchains.handlers.running_job import PrepareMode

logger = getLogger("django_jobchains")

#: How long a transaction waits on its thread for a row that another transaction has locked.
LOCK_SECONDS = 0.02
#: How long the transaction then waits without a thread before each further try. The last value is repeated.
WAITS_SECONDS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)

GIVEN_UP = "The attempt was given up, its transaction rolled back."

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


class AsyncCalls:
    """The calls of an ``async def`` handler on threads. Those in its transaction run on the thread that has it."""

    def __init__(self, attempt: TransactionOwner, threads: TransactionThreads) -> None:
        self._attempt = attempt
        self._threads = threads
        #: The thread with the open transaction.
        self.thread: TransactionThread | None = None
        #: The calls of ``prepare`` and ``complete``, which the handler must await.
        self._phases: list[Coroutine[Any, Any, Any]] = []
        self._turn = asyncio.Lock()
        self._is_closed = False

    def prepare(self, function: Callable[[], ResultT], mode: PrepareMode) -> Coroutine[Any, Any, ResultT]:
        _check_plain_function(function, "aprepare")
        return self._phase(lambda: self._inside(self._attempt.own_transaction().prepare(mode), function))

    def complete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        _check_plain_function(function, "acomplete")
        return self._phase(lambda: self._inside(self._attempt.own_transaction().complete(), function))

    def _phase(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        phase = self.call(function)
        self._phases.append(phase)
        return phase

    # On the event loop

    async def complete_for_middleware(self) -> None:
        """``TransactionOwner.complete_for_middleware``, unless a call still runs, which is an error of the handler."""
        if self._attempt.needs_completion and not self._turn.locked():
            await self.call(self._attempt.complete_for_middleware)

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function on the thread with the attempt's transaction, or on one with its own connections.

        One call runs at a time. A cancellation takes effect when the function has returned.
        """
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
        if self._attempt.signal.is_detached:
            raise self._attempt.lost(self._attempt.signal.reason or "error")
        if tries == len(WAITS_SECONDS):
            logger.warning("%s waits for another transaction that has locked it.", self._attempt.label)
        await asyncio.sleep(WAITS_SECONDS[min(tries, len(WAITS_SECONDS) - 1)])

    async def close(self) -> None:
        """Wait for a call that the handler has not awaited. It is an error, also if the call has not begun."""
        self._is_closed = True
        is_running = self._turn.locked()
        if is_running or any(getcoroutinestate(phase) == CORO_CREATED for phase in self._phases):
            self._attempt.error = self._attempt.error or PhaseError(
                "The handler ended before its job.aprepare() or job.acomplete() did: await them."
            )
        self._phases.clear()  # A coroutine that never started refers to this object.
        if is_running:
            await wait_uncancelled(create_library_task(self._turn.acquire()))
            self._turn.release()

    async def call_last(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function on the thread with the transaction, even if the task is cancelled."""
        if self.thread is None:
            raise PhaseError(GIVEN_UP)
        future = self.thread.call(partial(self._use, function, is_new=False))
        await wait_uncancelled(future)
        self._give_back_unless_open()
        return future.result().get()

    def forget_attempt(self) -> None:
        """Break the reference cycle with an attempt that has ended."""
        del self._attempt

    def abandon(self, *, is_loop_dead: bool = False) -> None:
        """Roll back the transaction of an attempt that does not end, unless a function still runs in it."""
        is_busy = self._is_closed or self._turn.locked()
        if self.thread is None or (is_busy and not is_loop_dead):
            return
        self._is_closed = True
        self._attempt.error = self._attempt.error or PhaseError(GIVEN_UP)
        attempt = self._attempt

        def roll_back() -> None:
            attempt.give_up(JobAborted(attempt.signal.reason or "error"))
            _end(attempt)

        self.thread.post(roll_back)
        self._give_back()

    def _give_back_unless_open(self) -> None:
        if not self._attempt.is_open:
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
            self._attempt.note(error)
            raise
        finally:
            self._attempt.end_fork()
            if not self._attempt.is_open:
                _end(self._attempt)

    def _begin(self) -> None:
        """Begin with a thread. An error fails the attempt even if the handler swallows it."""
        try:
            self._attempt.begin()
        except BaseException as error:
            self._attempt.error = error
            raise

    def _inside(self, block: AbstractContextManager[None], function: Callable[[], ResultT]) -> ResultT:
        with block:
            result = function()
            if isawaitable(result):
                raise TypeError(
                    f"The function of job.aprepare() or job.acomplete() returned {result!r:.100}. It runs on a thread, "
                    "where nothing awaits this: use synchronous calls in it, such as save() instead of asave()."
                )
            self._attempt.own_transaction().check_other_connections()
            return result


def _end(attempt: TransactionOwner) -> None:
    """Give back the connections of a thread, which other attempts use from now on."""
    attempt.end()
    attempt.connections = None


def _check_plain_function(function: Any, name: str) -> None:
    if not callable(function) or asyncio.iscoroutinefunction(function):
        raise TypeError(
            f"job.{name}() takes a plain function without arguments, not {function!r}: it runs on a thread."
        )
