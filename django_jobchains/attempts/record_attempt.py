"""One attempt at one record: call its hooks and handler, and decide how it ends."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from logging import getLogger
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from django_jobchains.attempts.outcome import MAX_CONFLICTS, Outcome, PhaseConflict
from django_jobchains.attempts.record_hooks import call_with_record
from django_jobchains.attempts.record_phases import RecordPhases
from django_jobchains.context import clear_context
from django_jobchains.enqueue_options import resolve_schedule
from django_jobchains.exceptions import JobAborted, LeaseLost, RescheduleJob
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.middleware.hooks import around
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordHidden, RecordLost, Requeue, is_retryable
from django_jobchains.records.run import RecordRun, RunPhases
from django_jobchains.records.saving import leave_out
from django_jobchains.store import ClaimedJob, RecordEnd, RecordKey, Store
from django_jobchains.store.errors import blames_row
from django_jobchains.telemetry.probes import record_peaks
from django_jobchains.telemetry.tracing import OWN_SPANS, AttemptSpans, active
from django_jobchains.text.errors import describe, log_error, without_variables

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

logger = getLogger("django_jobchains")

#: Abort reasons that the handler did not cause: the worker stops, or its heartbeats failed.
NOT_BY_HANDLER = ("worker_stopping", "error")


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


class RecordAttempt:
    """An attempt at a record, with the interface of an attempt at jobs. ``put`` receives how it ended.

    ``worker``: the id of the worker. ``on_prepared``: called when ``pre_handle`` has returned, or when it will not be
    called. ``on_ending``: called before the attempt commits its own end.
    """

    #: The jobs of the attempt: always empty, because a record is not a job.
    jobs: tuple[ClaimedJob, ...] = ()

    def __init__(
        self,
        kind: RecordType,
        record: Any,
        key: RecordKey,
        *,
        store: Store,
        put: Callable[[EndedRecord], None],
        worker: str = "",
        signal: AbortSignal | None = None,
        on_prepared: Callable[[], object] | None = None,
        on_ending: Callable[[], object] = lambda: None,
        spans: AttemptSpans = OWN_SPANS,
    ) -> None:
        self.kind = kind
        self.record = record
        self.key = key
        self.signal = signal or AbortSignal()
        self.worker = worker
        self.number = kind.value(record, "num_failures") + kind.value(record, "num_resets") + 1
        self._wait_seconds = _wait_seconds(kind, record)
        leave_out(record, kind.columns)
        #: The monotonic time at which the worker asks the attempt to stop.
        self.expires_at = math.inf
        #: The monotonic time since which the project's code may occupy the thread. None: the attempt waits for a child
        #: process or for the write of its end.
        self.runs_since: float | None = 0.0
        self.phases = RecordPhases(kind, key, store, self.signal)
        #: Whether ``pre_handle`` was called, or will not be.
        self.is_prepared = False
        #: Whether the end was passed to ``put``.
        self._is_put = False
        self._put = put
        self._on_prepared = on_prepared
        self._on_ending = on_ending
        self._spans = spans
        self._span: AttemptSpan | None = None
        #: The error of ``pre_handle``.
        self._error: BaseException | None = None

    @property
    def is_detached(self) -> bool:
        return self.signal.is_detached

    @property
    def label(self) -> str:
        """The name of the attempt in logs."""
        return f"{self.kind.name} {self.key[0]}"

    def run(self) -> list[Outcome]:
        """Handle the record on this thread, and pass its end to ``put``. Records have no job outcome to return."""
        self.prepare()
        self.conclude(self.handle())
        return []

    def prepare(self) -> None:
        """Call ``pre_handle``. Its error ends the attempt when the attempt runs."""
        self.expires_at = time.monotonic() + self.kind.max_runtime_seconds
        if "pre_handle" in self.kind.hooks:
            self._error = call_with_record(self.kind, "pre_handle", self.record, self.worker)
            if self.is_detached:  # the worker has given up waiting for the hook
                self._error = JobAborted(self.signal.reason or "error")
        self._end_preparing()

    def handle(self) -> EndedRecord:
        """Call the handler, and return how the attempt ended. The context is a copy, as for jobs."""
        return copy_context().run(self._run)

    def conclude(self, ended: EndedRecord) -> None:
        """Pass on how the attempt ended, and call ``post_handle`` when this has been written."""
        self._put_unless_detached(ended)
        if "post_handle" in self.kind.hooks:
            if not self.is_detached:
                written = threading.Event()
                ended.when_written(written.set)
                with self.waiting_for_write():
                    written.wait()
            self.call_post_handle()

    @contextmanager
    def waiting_for_write(self) -> Iterator[None]:
        """Suspend the time limit. A lock of another transaction may delay the write."""
        self.runs_since, self.expires_at = None, math.inf
        yield
        self.runs_since = time.monotonic()
        self.expires_at = self.runs_since + self.kind.max_runtime_seconds

    def detach(self, error: BaseException, stack: str) -> list[Outcome]:
        """Give up an attempt that does not stop, from another thread. It can no longer write anything.

        If its heartbeats failed, its record is released and reset later, because the handler still runs.
        """
        if self.signal.detach():
            reason = self.signal.reason
            ended = self._abandoned(reason, describe(error)) if reason in NOT_BY_HANDLER else self._errored(error)
            self._put(self._with_span(ended))
            self._end_preparing()
        return []

    def hand_back(self) -> EndedRecord:
        """Return the end of an attempt that did not start, or that was interrupted through no fault of its handler."""
        self._end_preparing()
        return self._ended(RecordEnd(*self.key, "handed_back"))

    def abandon(self, error: BaseException) -> None:
        """Release the record after an error that is not the handler's. It gets no more heartbeats, so it is reset."""
        self._end_preparing()
        if not self._is_put:
            ended = self._ended(None, error=describe(error))
            ended.abandoned_reason = "error"
            self._put_unless_detached(self._with_span(ended))

    def _put_unless_detached(self, ended: EndedRecord) -> None:
        if not self.is_detached:
            self._put(ended)
            self._is_put = True

    def _end_preparing(self) -> None:
        self.is_prepared = True
        if self._on_prepared is not None:
            self._on_prepared()

    def _run(self) -> EndedRecord:
        clear_context()
        started = time.perf_counter()
        with active(self._start_span()):
            try:
                self.phases.begin()
            except BaseException as error:
                self.signal.end()
                ended = self._errored(error)
            else:
                ended = self._process()
            self.phases.end()
        ended.seconds = time.perf_counter() - started
        return self._with_span(ended)

    def _start_span(self) -> "AttemptSpan | None":
        kind = self.kind
        record_peaks.begin(kind.name, self)
        self.phases.span = self._span = self._spans.record(kind.name, kind.queue, str(self.key[0]), self.number)
        return self._span

    def _with_span(self, ended: EndedRecord) -> EndedRecord:
        """Return the end with the attempt's wait, and with its span, which ends now."""
        ended.wait_seconds = self._wait_seconds
        record_peaks.end(self.kind.name, self)
        if self._span is not None and self._span.stop():
            ended.span = self._span
        return ended

    def _process(self) -> EndedRecord:
        if self._error is not None:
            return self._ended_by(self._error)
        try:
            run = self._record_run(self.phases)
            with around(self.kind.middleware, "around_handler", run):
                self.kind.processor.handle(self.record, run)
                if not run.requeued[0]:
                    self.phases.complete_for_middleware()
            return self._complete(run)
        except BaseException as error:  # SystemExit and similar errors end the attempt, but not the worker.
            return self._ended_by(error)

    def _record_run(self, phases: RunPhases) -> Any:
        """Return the argument of the handler and of middleware, which receives it instead of a running job."""
        kind = self.kind
        run = RecordRun(self.record, self.number, self.signal, phases, type_name=kind.name, queue=kind.queue)
        if kind.middleware:
            self.phases.running = run
        return run

    def _complete(self, run: RecordRun) -> EndedRecord:
        """Write the end in the handler's transaction, or return it if it is still to be written."""
        if not self.signal.end():
            raise RecordLost(self.key[0], self.signal.reason or "error")
        self.phases.check_after_handler()
        return self._finish(run)

    def _finish(self, run: RecordRun) -> EndedRecord:
        is_requeued, after = run.requeued
        end = RecordEnd(*self.key, "requeued", after) if is_requeued else RecordEnd(*self.key, "completed")
        ended = self._ended(end)
        if self.phases.is_open:
            self._on_ending()
            ended.state = self.phases.finish_record(end)
        return ended

    def _ended_by(self, error: BaseException) -> EndedRecord:
        """Return how the attempt ends after this error. Never raises."""
        try:
            self.signal.end()
            self.phases.give_up(error)
            if isinstance(error, LeaseLost):
                return self._abandoned(error.reason, describe(error))
            if isinstance(error, Requeue | RescheduleJob):
                return self._ended(RecordEnd(*self.key, "requeued", _time_after(error)))
            if isinstance(error, JobAborted) and self.signal.reason in NOT_BY_HANDLER:
                return self.hand_back()
            if isinstance(error, PhaseConflict):
                # A record has no count of conflicts. Its lease number also counts its other attempts.
                if self.key[1] < MAX_CONFLICTS:
                    return self._ended(RecordEnd(*self.key, "handed_back"), error=describe(error.conflict))
                error = error.conflict
        except BaseException as problem:
            log_error(logger, problem, "The end of record %s could not be computed, so it errored: %s", self.key[0])
        return self._errored(error)

    def _errored(self, error: BaseException) -> EndedRecord:
        text = describe(error)
        if self.signal.reason == "timed_out":
            text = f"The handler exceeded max_runtime ({self.kind.max_runtime_seconds:g} s). {text}"
        kind = "errored" if is_retryable(error) else "failed"
        end = RecordEnd(*self.key, kind, None, text, self.kind.max_attempts)  # type: ignore[arg-type]
        return self._ended(end, error=text, exception=without_variables(error))

    def _abandoned(self, reason: str, text: str) -> EndedRecord:
        """Return the end of an attempt that writes nothing."""
        ended = self._ended(None, error=text)
        ended.abandoned_reason = reason
        return ended

    def _ended(self, end: RecordEnd | None, *, error: str = "", exception: BaseException | None = None) -> EndedRecord:
        return EndedRecord(self.kind, self.key, self.number, end, error=error, exception=exception)

    def call_post_handle(self) -> None:
        error = call_with_record(self.kind, "post_handle", self.record, self.worker)
        if error is not None:
            text = "post_handle of record %s failed, which does not change its state: %s"
            log_error(logger, error, text, self.key[0])


