"""The engine of attempts: calls a handler inside its middleware, and decides how the attempt ends.

``run`` and ``arun`` are the only two sequences of an attempt: for plain handlers, and for ``async def`` handlers as a
task on an event loop. ``JobAttempt``, ``BatchAttempt`` and ``RecordAttempt`` supply what differs.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from django_jobchains.attempts.async_calls import LOCK_SECONDS, AsyncCalls, TransactionThreads
from django_jobchains.attempts.handler_task import HandlerTask
from django_jobchains.attempts.transaction import TransactionOwner
from django_jobchains.context import begin_attempt
from django_jobchains.exceptions import PhaseError
from django_jobchains.handlers.running_job import PrepareMode
from django_jobchains.middleware.hooks import aaround, around
from django_jobchains.store.rows import ClaimedJob

EndT = TypeVar("EndT")
ResultT = TypeVar("ResultT")


class Attempt(TransactionOwner, Generic[EndT]):
    """One call of a handler, with its middleware and its transaction, and its ends: of each job, or of the record."""

    #: The name of what the handler receives, in messages.
    argument_name: ClassVar[str] = "job"
    #: Whether the transaction is opened before the handler is called.
    is_atomic = False
    #: The jobs of the attempt: none for a record.
    jobs: tuple[ClaimedJob, ...] = ()
    #: The monotonic time at which the worker asks the attempt to stop.
    expires_at = math.inf
    #: Calls the handler.
    call: Callable[[Any], Any]
    #: The calls of an ``async def`` handler on threads. None for a plain handler.
    calls: AsyncCalls | None = None

    def use_threads(self, threads: TransactionThreads) -> None:
        """Prepare for ``arun``. The transaction of an ``async def`` handler is used on these threads."""
        self.calls = AsyncCalls(self, threads)
        self.task = HandlerTask(self.signal)
        self.lock_seconds, self.retries_locked = LOCK_SECONDS, True

    @property
    def is_detached(self) -> bool:
        """Whether the worker has given up the attempt, so that it must not write anything."""
        return self.signal.is_detached

    # The sequence of an attempt

    def run(self) -> list[EndT]:
        """Run a plain handler on this thread, and return the ends that are not detached. Never raises.

        The context is a copy: a language or a tenant that the handler sets does not affect the thread's next attempt.
        """
        return copy_context().run(self._run)

    def _run(self) -> list[EndT]:
        begin_attempt(self.store.using)
        started = time.perf_counter()
        self.start()
        if self.span is not None:
            self.span.enter()
        return self.ended(self._process(), time.perf_counter() - started)

    def _process(self) -> list[EndT]:
        try:
            self.begin()
        except BaseException as error:
            self.signal.end()
            return self.not_started(error)
        try:
            ends = self._finish(self._call_handler())
        except BaseException as error:  # SystemExit and similar errors end the attempt, but not the worker.
            ends = self.ends_after(error)
        self.transaction = None  # It refers to the attempt: a reference cycle.
        self.end()
        return ends

    def _call_handler(self) -> Any:
        argument = self.argument()
        if self.middleware:
            self.running = argument
        elif not self.is_atomic:
            return self._call_function(argument)
        with around(self.middleware, "around_handler", argument):
            if not self.is_wanted(argument):
                return None
            with self.prepare("atomic") if self.is_atomic else nullcontext():
                result = self._call_function(argument)
                if self.may_complete(argument):
                    self.complete_for_middleware()
                return result

    def _call_function(self, argument: Any) -> Any:
        try:
            return self.call(argument)
        finally:
            self.end_fork()

    def _finish(self, result: Any) -> list[EndT]:
        """Return the ends for what the handler returned. An open transaction writes and commits them."""
        if not self.signal.end():
            raise self.lost(self.signal.reason or "error")
        self.check()
        return self.ends_of(result)

    def ends_after(self, error: BaseException) -> list[EndT]:
        """Return the ends after this error. Never raises."""
        try:
            self.signal.end()
            self.give_up(error)
            return self.ends_of_error(error)
        except BaseException as problem:
            return self.fallback(error, problem)

    async def arun(self) -> list[EndT]:
        """Run an ``async def`` handler in the current task, and return the ends that are not detached.

        The loop never waits for the database: calls that need it, and the commit, run on a thread. Raises an error only
        if the loop has died.
        """
        assert self.calls is not None  # noqa: S101 - for the type checker
        begin_attempt(self.store.using)
        started = time.perf_counter()
        self.start()
        self.task.begin()
        if self.span is not None:
            self.span.enter()
        try:
            result = await self._acall_handler(self.calls)
            await self._end_handler(self.calls)
            ends = await self._call_last(partial(self._finish, result))
        except BaseException as error:  # SystemExit and similar errors end the attempt, but not the loop.
            ends = await self._aends_after(error, self.calls)
        self.signal.listeners.clear()
        self.transaction = None
        self.calls.forget_attempt()
        return self.ended(ends, time.perf_counter() - started)

    async def _acall_handler(self, calls: AsyncCalls) -> Any:
        argument = self.argument()
        if not self.middleware:
            return await self._acall_function(argument)
        self.running = argument
        async with aaround(self.middleware, argument):
            result = await self._acall_function(argument)
            if self.may_complete(argument):
                await calls.complete_for_middleware()
            return result

    async def _acall_function(self, argument: Any) -> Any:
        try:
            return await self.call(argument)
        finally:
            self.end_fork()

    async def _aends_after(self, error: BaseException, calls: AsyncCalls) -> list[EndT]:
        if self.task.is_loop_dead:  # Nothing can be awaited.
            raise error
        try:
            await self._end_handler(calls)
            return await self._call_last(partial(self.ends_after, self.task.as_abort(error)))
        except BaseException as problem:
            if self.task.is_loop_dead:
                raise
            self.signal.end()
            return self.fallback(error, problem)

    async def _end_handler(self, calls: AsyncCalls) -> None:
        if self.task.end(self.label):
            await calls.close()

    async def _call_last(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function on the thread with the open transaction, or here if there is none."""
        if self.calls is None or self.calls.thread is None:
            return function()
        return await self.calls.call_last(function)

    def handle_dead_loop(self, then: Callable[[], object]) -> None:
        """Give up the task of an event loop that has died. Call ``then`` when its transaction is closed."""
        assert self.calls is not None  # noqa: S101 - for the type checker
        self.task.is_loop_dead = True
        thread = self.calls.thread
        self.calls.abandon(is_loop_dead=True)
        if thread is None:
            then()
        else:
            thread.post(then)

    def release_thread(self) -> None:
        """Roll back the transaction of an attempt that does not end, on the loop. Its thread is used by others."""
        if self.calls is not None:
            self.calls.abandon()

    # What differs between a job, a batch and a record

    @abstractmethod
    def start(self) -> None:
        """Report that the attempt starts, and start its span and time limit."""

    @abstractmethod
    def argument(self) -> Any:
        """Return the argument of the handler and of middleware. An error ends the attempt."""

    def is_wanted(self, argument: Any) -> bool:
        """Return whether the handler is still to be called after middleware has begun."""
        return True

    def may_complete(self, argument: Any) -> bool:
        """Return whether the handler has returned something to complete."""
        return True

    @abstractmethod
    def ends_of(self, result: Any) -> list[EndT]:
        """Return the ends for what the handler returned. Write and commit them if the transaction is open."""

    @abstractmethod
    def ends_of_error(self, error: BaseException) -> list[EndT]:
        """Return the ends after this error, which is rolled back."""

    @abstractmethod
    def fallback(self, error: BaseException, problem: BaseException) -> list[EndT]:
        """Return the ends after ``error``, if computing them failed with ``problem``."""

    @abstractmethod
    def not_started(self, error: BaseException) -> list[EndT]:
        """Return the ends if the handler could not be called."""

    @abstractmethod
    def ended(self, ends: list[EndT], seconds: float) -> list[EndT]:
        """Return the ends that are not detached, with their duration and their spans, which end now."""

    # What handlers call

    def prepare(self, mode: PrepareMode) -> AbstractContextManager[None]:
        if self.calls is not None:
            raise self._refusal("prepare")
        return self.own_transaction().prepare(mode)

    def complete(self) -> AbstractContextManager[None]:
        if self.calls is not None:
            raise self._refusal("complete")
        return self.own_transaction().complete()

    def aprepare(self, function: Callable[[], ResultT], mode: PrepareMode) -> Coroutine[Any, Any, ResultT]:
        if self.calls is None:
            raise self._refusal("prepare")
        return self.calls.prepare(function, mode)

    def acomplete(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        if self.calls is None:
            raise self._refusal("complete")
        return self.calls.complete(function)

    def _refusal(self, name: str) -> PhaseError:
        """Return the error of a method that is for handlers of the other kind."""
        job = self.argument_name
        if self.calls is None:
            return PhaseError(f"{job}.a{name}() is for 'async def' handlers: use 'with {job}.{name}():'.")
        return PhaseError(f"In an 'async def' handler use 'await {job}.a{name}(function)' for {job}.{name}().")
