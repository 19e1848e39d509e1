"""Runs attempts in a child process. The worker holds their leases, applies time limits and writes most ends."""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.handler_task import follow_tasks
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.attempts.record_attempt import EndedRecord, RecordAttempt, RecordEnvironment, not_loaded
from django_jobchains.children.call_loop import RunningCall, running_call
from django_jobchains.db.connections import ThreadConnections, repair_connections
from django_jobchains.declare.registry import get_registry
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.job_log import AttemptLog, JobLogBuffer
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordHidden
from django_jobchains.store import Store, get_store
from django_jobchains.store.record_tables import RecordKey
from django_jobchains.store.rows import ClaimedJob
from django_jobchains.telemetry.tracing import AttemptSpans, ChildTelemetry
from django_jobchains.text.errors import log_error
from django_jobchains.worker.call_threads import QueryThreadPool, SideThreads, Threads, TransactionThreadPool
from django_jobchains.worker.isolated.messages import (
    ended_message,
    jobs_of_request,
    key_of_request,
    outcome_message,
    policy_of_request,
)
from django_jobchains.worker.threads import LOCK_SECONDS

logger = getLogger("django_jobchains")

#: The names of the functions that a worker calls in its child processes.
TARGET = f"{__name__}:run_attempt"
RECORD_TARGET = f"{__name__}:run_record"
#: Sent when an attempt begins, if the worker has asked for it.
BEGIN = {"begin": True}
#: Sent before the attempt at a record commits its end. From then on, the worker does not abort it because of what the
#: row contains.
ENDING = {"ending": True}


def run_attempt(request: Mapping[str, Any]) -> Any:
    """Run an attempt at jobs that the worker has claimed, and return the outcomes."""
    call = _take_call()
    if request["reports_begin"]:
        call.send(BEGIN)
    telemetry = ChildTelemetry(request["telemetry"], call.send)
    jobs = jobs_of_request(request)
    outcomes = _run(jobs, request, call, telemetry)
    _end_spans(outcomes)
    telemetry.flush()
    index_of = {job.key: index for index, job in enumerate(jobs)}
    return [outcome_message(outcome, index_of[outcome.job.key]) for outcome in outcomes]


def run_record(request: Mapping[str, Any]) -> Any:
    """Handle a record that the worker has dequeued, and return how the attempt ended. The worker calls the hooks."""
    call = _take_call()
    telemetry = ChildTelemetry(request["telemetry"], call.send)
    kind, store = get_registry().record_type(request["type_name"]), get_store(request["using"])
    # The worker passes on how the attempt ended, not this process.
    environment = RecordEnvironment(kind, store, lambda ended: None, "", telemetry, partial(call.send, ENDING))
    ended = _handle(key_of_request(request, kind), environment, call.signal)
    telemetry.flush()
    return ended_message(ended)


def _take_call() -> RunningCall:
    """Return the call of the worker, and refuse messages that the handler sends: only the worker would get them."""
    call = running_call.get()
    running_call.set(replace(call, send=_refuse))
    return call


def _refuse(message: Any) -> None:
    raise RuntimeError(
        "A handler cannot call send(), which is for functions that your own code calls in a pool. Use job.log(), "
        "job.set_progress() or run.add_log()."
    )


# Jobs


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
        loop = this_loop(job.worker)
        return loop.run(JobAttempt(job, environment, call.signal, loop.transactions).arun)
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
    """Sends log entries of handlers to the worker immediately, so that they are not lost if this process dies."""

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


# Records


def _handle(key: RecordKey, environment: RecordEnvironment, signal: AbortSignal) -> EndedRecord:
    kind = environment.kind
    loop = this_loop("child") if kind.is_async else None
    try:
        record = _load(kind, key, environment.store)
        attempt = RecordAttempt(record, key, environment, signal, loop.transactions if loop else None)
    except Exception as error:  # Reading a deferred field may fail, too.
        repair_connections()
        return not_loaded(kind, key, error)
    return attempt.handle() if loop is None else loop.run(attempt.ahandle)


def _load(kind: RecordType, key: RecordKey, store: Store) -> Any:
    connections = ThreadConnections()
    try:
        with store.db.waits_at_most(LOCK_SECONDS), store.db.limited():
            record = kind.queryset.using(store.using).filter(pk=key[0]).first()
    finally:
        connections.clean()
    if record is None:
        raise RecordHidden(kind.name)
    return record


ResultT = TypeVar("ResultT")


def this_loop(worker: str) -> "ChildLoop":
    """Return the event loop of this thread, created at its first use."""
    loop = _this_thread.loop = _this_thread.loop or ChildLoop(worker)
    return loop


class ChildLoop:
    """An event loop, with one thread for transactions and one for queries of Django's async ORM."""

    def __init__(self, worker: str) -> None:
        self.transactions = TransactionThreadPool(_threads("transactions", worker))
        self._queries = QueryThreadPool(_threads("queries", worker))
        self._loop = asyncio.new_event_loop()
        follow_tasks(self._loop)
        self._loop.set_default_executor(SideThreads())

    def run(self, attempt: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run an attempt as a task, and return what it returns."""
        task = self._loop.create_task(self._run(attempt), context=contextvars.Context())
        while not task.done():
            try:
                self._loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:  # Raised by another task, and passed on by asyncio.
                log_error(logger, error, "A task on the event loop raised an exception. The loop continues: %s")
        return task.result()

    async def _run(self, attempt: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        self._queries.use()
        return await attempt()


def _threads(name: str, worker: str) -> Threads:
    return Threads(f"async-{name}", 1, worker=worker, give_up=_give_up)


def _give_up() -> None:
    """End this process, because one of its threads cannot continue."""
    os._exit(1)


class _LoopOfThread(threading.local):
    """The event loop of a thread: after a fallback, threads of the worker process replace child processes."""

    loop: ChildLoop | None = None


_this_thread = _LoopOfThread()
