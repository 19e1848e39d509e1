"""An attempt that runs in a child process, as its worker sees it."""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import Error

from django_jobchains.attempts.job_attempt import Environment
from django_jobchains.attempts.outcome import Outcome, OutcomeKind, crashed_try, failed_try, not_started
from django_jobchains.db.connections import repair_connections
from django_jobchains.exceptions import HandlerStuck
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.batch import BatchSignal
from django_jobchains.handlers.job_log import AttemptLog
from django_jobchains.pools import Call, ChildCrashed
from django_jobchains.store import AttemptKey, ClaimedJob, Effects
from django_jobchains.telemetry import events, report
from django_jobchains.telemetry.child_processes import report_message, telemetry_request
from django_jobchains.worker.isolated.attempt_messages import attempt_request, outcome_of_message
from django_jobchains.worker.isolated.attempt_spans import IsolatedSpans
from django_jobchains.worker.isolated.child_attempt import BEGIN

#: How long a child process may take to begin an attempt. After that, the attempt's time limit starts anyway.
MAX_BEGIN_SECONDS = 30.0


class IsolatedAttempt:
    """The worker's side of an attempt at one job or a batch: its request, its signal, and its outcomes."""

    #: A child process, unlike a thread, can be killed, so its slot is never given up.
    is_detached = False

    def __init__(self, claimed: Sequence[tuple[ClaimedJob, AbortSignal]], environment: Environment) -> None:
        self.jobs = tuple(job for job, _ in claimed)
        self._signals = {job.key: signal for job, signal in claimed}
        self._processor = environment.processor
        self._policy = environment.policy
        self._store = environment.store
        self._log_buffer = environment.log_buffer
        self.signal = BatchSignal(list(self._signals.values())) if self._processor.batch_limit else claimed[0][1]
        self._logs: dict[str, AttemptLog] = {}
        self._started = time.monotonic()
        self._spans: IsolatedSpans | None = None
        #: The monotonic time at which the worker asks the attempt to stop.
        self.expires_at = math.inf

    def request(self, *, is_first: bool) -> Any:
        """Return the request for the child process. ``is_first``: no other attempt runs there before it.

        With tracing, each attempt is the first: its span begins before the request, which contains its context.
        """
        if is_first:
            self._spans = self._new_spans()
        reports_begin = is_first and self._policy.timeout_seconds != math.inf
        request = attempt_request(self.jobs, self._processor, self._policy, self._store.using, reports_begin)
        request["telemetry"] = self._spans.request() if self._spans else telemetry_request({}, None)
        return request

    def _new_spans(self) -> IsolatedSpans:
        return IsolatedSpans(self.jobs, is_batch=bool(self._processor.batch_limit))

    # While it runs

    def expect_begin(self) -> None:
        """Record that the attempt was sent to a child process, which reports when it begins."""
        self._started = time.monotonic()
        self.expires_at = self._started + MAX_BEGIN_SECONDS + self._policy.timeout_seconds

    def begin(self) -> None:
        """Record that the attempt begins now. The time before does not count."""
        self._spans = self._spans or self._new_spans()
        self._started = time.monotonic()
        self.expires_at = self._started + self._policy.timeout_seconds

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
        if not self._processor.batch_limit:
            return
        for job in self.jobs:
            signal = self._signals[job.key]
            forward = partial(_forward_abort, call, signal, job.id.hex)
            signal.listeners.append(forward)
            if signal.aborted:
                forward()

    def _log_of(self, id: str) -> AttemptLog:
        if id not in self._logs:
            job = next(job for job in self.jobs if job.id.hex == id)
            self._logs[id] = self._log_buffer.log_of(job)
        return self._logs[id]

    # At its end

    def outcomes(self, messages: Sequence[Sequence[Any]]) -> list[Outcome]:
        """Return the outcomes that the child process has sent. Raises any error if they are not outcomes."""
        if not messages:
            raise ValueError("It has no outcome.")
        return [outcome_of_message(each, self.jobs, self._processor, self._policy) for each in messages]

    def not_started(self, error: BaseException) -> list[Outcome]:
        """Return the outcomes if the handler could not be called."""
        return self.end([not_started(job, self._policy, error) for job in self.jobs])

    def hand_back(self, error: Exception) -> list[Outcome]:
        """Return the outcomes if there is no child process."""
        return self.end([Outcome(job, OutcomeKind.HANDED_BACK, error=str(error)) for job in self.jobs])

    def outcomes_of_death(self, pid: int, error: ChildCrashed) -> list[Outcome]:
        """Return the outcomes if the child process died while it ran the attempt."""
        return self.end([self._outcome_of_death(job, pid, error) for job in self.jobs])

    def end(self, outcomes: list[Outcome]) -> list[Outcome]:
        """End the spans and signals of the attempt."""
        if self._spans is not None:
            self._spans.end(outcomes, self._store.chains.contexts)
        for signal in self._signals.values():
            signal.end()
        for outcome in outcomes:
            outcome.seconds = outcome.seconds or time.monotonic() - self._started
        return outcomes

    def _outcome_of_death(self, job: ClaimedJob, pid: int, error: ChildCrashed) -> Outcome:
        """Return the outcome after a child process died: it crashed, or was killed because it did not stop."""
        signal = self._signals[job.key]
        if self._was_committed(job.key):
            return Outcome(job, OutcomeKind.COMPLETED, effects=Effects(finished_chains={job.chain_id}))
        if signal.reason is None:
            report(events.ChildCrashed(job.worker, job.id, job.type_name, pid, error.exitcode, str(error)))
            return crashed_try(job, self._processor, self._policy, error, error.stderr)
        report(events.ChildKilled(job.worker, job.id, job.type_name, pid, signal.reason))
        if signal.reason == "worker_stopping":
            return Outcome(job, OutcomeKind.HANDED_BACK, error=str(error))
        if signal.reason in ("timed_out", "cancelled"):
            seconds = time.monotonic() - (signal.aborted_at or 0)
            return failed_try(job, self._processor, self._policy, HandlerStuck(signal.reason, seconds))
        return Outcome(job, OutcomeKind.ABANDONED, error=signal.reason)

    def _was_committed(self, key: AttemptKey) -> bool:
        """Return whether the attempt completed its job before the child process died."""
        try:
            return key in self._store.leases.check([key]).completed
        except Error:  # The lease number then prevents its failure from being written.
            repair_connections()
            return False


def _forward_abort(call: Call, signal: AbortSignal, part: str) -> None:
    if signal.reason is not None:
        call.abort(signal.reason, part)
