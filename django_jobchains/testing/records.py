"""Runs records that are ready, and async attempts, in the thread and in the transaction of a test."""

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NoReturn

from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains.attempts.async_calls import Result
from django_jobchains.attempts.handler_task import create_library_task
from django_jobchains.attempts.record_attempt import EndedRecord, RecordAttempt, RecordEnvironment
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.store.record_tables import RecordKey
from django_jobchains.text.errors import traceback_of
from django_jobchains.worker.end_writer import EndWriter, RecordSink
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.records import RecordSource, condition_of


@dataclass(frozen=True)
class RecordOutcome:
    """How an attempt at a record ended, and its error in one line, or "".

    ``record`` is the record as it was stored after the attempt. ``ending`` is its new state, "requeued", or "abandoned"
    if the record was deleted or changed from outside during the attempt.
    """

    record: Any
    ending: str
    error: str

    @property
    def job(self) -> NoReturn:
        raise AttributeError("This is the outcome of a record, which has no job: use outcome.record.")


class _ImmediateWriter(EndWriter[EndedRecord]):
    """Writes each end on the thread of its attempt, before ``post_handle`` is called."""

    def put(self, end: EndedRecord) -> None:
        super().put(end)
        while not end.is_written:
            self.step()


def _make(record: Any, key: RecordKey, environment: RecordEnvironment, signal: AbortSignal) -> RecordAttempt:
    return RecordAttempt(record, key, environment, signal, ThisThread() if environment.kind.is_async else None)


class RecordRunner:
    """Runs the records of all registered models, one by one."""

    def __init__(self, context: WorkerContext) -> None:
        self._store = context.store
        self._throttle = WarningThrottle()
        writer = _ImmediateWriter(context, RecordSink(context))
        self._sources = [
            RecordSource(context, kind, writer, _make, joins_transaction=True)
            for kind in context.options.records.values()
        ]

    def next(self) -> RecordAttempt | None:
        """Dequeue the next record that is ready, and prepare it; None if there is none."""
        return next(self._attempts(), None)

    def handle(self, attempt: RecordAttempt) -> EndedRecord:
        """Call the handler, and return how the attempt ended."""
        if attempt.calls is not None:
            # async_to_sync sets in its caller's context what was set in the task's.
            return copy_context().run(async_to_sync(attempt.ahandle))
        return attempt.handle()

    def conclude(self, attempt: RecordAttempt, ended: EndedRecord, *, raise_errors: bool) -> RecordOutcome:
        """Write how an attempt ended, and return it; raise an ``AssertionError`` with its traceback on request."""
        attempt.conclude(ended)
        if raise_errors and ended.exception is not None:
            name = f"{ended.kind.name} {ended.key[0]}"
            raise AssertionError(f"{name} was not completed.\n{traceback_of(ended.exception)}")
        stored = attempt.kind.queryset.using(self._store.using).filter(pk=attempt.key[0]).first()
        return RecordOutcome(stored or attempt.record, ended.ending, ended.error)

    def _attempts(self) -> Iterator[RecordAttempt]:
        for source in self._sources:
            _, attempts = source.dequeue(1, condition_of(source.kind, self._store.using, self._throttle))
            for attempt in attempts:
                attempt.call_pre_handle()
                yield attempt


class ThisThread:
    """The thread of the test, which runs the functions of async handlers on its connection."""

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Result[Any]]":
        return create_library_task(sync_to_async(Result)(function))

    def post(self, call: Callable[[], object]) -> None:
        raise NotImplementedError  # Only used for attempts that a worker abandons.

    async def borrow(self) -> "ThisThread":
        return self

    def give_back(self, thread: "ThisThread") -> None:
        pass
