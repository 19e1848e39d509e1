"""One attempt at a record whose handler is an ``async def`` function, as a task on an event loop.

The loop never waits for the database or a hook: both run on the threads of Django's async ORM.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from django_jobchains.attempts.async_phases import TransactionThreads
from django_jobchains.attempts.handler_task import HandlerTask
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.attempts.record_attempt import EndedRecord, RecordAttempt
from django_jobchains.attempts.record_phases import AsyncRecordPhases
from django_jobchains.context import clear_context
from django_jobchains.handlers.abort_signal import call_on
from django_jobchains.middleware.hooks import aaround
from django_jobchains.records.errors import RecordLost
from django_jobchains.records.run import RecordRun
from django_jobchains.telemetry.tracing import active


class AsyncRecordAttempt(RecordAttempt):
    def __init__(self, *args: Any, threads: TransactionThreads, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.async_phases = AsyncRecordPhases(self.phases, threads)
        self.handler = HandlerTask(self.signal)

    async def arun(self) -> list[Outcome]:
        """Handle the record in the current task, and pass its end to ``put``. Records have no job outcome to return."""
        await self.aprepare()
        await self.aconclude(await self.ahandle())
        return []

    async def aprepare(self) -> None:
        if "pre_handle" in self.kind.hooks:
            await sync_to_async(self.prepare)()
        else:
            self.prepare()

    async def ahandle(self) -> EndedRecord:
        clear_context()
        started = time.perf_counter()
        self.handler.begin()
        with active(self._start_span()):
            try:
                ended = await self._aprocess()
            except BaseException as error:  # SystemExit and similar errors end the attempt, but not the loop.
                if self.handler.is_loop_dead:  # Nothing can be awaited.
                    raise
                ended = await self._aended_by(error)
        self.signal.listeners.clear()
        ended.seconds = time.perf_counter() - started
        return self._with_span(ended)

    async def aconclude(self, ended: EndedRecord) -> None:
        """Pass on how the attempt ended, and call ``post_handle`` when this has been written."""
        self._put_unless_detached(ended)
        if "post_handle" in self.kind.hooks:
            if not self.is_detached:
                with self.waiting_for_write():
                    await _until_written(ended)
            await sync_to_async(self.call_post_handle)()

    async def _aprocess(self) -> EndedRecord:
        if self._error is not None:
            raise self._error
        run = self._record_run(self.async_phases)
        async with aaround(self.kind.middleware, run):
            await self.kind.processor.handle(self.record, run)  # type: ignore[misc]
            if not run.requeued[0]:
                await self.async_phases.complete_for_middleware()
        return await self._acomplete(run)

    async def _acomplete(self, run: RecordRun) -> EndedRecord:
        await self._end_handler()
        if not self.signal.end():
            raise RecordLost(self.key[0], self.signal.reason or "error")
        if self.async_phases.thread is not None:
            return await self.async_phases.call_last(partial(self._complete, run))
        if self.phases.error is not None:
            raise self.phases.error
        return self._finish(run)

    async def _aended_by(self, error: BaseException) -> EndedRecord:
        try:
            await self._end_handler()
            ended_by = partial(self._ended_by, self.handler.as_abort(error))
            if self.async_phases.thread is None:
                return ended_by()
            return await self.async_phases.call_last(ended_by)
        except BaseException:
            if self.handler.is_loop_dead:
                raise
            self.signal.end()
            return self._errored(error)

    async def _end_handler(self) -> None:
        if self.handler.end(self.label):
            await self.async_phases.close()

    def handle_dead_loop(self, then: Callable[[], object]) -> None:
        """Give up the task of an event loop that has died. Call ``then`` when its transaction is closed."""
        self.handler.is_loop_dead = True
        thread = self.async_phases.thread
        self.async_phases.abandon(is_loop_dead=True)
        end = partial(self._end_on_dead_loop, then)
        if thread is None:
            end()
        else:
            thread.post(end)

    def _end_on_dead_loop(self, then: Callable[[], object]) -> None:
        then()
        self.abandon(RuntimeError("the event loop has ended"))


async def _until_written(ended: EndedRecord) -> None:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    ended.when_written(partial(call_on, loop, event.set))
    await event.wait()
