"""An attempt at a record that runs in a child process, as its worker sees it."""

import math
import time
from collections.abc import Callable
from logging import getLogger
from typing import Any

from django.db import Error

from django_jobchains.attempts.record_attempt import NOT_BY_HANDLER, EndedRecord, RecordAttempt
from django_jobchains.children.pooled_child import AbortWatch
from django_jobchains.db.connections import repair_connections
from django_jobchains.pools import (
    Call,
    ChildCrashed,
    ChildStartFailed,
    PoolClosed,
    PooledChild,
    RemoteError,
)
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.telemetry.tracing import report_message, telemetry_request
from django_jobchains.text.errors import clean, describe, log_error
from django_jobchains.worker.isolated.child_attempt import ENDING, RECORD_TARGET
from django_jobchains.worker.isolated.isolated_attempt import error_of_killed, report_death
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.isolated.messages import ended_of_message, record_request

logger = getLogger("django_jobchains")


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
        self.expires_at, self.runs_since = math.inf, None  # The time limit starts when the child begins.
        self.start()
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
            return self.hand_back()
        try:
            return self._run_in(worker)
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
        if self.signal.reason in NOT_BY_HANDLER:
            return self.hand_back()
        [ended] = self.ends_after(killed)
        return ended

    def _crashed(self, error: ChildCrashed) -> EndedRecord:
        """Return the end of an attempt whose child process crashed: an error, with the last output of the child."""
        text = describe(error)
        message = clean("\n".join(filter(None, [text, error.stderr])))
        end = RecordEnd(*self.key, "errored", None, message, self.kind.max_attempts)
        return self._ended(end, error=text, exception=error)

    def _was_committed(self) -> bool:
        """Return whether ``run.complete()`` was committed before the child process died."""
        store = self.store
        try:
            return store.records.state_of(self.kind.table(store.using), self.key[0]) == ("completed", self.key[1])
        except Error:  # The lease number then prevents its failure from being written.
            repair_connections()
            return False
