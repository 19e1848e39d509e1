"""Attempts at jobs and records that run in child processes, as their worker sees them."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error

from django_jobchains.attempts.attempt import Attempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome, OutcomeKind, crashed_try
from django_jobchains.attempts.record_attempt import EndedRecord, RecordAttempt
from django_jobchains.children.pooled_child import AbortWatch
from django_jobchains.db.connections import repair_connections
from django_jobchains.exceptions import HandlerStuck, JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.batch import BatchSignal
from django_jobchains.handlers.job_log import AttemptLog
from django_jobchains.pools import PENDING, Call, ChildCrashed, ChildStartFailed, PoolClosed, PooledChild, RemoteError
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.store.rows import AttemptKey, ClaimedJob, Effects
from django_jobchains.telemetry import events, report
from django_jobchains.telemetry.tracing import report_message, telemetry_request
from django_jobchains.text.errors import clean, describe, log_error
from django_jobchains.worker.isolated.child_attempt import BEGIN, ENDING, RECORD_TARGET, TARGET
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.isolated.messages import (
    attempt_request,
    ended_of_message,
    outcome_of_message,
    record_request,
)

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

logger = getLogger("django_jobchains")

#: How long a child process may take to begin an attempt. After that, the attempt's time limit starts anyway.
MAX_BEGIN_SECONDS = 30.0


class IsolatedAttempt:
    """The worker's side of an attempt at one job or a batch: its request, its signal, its spans and its outcomes."""

    #: A child process, unlike a thread, can be killed, so its slot is never given up.
    is_detached = False

    def __init__(self, claimed: Sequence[tuple[ClaimedJob, AbortSignal]], environment: Environment) -> None:
        self.jobs = tuple(job for job, _ in claimed)
        self._environment = environment
        self._is_batch = bool(environment.processor.batch_limit)
        self._attempts = {job.key: JobAttempt(job, environment, signal) for job, signal in claimed}
        self.signal = BatchSignal([signal for _, signal in claimed]) if self._is_batch else claimed[0][1]
        self._logs: dict[str, AttemptLog] = {}
        self._started = time.monotonic()
        self._has_spans = False
        self._batch_span: AttemptSpan | None = None
        #: The monotonic time at which the worker asks the attempt to stop.
        self.expires_at = math.inf

    def request(self, *, is_first: bool) -> Any:
        """Return the request for the child process. ``is_first``: no other attempt runs there before it.

        With tracing, each attempt is the first: its span begins before the request, which contains its context.
        """
        processor, policy = self._environment.processor, self._environment.policy
        if is_first:
            self._start_spans()
        reports_begin = is_first and policy.timeout_seconds != math.inf
        request = attempt_request(self.jobs, processor, policy, self._environment.store.using, reports_begin)
        spans = {attempt.job.id.hex: attempt.span for attempt in self._attempts.values() if attempt.span}
        request["telemetry"] = telemetry_request(spans, self._batch_span)
        return request

    def _start_spans(self) -> None:
        """Report that the attempt starts, and begin its spans. Those inside of it begin and end in the child."""
        if not self._has_spans:
            self._has_spans = True
            for attempt in self._attempts.values():
                attempt.start()
            if self._is_batch:
                self._batch_span = self._environment.spans.batch(self.jobs)

    # While it runs

    def expect_begin(self) -> None:
        """Record that the attempt was sent to a child process, which reports when it begins."""
        self._started = time.monotonic()
        self.expires_at = self._started + MAX_BEGIN_SECONDS + self._environment.policy.timeout_seconds

    def begin(self) -> None:
        """Record that the attempt begins now. The time before does not count."""
        self._start_spans()
        self._started = time.monotonic()
        self.expires_at = self._started + self._environment.policy.timeout_seconds

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the child process, which might die before it could write log entries."""
        if message == BEGIN:
            self.begin()
        elif "event" in message:
            report_message(message)
        elif "log" in message:
            self._log_of(message["job"]).add(*message["log"])
        else:
            self._log_of(message["job"]).set_progress(*message["progress"])

    def forward_aborts(self, call: Call) -> None:
        """Forward the aborts of single jobs of a batch. An abort of the whole attempt is forwarded by the watch."""
        if not self._is_batch:
            return
        for attempt in self._attempts.values():
            forward = partial(_forward_abort, call, attempt.signal, attempt.job.id.hex)
            attempt.signal.listeners.append(forward)
            if attempt.signal.aborted:
                forward()

    def _log_of(self, id: str) -> AttemptLog:
        if id not in self._logs:
            job = next(job for job in self.jobs if job.id.hex == id)
            self._logs[id] = self._environment.log_buffer.log_of(job)
        return self._logs[id]

    # At its end

    def outcomes(self, messages: Sequence[Sequence[Any]]) -> list[Outcome]:
        """Return the outcomes that the child process has sent. Raises any error if they are not outcomes."""
        if not messages:
            raise ValueError("It has no outcome.")
        processor, policy = self._environment.processor, self._environment.policy
        return [outcome_of_message(each, self.jobs, processor, policy) for each in messages]

    def not_started(self, error: BaseException) -> list[Outcome]:
        """Return the outcomes if the handler could not be called."""
        return self.end([outcome for attempt in self._attempts.values() for outcome in attempt.not_started(error)])

    def hand_back(self, error: Exception) -> list[Outcome]:
        """Return the outcomes if there is no child process."""
        return self.end([Outcome(job, OutcomeKind.HANDED_BACK, error=str(error)) for job in self.jobs])

    def outcomes_of_abort(self, error: JobAborted) -> list[Outcome]:
        """Return the outcomes if the attempt was asked to stop before it was sent to a child process."""
        if error.reason == "worker_stopping":
            return self.hand_back(error)
        return self.end([outcome for attempt in self._attempts.values() for outcome in attempt.ends_after(error)])

    def outcomes_of_death(self, pid: int, error: ChildCrashed) -> list[Outcome]:
        """Return the outcomes if the child process died while it ran the attempt."""
        return self.end(
            [outcome for attempt in self._attempts.values() for outcome in self._after_death(attempt, pid, error)]
        )

    def end(self, outcomes: list[Outcome]) -> list[Outcome]:
        """End the spans and signals of the attempt. The spans of its jobs end when their outcomes are written."""
        self.signal.end()
        if self._batch_span is not None:
            self._batch_span.end()
        seconds = time.monotonic() - self._started
        for outcome in outcomes:
            attempt = self._attempts[outcome.job.key]
            new = outcome.finished and outcome.finished.continuation
            if attempt.span is not None and outcome.effects is None and new:
                # This worker writes the continuation. The child process has dropped its span.
                attempt.span.send(new, self._environment.store.chains.contexts)
            attempt.ended([outcome], outcome.seconds or seconds)
        return outcomes

    def _after_death(self, attempt: JobAttempt, pid: int, error: ChildCrashed) -> list[Outcome]:
        """Return the outcome after a child process died: it crashed, or was killed because it did not stop."""
        job, environment = attempt.job, self._environment
        if self._was_committed(job.key):
            effects = Effects(finished_chains={job.chain_id})
            return [Outcome(job, OutcomeKind.COMPLETED, effects=effects, processor=environment.processor)]
        report_death(attempt.signal, job.worker, job.id, job.type_name, pid, error)
        killed = error_of_killed(attempt)
        if killed is None:
            return [crashed_try(job, environment.processor, environment.policy, error, error.stderr)]
        return attempt.ends_after(killed)

    def _was_committed(self, key: AttemptKey) -> bool:
        """Return whether the attempt completed its job before the child process died."""
        try:
            return key in self._environment.store.leases.check([key]).completed
        except Error:  # The lease number then prevents its failure from being written.
            repair_connections()
            return False


def report_death(signal: AbortSignal, worker: str, id: Any, type_name: str, pid: int, error: ChildCrashed) -> None:
    """Report that a child process crashed during an attempt, or was killed because the attempt did not stop."""
    if signal.reason is None:
        report(events.ChildDied(worker, id, type_name, pid, error.exitcode, str(error)))
    else:
        report(events.ChildKilled(worker, id, type_name, pid, signal.reason))


def error_of_killed(attempt: Attempt[Any]) -> Exception | None:
    """Return the error that ends an attempt whose child process was killed, or None if it crashed."""
    signal = attempt.signal
    if signal.reason is None:
        return None
    if signal.reason in ("timed_out", "cancelled"):
        return HandlerStuck(signal.reason, time.monotonic() - (signal.aborted_at or 0))
    if signal.reason == "worker_stopping":
        return JobAborted(signal.reason)
    return attempt.lost(signal.reason)


def _forward_abort(call: Call, signal: AbortSignal, part: str) -> None:
    if signal.reason is not None:
        call.abort(signal.reason, part)


class IsolatedRecordAttempt(RecordAttempt):
    """Runs the handler in a child process of a pool. The hooks run in the worker, which has their state.

    ``on_ended``: called with the seconds that the attempt took, when its worker can be used by another attempt.
    """

    def __init__(self, *args: Any, pool: IsolationPool, on_ended: Callable[[float], object], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pool = pool
        self.signal.ends_elsewhere = True
        #: Whether the attempt no longer needs its worker.
        self.has_ended = False
        self._on_ended = on_ended
        self._call: Call | None = None

    def run(self) -> list[Any]:
        started = time.perf_counter()
        try:
            return super().run()
        finally:
            self.has_ended = True
            self._on_ended(time.perf_counter() - started)

    def handle(self) -> EndedRecord:
        """Run the handler in a child process while this thread waits, and return the attempt's end. Never raises."""
        started = time.perf_counter()
        self.start()
        self.expires_at, self.runs_since = math.inf, None  # The time limit starts when the child begins.
        try:
            ended = self.ends_after(self._error)[0] if self._error else self._run_in_pool()
        except BaseException as error:  # Not an error of the handler.
            log_error(logger, error, "The attempt of record %s could not be run in a child process: %s", self.key[0])
            ended = self._errored(error)
        self.signal.end()
        self.runs_since = time.monotonic()
        self.expires_at = self.runs_since + self.kind.max_runtime_seconds
        [ended] = self.ended([ended], ended.seconds or time.perf_counter() - started)
        return ended

    def kill(self) -> None:
        """Kill the child process, if it runs the handler. Can be called from any thread."""
        if (call := self._call) is not None:
            call.kill()

    def _run_in_pool(self) -> EndedRecord:
        try:
            worker = self.pool.acquire()
        except (PoolClosed, ChildStartFailed):
            return self.hand_back(has_begun=False)
        try:
            if (reason := self.signal.reason) is None:
                return self._run_in(worker)
            if reason == "worker_stopping":
                return self.hand_back(has_begun=False)
            [ended] = self.ends_after(JobAborted(reason))
            return ended
        finally:
            self._call = None
            self.pool.release(worker)

    def _run_in(self, worker: PooledChild) -> EndedRecord:
        request = record_request(self.kind, self.record, self.key, self.store.using)
        request["telemetry"] = telemetry_request({str(self.key[0]): self.span} if self.span else {})
        call = self._call = worker.start(RECORD_TARGET, request, on_message=self._receive)
        self.expires_at = time.monotonic() + self.kind.max_runtime_seconds
        try:
            watch = AbortWatch(call, self.signal, self.pool.isolation.grace_seconds)
            with self.pool.reading(worker), watch:
                return ended_of_message(call.wait(), self.kind, self.key, self.number)
        except PoolClosed:
            return self.hand_back()
        except ChildCrashed as error:
            self.pool.count_death(was_killed=self.signal.reason is not None)
            return self._ended_by_death(worker.pid, error)
        except RemoteError as error:  # Raised outside of the handler.
            return self._errored(error)

    def _receive(self, message: dict[str, Any]) -> None:
        if message == ENDING:
            self.signal.end()
        else:
            report_message(message)

    def _ended_by_death(self, pid: int, error: ChildCrashed) -> EndedRecord:
        """Return the end after a child process died: it crashed, or was killed because it did not stop."""
        is_own = self.signal.has_ended or self.signal.reason != "already_completed"
        if is_own and self._was_committed():
            ended = self._ended(RecordEnd(*self.key, "completed"))
            ended.state = "completed"
            return ended
        report_death(self.signal, self.environment.worker, str(self.key[0]), self.kind.name, pid, error)
        killed = error_of_killed(self)
        if killed is None:
            return self._crashed(error)
        [ended] = self.ends_after(killed)
        return ended

    def _crashed(self, error: ChildCrashed) -> EndedRecord:
        """Return the end of an attempt whose child process crashed: an error, with the last output of the child."""
        text = describe(error)
        message = clean("\n".join(filter(None, [text, error.stderr])))
        end = RecordEnd(*self.key, "errored", None, message, self.kind.max_attempts)
        return self._ended(end, error=text, exception=error.with_traceback(None))

    def _was_committed(self) -> bool:
        """Return whether ``run.complete()`` was committed before the child process died."""
        store = self.store
        try:
            return store.records.state_of(self.kind.table(store.using), self.key[0]) == ("completed", self.key[1])
        except Error:  # The lease number then prevents its failure from being written.
            repair_connections()
            return False


