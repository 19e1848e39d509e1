"""One attempt at a job whose handler is an ``async def`` function, as a task on an event loop.

The loop never waits for the database. Calls that need it run on a thread: ``aprepare`` and ``acomplete``, and the
commit of a transaction that they left open. Without such a transaction, the caller of the attempt writes the outcome.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django_jobchains.attempts.async_phases import AsyncPhases, TransactionThreads
from django_jobchains.attempts.attempt import Attempt, Environment
from django_jobchains.attempts.handler_task import HandlerTask
from django_jobchains.attempts.outcome import Outcome, OutcomeKind, fallback_outcome
from django_jobchains.context import clear_context
from django_jobchains.exceptions import LeaseLost
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.middleware.hooks import aaround
from django_jobchains.store import ClaimedJob
from django_jobchains.telemetry.tracing import active


class AsyncAttempt(Attempt):
    def __init__(
        self, job: ClaimedJob, environment: Environment, signal: AbortSignal, threads: TransactionThreads
    ) -> None:
        super().__init__(job, environment, signal)
        self.async_phases = AsyncPhases(self.phases, threads)
        self.handler = HandlerTask(self.signal)

    @property
    def label(self) -> str:
        """The name of the attempt in logs."""
        return f"{self.job.type_name} {self.job.id}"

    async def arun(self) -> list[Outcome]:
        """Run the handler in the current task, and return the outcome. Return nothing if the attempt was detached."""
        started = time.perf_counter()
        self._begin()
        with active(self.phases.span):
            outcome = await self._aprocess()
        self.signal.listeners.clear()
        outcome.seconds = time.perf_counter() - started
        return [] if self.is_detached else [self.with_span(outcome)]

    async def _aprocess(self) -> Outcome:
        try:
            return await self._acomplete(await self._acall_handler())
        except BaseException as error:  # SystemExit and similar errors end the attempt, but not the loop.
            if self.handler.is_loop_dead:  # Nothing can be awaited.
                raise
            return await self._aoutcome_of_error(error)

    def _begin(self) -> None:
        clear_context()
        self.start_span()
        self.expires_at = time.monotonic() + self.policy.timeout_seconds
        self.handler.begin()

    async def _acall_handler(self) -> Any:
        job = self.running_job(self.async_phases)
        async with aaround(self.processor.middleware, job):
            result = await self.processor.function(job)
            await self.async_phases.complete_for_middleware()
            return result

    async def _acomplete(self, result: Any) -> Outcome:
        await self._end_handler()
        if not self.signal.end():
            raise LeaseLost(self.job.id, self.signal.reason or "error")
        if self.async_phases.thread is not None:
            return await self.async_phases.call_last(partial(self.complete, result))
        if self.phases.error is not None:
            raise self.phases.error
        return self.outcome(OutcomeKind.COMPLETED, self.finished(result))

    async def _aoutcome_of_error(self, error: BaseException) -> Outcome:
        try:
            await self._end_handler()
            outcome_of_error = partial(self.outcome_of_error, self.handler.as_abort(error))
            if self.async_phases.thread is None:
                return outcome_of_error()
            return await self.async_phases.call_last(outcome_of_error)
        except BaseException as problem:
            if self.handler.is_loop_dead:
                raise
            self.signal.end()
            return fallback_outcome(self.job, error, problem)

    async def _end_handler(self) -> None:
        if self.handler.end(self.label):
            await self.async_phases.close()

    def handle_dead_loop(self, then: Callable[[], object]) -> None:
        """Give up the task of an event loop that has died. Call ``then`` when its transaction is closed."""
        self.handler.is_loop_dead = True
        thread = self.async_phases.thread
        self.async_phases.abandon(is_loop_dead=True)
        if thread is None:
            then()
        else:
            thread.post(then)
