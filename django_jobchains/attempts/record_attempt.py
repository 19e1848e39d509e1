"""One attempt at one record: call its hooks and handler, and decide how it ends."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async

from django_jobchains.attempts.async_calls import TransactionThreads
from django_jobchains.attempts.attempt import Attempt
from django_jobchains.attempts.outcome import MAX_CONFLICTS, PhaseConflict
from django_jobchains.attempts.transaction import AttemptTransaction
from django_jobchains.context import begin_attempt
from django_jobchains.db.connections import close_thread_connections, usable_connections
from django_jobchains.db.times import resolve_schedule
from django_jobchains.exceptions import JobAborted, LeaseLost, PhaseError, RescheduleJob
from django_jobchains.handlers.abort_signal import AbortSignal, call_on, refuse_on_event_loop
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordHidden, RecordLost, Requeue, is_retryable
from django_jobchains.records.processor import RecordRun
from django_jobchains.records.saving import leave_out
from django_jobchains.store import Store
from django_jobchains.store.database import OpenTransaction
from django_jobchains.store.errors import blames_row
from django_jobchains.store.rates import Charge
from django_jobchains.store.record_tables import RecordEnd, RecordKey, RecordTable
from django_jobchains.store.records import lost_reason
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import RecordHookEnded
from django_jobchains.telemetry.probes import record_peaks
from django_jobchains.telemetry.tracing import OWN_SPANS, AttemptSpans
from django_jobchains.text.errors import describe, log_error, type_name, without_variables

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

logger = getLogger("django_jobchains")

ResultT = TypeVar("ResultT")


@dataclass(eq=False, slots=True)
class EndedRecord:
    """How an attempt at a record ended. ``end``: what is to be written, or None if the record is lost."""

    kind: RecordType
    key: RecordKey
    attempt: int
    end: RecordEnd | None
    #: The new state, once it is written.
    state: str | None = None
    seconds: float = 0.0
    #: One line, or "" without an error.
    error: str = ""
    #: The error of an attempt that failed. Its traceback has no local variables.
    exception: BaseException | None = None
    #: Why the attempt must no longer write, if it noticed this itself.
    abandoned_reason: str = ""
    #: The seconds from when the record was due until it was dequeued, or None if they are unknown.
    wait_seconds: float | None = None
    #: Where its start was counted, which is undone if the record is returned to the queue. None without a rate.
    charge: Charge | None = None
    #: The span of the attempt, which ends when the state is written.
    span: "AttemptSpan | None" = None
    #: Whether the state has been written and reported, or never will be.
    is_written: bool = False
    _on_written: Callable[[], object] | None = None

    @property
    def ending(self) -> str:
        """The new state; "requeued" or "handed_back" for a queued record; "abandoned" for one that is lost."""
        if self.state == "queued" and self.end is not None:
            return self.end.kind
        return self.state or "abandoned"

    @property
    def is_handed_back(self) -> bool:
        return self.end is not None and self.end.kind == "handed_back"

    def mark_written(self) -> None:
        self.is_written = True
        if self._on_written is not None:
            self._on_written()

    def when_written(self, callback: Callable[[], object]) -> None:
        """Call a function when the state has been written, on the thread that wrote it. It may be called twice."""
        self._on_written = callback
        if self.is_written:
            callback()


def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class RecordEnvironment:
    """What the attempts at the records of one model have in common.

    ``put`` receives how an attempt ended. ``worker``: the id of the worker. ``on_ending``: called before an attempt
    commits its own end.
    """

    kind: RecordType
    store: Store
    put: Callable[[EndedRecord], object]
    worker: str = ""
    spans: AttemptSpans = OWN_SPANS
    on_ending: Callable[[], object] = _do_nothing


class RecordAttempt(Attempt[EndedRecord]):
    """An attempt at a record, which reports how it ended to the writer of ends.

    ``threads``: for the transaction of an ``async def`` handler. ``on_prepared``: called when ``pre_handle`` has
    returned, or when it will not be called.
    """

    argument_name = "run"
    #: Whether the handler has asked to queue the record again, and from which time.
    requeued: tuple[bool, datetime | None] = (False, None)
    #: The monotonic time since which the project's code may occupy the thread. None: the attempt waits for a child
    #: process or for the write of its end.
    runs_since: float | None = 0.0
    #: Where its start was counted, if it has a rate.
    charge: Charge | None = None
    #: Whether ``pre_handle`` was called, or will not be.
    is_prepared = False
    #: Whether the end was passed to ``put``.
    _is_put = False
    #: The error of ``pre_handle``.
    _error: BaseException | None = None

    def __init__(
        self,
        record: Any,
        key: RecordKey,
        environment: RecordEnvironment,
        signal: AbortSignal,
        threads: TransactionThreads | None = None,
        on_prepared: Callable[[], object] = _do_nothing,
    ) -> None:
        kind = environment.kind
        super().__init__(environment.store, kind.middleware, signal)
        self.kind = kind
        self.record = record
        self.key = key
        self.environment = environment
        self.number = kind.value(record, "num_failures") + kind.value(record, "num_resets") + 1
        self._wait_seconds = _wait_seconds(kind, record)
        self._on_prepared = on_prepared
        leave_out(record, kind.columns)
        if threads is not None:
            self.use_threads(threads)

    @property
    def label(self) -> str:
        return f"{self.kind.name} {self.key[0]}"

    # From the hooks to the end

    def run(self) -> list[Any]:
        self.call_pre_handle()
        self.conclude(self.handle())
        return []

    async def arun(self) -> list[Any]:
        if "pre_handle" in self.kind.hooks:
            await sync_to_async(self.call_pre_handle)()
        else:
            self.call_pre_handle()
        await self.aconclude(await self.ahandle())
        return []

    def call_pre_handle(self) -> None:
        """Call ``pre_handle``. Its error ends the attempt when the attempt runs."""
        self.expires_at = time.monotonic() + self.kind.max_runtime_seconds
        if "pre_handle" in self.kind.hooks:
            self._error = self._call_with_record("pre_handle")
            if self.is_detached:  # the worker has given up waiting for the hook
                self._error = JobAborted(self.signal.reason or "error")
        self._end_preparing()

    def handle(self) -> EndedRecord:
        """Call the handler, and return how the attempt ended."""
        [ended] = super().run()
        return ended

    async def ahandle(self) -> EndedRecord:
        [ended] = await super().arun()
        return ended

    def conclude(self, ended: EndedRecord) -> None:
        """Pass on how the attempt ended, and call ``post_handle`` when this has been written."""
        self._put_unless_detached(ended)
        if "post_handle" in self.kind.hooks:
            if not self.is_detached:
                written = threading.Event()
                ended.when_written(written.set)
                with self._waiting_for_write():
                    written.wait()
            self.call_post_handle()

    async def aconclude(self, ended: EndedRecord) -> None:
        """``conclude`` on the event loop."""
        self._put_unless_detached(ended)
        if "post_handle" in self.kind.hooks:
            if not self.is_detached:
                loop, written = asyncio.get_running_loop(), asyncio.Event()
                ended.when_written(partial(call_on, loop, written.set))
                with self._waiting_for_write():
                    await written.wait()
            await sync_to_async(self.call_post_handle)()

    @contextmanager
    def _waiting_for_write(self) -> Iterator[None]:
        """Suspend the time limit. A lock of another transaction may delay the write."""
        self.runs_since, self.expires_at = None, math.inf
        yield
        self.runs_since = time.monotonic()
        self.expires_at = self.runs_since + self.kind.max_runtime_seconds

    def _call_with_record(self, hook: str) -> BaseException | None:
        """Call a hook that takes the record, and report how long it took. Return its error."""
        started = time.perf_counter()
        error = call_hook(lambda: getattr(self.kind.processor, hook)(self.record), self.store.using)
        if observes(RecordHookEnded):
            seconds, error_name = time.perf_counter() - started, "" if error is None else type_name(error)
            report(RecordHookEnded(self.environment.worker, self.kind.name, hook, seconds, error_name))
        return error

    def call_post_handle(self) -> None:
        error = self._call_with_record("post_handle")
        if error is not None:
            text = "post_handle of record %s failed, which does not change its state: %s"
            log_error(logger, error, text, self.key[0])

    def detach(self, error: BaseException, stack: str) -> list[Any]:
        """Give up an attempt that does not stop, from another thread. It can no longer write anything.

        If its heartbeats failed, its record is released and reset later, because the handler still runs.
        """
        if self.signal.detach():
            reason = self.signal.reason
            ended = self._abandoned(reason, describe(error)) if reason == "error" else self._errored(error)
            self.environment.put(self._with_span(ended))
            self._end_preparing()
        return []

    def hand_back(self, *, has_begun: bool = True) -> EndedRecord:
        """Return the end of an attempt that did not start, or that was interrupted through no fault of its handler.

        ``has_begun``: False if the handler was not called, so that the attempt is not counted as a start.
        """
        self._end_preparing()
        ended = self._ended(RecordEnd(*self.key, "handed_back"))
        ended.charge = None if has_begun else self.charge
        return ended

    def abandon(self, error: BaseException) -> None:
        """Release the record after an error that is not the handler's. It gets no more heartbeats, so it is reset."""
        self._end_preparing()
        if not self._is_put:
            self._put_unless_detached(self._with_span(self._abandoned("error", describe(error))))

    def handle_dead_loop(self, then: Callable[[], object]) -> None:
        def end() -> None:
            then()
            self.abandon(RuntimeError("the event loop has ended"))

        super().handle_dead_loop(end)

    def _put_unless_detached(self, ended: EndedRecord) -> None:
        if not self.is_detached:
            self.environment.put(ended)
            self._is_put = True

    def _end_preparing(self) -> None:
        self.is_prepared = True
        self._on_prepared()

    # For the engine

    def start(self) -> None:
        kind = self.kind
        self.expires_at = time.monotonic() + kind.max_runtime_seconds
        record_peaks.begin(kind.name, self)
        self.span = self.environment.spans.record(kind.name, kind.queue, str(self.key[0]), self.number)

    def argument(self) -> Any:
        """Return the run, which middleware receives too, instead of a running job."""
        if self._error is not None:
            raise self._error
        self.signal.raise_if_aborted()
        return RecordRun(self.record, self, type_name=self.kind.name, queue=self.kind.queue)

    def call(self, argument: Any) -> Any:
        return self.kind.processor.handle(self.record, argument)

    def may_complete(self, argument: Any) -> bool:
        return not self.requeued[0]

    def ends_of(self, result: Any) -> list[EndedRecord]:
        if result is not None:
            raise PhaseError(
                f"The handler of a record must return None, not {result!r:.100}: await a coroutine, raise an error, "
                "and store a result in the record."
            )
        is_requeued, after = self.requeued
        end = RecordEnd(*self.key, "requeued", after) if is_requeued else RecordEnd(*self.key, "completed")
        ended = self._ended(end)
        if self.transaction is not None and self.transaction.is_open:
            self.environment.on_ending()
            self.transaction.finish(partial(self._write, ended, end, self.transaction), partial(self._committed, ended))
        return [ended]

    def _write(self, ended: EndedRecord, end: RecordEnd, transaction: AttemptTransaction) -> None:
        states = self.store.records.end(self._table, [end], transaction=transaction.opened)
        if end.key not in states:  # The transaction has locked the row, so no other one has changed it.
            raise PhaseError(
                "The handler changed the state or the lease number of its record, or deleted it, inside "
                "run.complete(): return, raise an error or call run.requeue() to end the attempt, and delete the "
                "record outside of run.complete()."
            )
        ended.state = states[end.key]

    def _committed(self, ended: EndedRecord) -> str:
        if self.store.records.state_of(self._table, self.key[0]) != (ended.state, self.key[1]):
            return ""
        return f"Record {self.key[0]} is {ended.state}"

    def ends_of_error(self, error: BaseException) -> list[EndedRecord]:
        if isinstance(error, LeaseLost):
            return [self._abandoned(error.reason, describe(error))]
        if isinstance(error, Requeue | RescheduleJob):
            after, delay_seconds = _time_after(error)
            return [self._ended(RecordEnd(*self.key, "requeued", after, delay_seconds=delay_seconds))]
        if isinstance(error, JobAborted) and self.signal.reason == "error":
            return [self._abandoned("error", describe(error))]
        if isinstance(error, JobAborted) and self.signal.reason == "worker_stopping":
            return [self.hand_back()]
        if isinstance(error, PhaseConflict):
            # A record has no count of conflicts. Its lease number also counts its other attempts.
            if self.key[1] < MAX_CONFLICTS:
                return [self._ended(RecordEnd(*self.key, "handed_back"), error=describe(error.conflict))]
            error = error.conflict
        return [self._errored(error)]

    def fallback(self, error: BaseException, problem: BaseException) -> list[EndedRecord]:
        log_error(logger, problem, "The end of record %s could not be computed, so it errored: %s", self.key[0])
        return [self._errored(error)]

    def not_started(self, error: BaseException) -> list[EndedRecord]:
        return [self._errored(error)]

    def ended(self, ends: list[EndedRecord], seconds: float) -> list[EndedRecord]:
        for ended in ends:
            ended.seconds = seconds
            self._with_span(ended)
        return ends

    def _with_span(self, ended: EndedRecord) -> EndedRecord:
        """Return the end with the attempt's wait, and with its span, which ends now."""
        ended.wait_seconds = self._wait_seconds
        record_peaks.end(self.kind.name, self)
        if self.span is not None and self.span.stop():
            ended.span = self.span
        return ended

    def _errored(self, error: BaseException) -> EndedRecord:
        text = describe(error)
        if self.signal.reason == "timed_out":
            text = f"The handler exceeded max_runtime ({self.kind.max_runtime_seconds:g} s). {text}"
        kind = "errored" if is_retryable(error) else "failed"
        end = RecordEnd(*self.key, kind, None, text, self.kind.max_attempts)  # type: ignore[arg-type]
        # The store cancels a record whose flag is set, which is not a failure.
        shown = None if self.signal.reason == "cancelled" else without_variables(error)
        return self._ended(end, error=text, exception=shown)

    def _abandoned(self, reason: str, text: str) -> EndedRecord:
        """Return the end of an attempt that writes nothing."""
        ended = self._ended(None, error=text)
        ended.abandoned_reason = reason
        return ended

    def _ended(self, end: RecordEnd | None, *, error: str = "", exception: BaseException | None = None) -> EndedRecord:
        return EndedRecord(self.kind, self.key, self.number, end, error=error, exception=exception)

    # The record's row

    @property
    def _table(self) -> RecordTable:
        return self.kind.table(self.store.using)

    def lock(self, transaction: OpenTransaction, *, skips: bool) -> None:
        found = self.store.records.lock(self._table, self.key[0], transaction, skips=skips)
        if not self.signal.lock_row():
            raise self.lost(self.signal.reason or "error")
        if reason := lost_reason(found, self.key[1]):
            raise self.lost(reason)

    def lost(self, reason: str) -> RecordLost:
        return RecordLost(self.key[0], reason)

    def write_logs(self, logs: Callable[[], list[dict[str, Any]]]) -> None:
        """Store the execution logs of the attempt, which ``logs`` returns. Raises ``RecordLost``."""
        if self.calls is not None:
            refuse_on_event_loop(
                "Execution logs would be written on", "'await run.aadd_log(…)' or 'await entry.aupdate(…)'"
            )
        if not self.store.records.write_logs(self._table, self.key, logs):
            found = self.store.records.state_of(self._table, self.key[0])
            raise self.lost(lost_reason(found, self.key[1]) or "taken_by_another_worker")

    def acall(self, function: Callable[[], ResultT]) -> Coroutine[Any, Any, ResultT]:
        """Call a function on the thread with the attempt's transaction, or on one with its own connections."""
        if self.calls is None:
            text = "run.aadd_log() and entry.aupdate() are for 'async def' handlers: leave out the first 'a'."
            raise PhaseError(text)
        return self.calls.call(function)