#: Attempts that wait behind one that takes longer than this move to other child processes.
PATIENCE_SECONDS = 0.05


class RunEnd(NamedTuple):
    """The result of a run: the attempts to put back, how many have ended, and the time in total and in handlers."""

    left: Sequence[IsolatedAttempt]
    ended: int
    seconds: float
    handler_seconds: float


class ChildRun:
    """One or more attempts in one child process, with the interface of an attempt. ``run`` never raises.

    They are sent together, because a message for each of them would cost more than short handlers. Only the running
    attempt is affected if it crashes, hangs or takes long: the attempts behind it have not begun, and are put back.

    ``put_back``: called with the attempts behind one that takes long, while it runs. ``ended``: called when the run no
    longer needs its worker.
    """

    #: A child process, unlike a thread, can be killed, so its slot is never given up.
    is_detached = False

    def __init__(
        self,
        attempts: Sequence[IsolatedAttempt],
        pool: IsolationPool,
        put_back: Callable[[Sequence[IsolatedAttempt]], object],
        ended: Callable[[RunEnd], object],
    ) -> None:
        self.pool = pool
        #: Whether the run no longer needs its worker.
        self.has_ended = False
        #: The attempts that have not ended, the running one first.
        self._attempts = deque(attempts)
        self._count, self._handler_seconds = 0, 0.0
        self._put_back = put_back
        self._ended = ended
        self._calls: Sequence[Call] = ()

    @property
    def jobs(self) -> tuple[ClaimedJob, ...]:
        return tuple(job for attempt in list(self._attempts) for job in attempt.jobs)

    @property
    def label(self) -> str:
        """The name of the running attempt in logs."""
        return ", ".join(f"{job.type_name} {job.id}" for job in (self.current.jobs if self.current else ()))

    @property
    def current(self) -> IsolatedAttempt | None:
        """The attempt that runs."""
        return next(iter(self._attempts), None)

    def run(self) -> Iterator[Outcome]:
        """Run the handlers while this thread waits, and yield each outcome when it arrives."""
        started = time.perf_counter()
        try:
            yield from self._run()
        except Exception as error:  # Not an error of a handler.
            log_error(logger, error, "Attempts could not be run in a child process: %s")
            for attempt in list(self._attempts):
                yield from self._end(attempt.not_started(error))
        left = list(self._attempts)
        self._attempts.clear()
        self.has_ended = True
        self._ended(RunEnd(left, self._count, time.perf_counter() - started, self._handler_seconds))

    def kill(self) -> None:
        """Kill the child process, if it runs a handler. Can be called from any thread."""
        for call in self._calls:
            call.kill()

    def _run(self) -> Iterator[Outcome]:
        try:
            worker = self.pool.acquire()
        except (PoolClosed, ChildStartFailed) as error:
            while self._attempts:
                yield from self._end(self._attempts[0].hand_back(error))
            return
        try:
            yield from self._run_in(worker)
        finally:
            self._calls = ()
            self.pool.release(worker)

    def _run_in(self, worker: PooledChild) -> Iterator[Outcome]:
        for attempt in list(self._attempts):
            if (reason := attempt.signal.reason) is not None:
                outcomes = attempt.outcomes_of_abort(JobAborted(reason))
                self._attempts.remove(attempt)
                yield from outcomes
        attempts = list(self._attempts)[: self.pool.attempts_left(worker)]
        if not attempts:
            return
        requests = [attempt.request(is_first=attempt is attempts[0]) for attempt in attempts]
        self._calls = worker.start_all(TARGET, requests, on_message=self._on_message)
        for attempt, call in zip(attempts, self._calls, strict=True):
            if call.is_withdrawn:
                break
            try:
                outcomes = self._outcomes(attempt, call, worker)
            except ChildCrashed as error:
                if self._had_begun(call, worker):
                    self.pool.count_death(was_killed=attempt.signal.reason is not None)
                    yield from self._end(attempt.outcomes_of_death(worker.pid, error))
                break
            if not outcomes:  # The child is too busy to begin it.
                break
            yield from self._end(outcomes)
            if self.pool.is_too_large(worker):
                worker.withdraw()

    def _outcomes(self, attempt: IsolatedAttempt, call: Call, worker: PooledChild) -> list[Outcome]:
        """Wait for the outcomes of the current attempt: none if it was withdrawn. Raises ``ChildCrashed``."""
        if call is self._calls[0]:
            attempt.expect_begin()
        else:
            attempt.begin()
        try:
            attempt.forward_aborts(call)
            watch = AbortWatch(call, attempt.signal, self.pool.isolation.grace_seconds)
            with self.pool.reading(worker), watch:
                reply = self._reply(call, worker)
                outcomes = [] if call.is_withdrawn else attempt.outcomes(reply)
            return outcomes and attempt.end(outcomes)
        except PoolClosed as error:
            return attempt.hand_back(error)
        except RemoteError as error:  # Raised before the handler was called.
            return attempt.not_started(error)

    def _reply(self, call: Call, worker: PooledChild) -> Any:
        reply = call.wait(PATIENCE_SECONDS if len(self._attempts) > 1 else None)
        if reply is not PENDING:
            return reply
        worker.withdraw()
        if call.is_withdrawn:
            return None
        begun = sum(not each.is_withdrawn for each in self._calls) - self._count
        waiting = [self._attempts.pop() for _ in range(len(self._attempts) - begun)]
        self._put_back(waiting[::-1])
        return call.wait()

    def _had_begun(self, call: Call, worker: PooledChild) -> bool:
        """Return whether a crash counts for the current attempt. The first one may crash its child before it begins."""
        worker.withdraw()
        return not call.is_withdrawn or call is self._calls[0]

    def _on_message(self, message: dict[str, Any]) -> None:
        self._attempts[0].receive(message)

    def _end(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Return the outcomes of the current attempt, which has ended."""
        self._attempts.popleft()
        self._count += 1
        self._handler_seconds += outcomes[0].seconds
        return outcomes
