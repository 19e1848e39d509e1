"""One try at one job whose handler is an ``async def`` function, as a task on an event loop.

The loop never waits for the database. What needs it runs on a thread: ``aprepare`` and ``acomplete``, the commit of
what they left open, and, by whoever ran the attempt, the outcome of one that opened nothing.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from logging import getLogger
from typing import Any, Generic, NoReturn, Protocol, TypeVar, Unpack

from django_jobchains.attempts import Attempt, Ending, Outcome, begin, end, fallback_outcome
from django_jobchains.context import unbind
from django_jobchains.exceptions import JobAborted, LeaseLost, PhaseError
from django_jobchains.middleware.hooks import around
from django_jobchains.models import Chain
from django_jobchains.phases import AttemptPhases
from django_jobchains.running import (
    Continuation,
    ContinuationOptions,
    PrepareMode,
    RunningJob,
    call_on,
    refuse_on_event_loop,
)

logger = getLogger("django_jobchains")

ResultT = TypeVar("ResultT")


class Result(Generic[ResultT]):
    """What a call on another thread came to. An error travels as a value: a future cannot raise every one."""

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


def apart(coroutine: Coroutine[Any, Any, ResultT]) -> "asyncio.Task[ResultT]":
    """A task of the library: no side task of the attempt, which would be cancelled when the handler is over."""
    context = contextvars.copy_context()
    context.run(_running_attempt.set, None)
    return asyncio.get_running_loop().create_task(coroutine, context=context)


class TransactionThread(Protocol):
    """A thread that belongs to one attempt, as long as its transaction is open."""

    def call(self, function: Callable[[], ResultT]) -> "asyncio.Future[Result[ResultT]]":
        """Calls a function on the thread, after those called before, in a copy of the task's context."""
        ...

    def post(self, call: Callable[[], object]) -> None:
        """The same without an answer."""
        ...


class TransactionThreads(Protocol):
    async def borrow(self) -> TransactionThread:
        """Waits for a free thread."""
        ...

    def give_back(self, thread: Any) -> None: ...


async def settled(future: "asyncio.Future[Any]") -> bool:
    """Waits for a future, and no cancellation of the waiting task ends that; whether there was one."""
    was_cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            was_cancelled = True
    return was_cancelled