def not_loaded(kind: RecordType, key: RecordKey, error: BaseException) -> EndedRecord:
    """Return the end of an attempt whose record could not be loaded: an error, or it is queued again.

    Only an error of this row counts as an attempt: others would use up the attempts of a whole backlog.
    """
    text, is_counted = describe(error), blames_row(error) and not isinstance(error, RecordHidden)
    end = RecordEnd(*key, "errored", None, text, kind.max_attempts) if is_counted else RecordEnd(*key, "handed_back")
    return EndedRecord(kind, key, 0, end, error=text, exception=without_variables(error))


def _wait_seconds(kind: RecordType, record: Any) -> float | None:
    """Return the seconds from when a record was due until it was dequeued, or None if they are unknown.

    The queryset may defer the times. The row of a record that has failed before contains neither when it failed nor
    whether it was queued again since.
    """
    names = (kind.columns[column] for column in ("queued_at", "process_after", "started_at"))
    queued_at, process_after, started_at = (vars(record).get(name) for name in names)
    if kind.value(record, "num_failures") or not (isinstance(queued_at, datetime) and isinstance(started_at, datetime)):
        return None
    due_at = max(queued_at, process_after) if isinstance(process_after, datetime) else queued_at
    return max((started_at - due_at).total_seconds(), 0.0)


def _time_after(error: Requeue | RescheduleJob) -> tuple[datetime | None, float | None]:
    """Return when a record is processed again: at a time, or after seconds. Middleware may raise ``RescheduleJob``."""
    return (error.after, None) if isinstance(error, Requeue) else resolve_schedule(error.run_at, error.delay)


def call_hook(hook: Callable[[], object], using: str) -> BaseException | None:
    """Call a hook on connections without open transactions, and return its error. The context is a copy."""
    return copy_context().run(_call_hook, hook, using)


def _call_hook(hook: Callable[[], object], using: str) -> BaseException | None:
    begin_attempt(using)
    connections = usable_connections()
    error: BaseException | None = None
    try:
        hook()
        connections.check()
    except BaseException as raised:
        error = raised
    try:
        connections.clean(suspicious=error is not None)
    except BaseException:
        close_thread_connections()
    return error