def not_loaded(kind: RecordType, key: RecordKey, error: BaseException) -> EndedRecord:
    """Return the end of an attempt whose record could not be loaded: an error, or it is queued again.

    Only an error of this row counts as an attempt: others would use up the attempts of a whole backlog.
    """
    text, is_counted = describe(error), blames_row(error) and not isinstance(error, RecordHidden)
    end = RecordEnd(*key, "errored", None, text, kind.max_attempts) if is_counted else RecordEnd(*key, "handed_back")
    return EndedRecord(kind, key, 0, end, error=text, exception=without_variables(error))


def _wait_seconds(kind: RecordType, record: Any) -> float | None:
    """Return the seconds from when a record was due until it was dequeued, or None if the queryset defers the times."""
    names = (kind.columns[column] for column in ("queued_at", "process_after", "started_at"))
    queued_at, process_after, started_at = (vars(record).get(name) for name in names)
    if not (isinstance(queued_at, datetime) and isinstance(started_at, datetime)):
        return None
    due_at = max(queued_at, process_after) if isinstance(process_after, datetime) else queued_at
    return max((started_at - due_at).total_seconds(), 0.0)


def _time_after(error: Requeue | RescheduleJob) -> datetime | None:
    """Return the time from which a record is processed again. Middleware may also raise ``RescheduleJob``."""
    if isinstance(error, Requeue):
        return error.after
    run_at, delay_seconds = resolve_schedule(error.run_at, error.delay)
    return run_at or timezone.now() + timedelta(seconds=delay_seconds or 0)