class AsyncAttempt(Attempt):
    """A cancellation ends the handler, and nothing that is under way on a thread."""

    def __init__(self, *args: Any, threads: TransactionThreads, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.async_phases = AsyncPhases(self.phases, threads)
        #: Tasks that the handler started and that have not ended.
        self.side_tasks: set[asyncio.Task[Any]] = set()
        #: The handler's, while it runs.
        self.task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_cancelled = self._is_loop_dead = False

    async def aoutcomes(self) -> list[Outcome]:
        """``outcomes`` in the current task."""
        outcome = await self.arun()
        return [] if self.is_disowned else [outcome]

    async def arun(self) -> Outcome:
        """Runs the handler in the current task; whatever it does, returns how the attempt ended."""
        started = time.perf_counter()
        self._begin()
        try:
            outcome = await self._acomplete(await self._ahandle())
        except BaseException as error:  # SystemExit and the like end an attempt, never the loop
            if self._is_loop_dead:  # there is nothing to wait on any more
                raise
            outcome = await self._asafely_not_completed(error)
        self.signal.listeners.clear()
        outcome.seconds = time.perf_counter() - started
        return outcome

    # Step by step

    def _begin(self) -> None:
        unbind()
        if self.policy.timeout_seconds is not None:
            self.expires_at = time.monotonic() + self.policy.timeout_seconds
        self.task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        _running_attempt.set(self)
        self.signal.listeners.append(self._on_abort)
        if self.signal.aborted:
            self._on_abort()

    async def _ahandle(self) -> Any:
        running = RunningJob(self.job, self.read_input(), self.signal, self.async_phases, self.notebook)
        self.phases.serve(running)
        self.has_input = True
        with around(self.processor.middleware, "around_handler", running):
            return await self.processor.function(running)

    async def _acomplete(self, result: Any) -> Outcome:
        await self._end_handler()
        if not self.signal.end():
            raise LeaseLost(self.job.id, self.signal.reason or "error")
        if self.async_phases.thread is not None:
            return await self.async_phases.last_call(partial(self._complete, result))
        if self.phases.error is not None:
            raise self.phases.error
        return Outcome(self.job, Ending.COMPLETED, self._finished(result), failed_try=self.failed_try)

    async def _asafely_not_completed(self, error: BaseException) -> Outcome:
        try:
            return await self._anot_completed(error)
        except BaseException as problem:
            if self._is_loop_dead:
                raise
            self.signal.end()
            return fallback_outcome(self.job, error, problem)

    async def _anot_completed(self, error: BaseException) -> Outcome:
        await self._end_handler()
        give_up = partial(self.not_completed, self._as_abort(error))
        return give_up() if self.async_phases.thread is None else await self.async_phases.last_call(give_up)

    async def _end_handler(self) -> None:
        if self.task is None:
            return
        self.task = None
        if self.side_tasks:
            text = "Job %s (%s) left %d tasks running; they are cancelled. Await them, or use asyncio.TaskGroup."
            logger.warning(text, self.job.id, self.job.type_name, len(self.side_tasks))
        for task in list(self.side_tasks):
            task.cancel()
        await self.async_phases.close()

    # Stopping

    def _on_abort(self) -> None:
        if self._loop is not None:
            call_on(self._loop, self._cancel)

    def _cancel(self) -> None:
        """The handler, not what comes after it, and once: it may take its time to tidy up."""
        if self.task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self.task.cancel()

    def _as_abort(self, error: BaseException) -> BaseException:
        """A cancellation that followed from the signal is the handler's way to heed it."""
        if self.signal.reason is None or not _is_stop(error):
            return error
        aborted = JobAborted(self.signal.reason)
        aborted.__cause__ = error
        return aborted

    def lose_loop(self, then: Callable[[], object]) -> None:
        """The event loop has died, and with it the task. Calls back when nothing of it is open any more."""
        self._is_loop_dead = True
        thread = self.async_phases.thread
        self.async_phases.take_away(is_loop_dead=True)
        if thread is None:
            then()
        else:
            thread.post(then)


def _is_stop(error: BaseException) -> bool:
    """Whether all of it is cancellations and aborts, also those of a task group."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_stop(part) for part in error.exceptions)
    return isinstance(error, asyncio.CancelledError | JobAborted)


class AsyncPhases:
    """The phases as an async handler uses them: each call on the thread that has the transaction."""

    def __init__(self, phases: AttemptPhases, threads: TransactionThreads) -> None:
        self._phases = phases
        self._threads = threads
        #: The one that has the open transaction.
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
        _check_function(function, "aprepare")
        return await self._call(partial(self._inside, partial(self._phases.prepare, mode), function))

    async def acomplete(self, function: Callable[[], ResultT]) -> ResultT:
        _check_function(function, "acomplete")
        return await self._call(partial(self._inside, self._phases.complete, function))

    # On the event loop

    async def _call(self, function: Callable[[], ResultT]) -> ResultT:
        """One at a time; a cancellation meanwhile takes effect when the function has ended."""
        async with self._turn:
            if self._is_closed:
                raise PhaseError("The handler is over: await what it starts before it returns.")
            is_new = self.thread is None
            thread = self.thread = self.thread or await self._threads.borrow()
            future = thread.call(partial(self._use, function, is_new=is_new))
            was_cancelled = await settled(future)
            self._give_back_unless_open()
            if was_cancelled:
                raise asyncio.CancelledError
            return future.result().get()

    async def close(self) -> None:
        """After the handler: waits for a phase that it did not wait for, which is then an error."""
        self._is_closed = True
        if not self._turn.locked():
            return
        self._phases.error = self._phases.error or PhaseError(
            "The handler ended before its job.aprepare() or job.acomplete() did: await them."
        )
        await settled(apart(self._turn.acquire()))
        self._turn.release()

    async def last_call(self, function: Callable[[], ResultT]) -> ResultT:
        """Calls a function on the thread that has the transaction, whatever happens to the task."""
        if self.thread is None:
            raise PhaseError("The attempt was given up, its transaction rolled back.")
        future = self.thread.call(partial(self._use, function, is_new=False))
        await settled(future)
        self._give_back_unless_open()
        return future.result().get()

    def take_away(self, *, is_loop_dead: bool = False) -> None:
        """The attempt does not end: its transaction is rolled back. A function that still runs in it is left alone."""
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
                end(self._phases)

    def _begin(self) -> None:
        """What fails here is an error of the phase: the handler may swallow it, the attempt does not."""
        try:
            begin(self._phases)
        except BaseException as error:
            self._phases.error = error
            raise

    def _inside(self, phase: Callable[[], AbstractContextManager[None]], function: Callable[[], ResultT]) -> ResultT:
        with phase():
            result = function()
            self._phases.check_others()
            return result

    def _abandon(self) -> None:
        self._phases.give_up(JobAborted(self._phases.signal.reason or "error"))
        end(self._phases)


def _check_function(function: Any, name: str) -> None:
    if not callable(function) or asyncio.iscoroutinefunction(function):
        raise TypeError(
            f"job.{name}() takes a plain function without arguments, not {function!r}: it runs on a thread."
        )


# Tasks that handlers start

_running_attempt: "contextvars.ContextVar[AsyncAttempt | None]" = contextvars.ContextVar(
    "jobchains_running_attempt", default=None
)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on an attempt on this loop knows the tasks that its handler starts."""
    loop.set_task_factory(_create_task)  # type: ignore[arg-type]


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    attempt = _running_attempt.get() if context is None else context.get(_running_attempt)
    if attempt is not None and not task.done():
        attempt.side_tasks.add(task)
        task.add_done_callback(attempt.side_tasks.discard)
    return task
