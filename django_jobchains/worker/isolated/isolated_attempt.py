"""An attempt that runs in a child process, as its worker sees it."""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import Error

from django_jobchains.attempts.attempt import Attempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome, OutcomeKind, crashed_try
from django_jobchains.db.connections import repair_connections
from django_jobchains.exceptions import HandlerStuck, JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.batch import BatchSignal
from django_jobchains.handlers.job_log import AttemptLog
from django_jobchains.pools import Call, ChildCrashed
from django_jobchains.store.rows import AttemptKey, ClaimedJob, Effects
from django_jobchains.telemetry import events, report
from django_jobchains.telemetry.tracing import report_message, telemetry_request
from django_jobchains.worker.isolated.child_attempt import BEGIN
from django_jobchains.worker.isolated.messages import attempt_request, outcome_of_message

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import AttemptSpan

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
        """Handle a message of the child process, which might die before it could write what the handler logs."""
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
            return [Outcome(job, OutcomeKind.COMPLETED, effects=Effects(finished_chains={job.chain_id}))]
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
