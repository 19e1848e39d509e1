"""Runs attempts in a child process. The worker holds their leases, applies time limits and writes most outcomes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.children.call_loop import RunningCall, running_call
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.job_log import AttemptLog, JobLogBuffer
from django_jobchains.registry.registry import get_registry
from django_jobchains.store import ClaimedJob, get_store
from django_jobchains.telemetry.child_processes import ChildTelemetry
from django_jobchains.telemetry.tracing import AttemptSpans
from django_jobchains.worker.isolated.attempt_messages import jobs_of_request, outcome_message, policy_of_request
from django_jobchains.worker.isolated.child_loop import run_on_loop

#: The name of the function that a worker calls in its child processes.
TARGET = f"{__name__}:run_attempt"
#: Sent when an attempt begins, if the worker has asked for it.
BEGIN = {"begin": True}


def run_attempt(request: Mapping[str, Any]) -> Any:
    """Run an attempt at jobs that the worker has claimed, and return the outcomes."""
    call = running_call.get()
    if request["reports_begin"]:
        call.send(BEGIN)
    telemetry = ChildTelemetry(request["telemetry"], call.send)
    jobs = jobs_of_request(request)
    outcomes = _run(jobs, request, call, telemetry)
    _end_spans(outcomes)
    telemetry.flush()
    index_of = {job.key: index for index, job in enumerate(jobs)}
    return [outcome_message(outcome, index_of[outcome.job.key]) for outcome in outcomes]


def _run(
    jobs: Sequence[ClaimedJob], request: Mapping[str, Any], call: RunningCall, spans: AttemptSpans
) -> Sequence[Outcome]:
    registry = get_registry()
    processor = registry.processor(request["type_name"])
    policy, store = policy_of_request(request, processor), get_store(request["using"])
    environment = Environment(processor, policy, store, registry, SentLogs(call.send), spans)
    if processor.batch_limit:
        return BatchAttempt(_with_signals(jobs, call), environment).run()
    [job] = jobs
    if processor.is_async:
        return run_on_loop(job, environment, call.signal)
    return JobAttempt(job, environment, call.signal).run()


def _end_spans(outcomes: Sequence[Outcome]) -> None:
    """End the spans of continuations that were created here. The worker creates the others, and begins their spans."""
    for outcome in outcomes:
        continuation = outcome.finished and outcome.finished.continuation
        if outcome.span and outcome.effects is not None and continuation:
            outcome.span.end("continued", None, "", [continuation.id])


def _with_signals(jobs: Sequence[ClaimedJob], call: RunningCall) -> list[tuple[ClaimedJob, AbortSignal]]:
    """Return each job of a batch with its own signal. The signal of the call aborts all of them."""
    signals = [call.part(job.id.hex) for job in jobs]

    def abort_all() -> None:
        for signal in signals:
            signal.abort(call.signal.reason or "error")

    call.signal.listeners.append(abort_all)
    if call.signal.aborted:
        abort_all()
    return list(zip(jobs, signals, strict=True))


class SentLogs(JobLogBuffer):
    """Sends what handlers log to the worker at once, so that it is not lost if this process dies."""

    def __init__(self, send: Callable[[Any], object]) -> None:  # Nothing is stored in this process.
        self.send = send

    def log_of(self, job: ClaimedJob) -> AttemptLog:
        return SentLog(job, self)


class SentLog(AttemptLog):
    """The log of one attempt, whose entries the worker adds to its own."""

    def __init__(self, job: ClaimedJob, logs: SentLogs) -> None:
        super().__init__(job, logs)
        self._id = job.id.hex
        self._send = logs.send

    def add(self, level: int, text: str, fields: str | None) -> None:
        self._send({"job": self._id, "log": [level, text, fields]})

    def set_progress(self, fraction: float, text: str) -> None:
        self._send({"job": self._id, "progress": [fraction, text]})
