"""Attempts that run one after another in a child process, while a thread of the worker's slots waits."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from django_jobchains.attempts.outcome import Outcome
from django_jobchains.children.pooled_child import AbortWatch
from django_jobchains.pools import (
    PENDING,
    Call,
    ChildCrashed,
    ChildStartFailed,
    PoolClosed,
    PooledChild,
    RemoteError,
)
from django_jobchains.store.rows import ClaimedJob
from django_jobchains.text.errors import log_error
from django_jobchains.worker.isolated.child_attempt import TARGET
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.isolated.isolation_pool import IsolationPool

logger = getLogger("django_jobchains")

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

    ``ended``: called when the run no longer needs its worker.
    """

    #: A child process, unlike a thread, can be killed, so its slot is never given up.
    is_detached = False

    def __init__(
        self,
        attempts: Sequence[IsolatedAttempt],
        pool: IsolationPool,
        ended: Callable[[RunEnd], object],
    ) -> None:
        self.pool = pool
        #: Whether the run no longer needs its worker.
        self.has_ended = False
        #: The attempts that have not ended, the running one first.
        self._attempts = deque(attempts)
        self._handler_seconds = 0.0
        self._ended = ended
        self._calls: Sequence[Call] = ()

    @property
    def jobs(self) -> tuple[ClaimedJob, ...]:
        return tuple(job for attempt in list(self._attempts) for job in attempt.jobs)

    @property
    def current(self) -> IsolatedAttempt | None:
        """The attempt that runs."""
        return next(iter(self._attempts), None)

    def run(self) -> Iterator[Outcome]:
        """Run the handlers while this thread waits, and yield each outcome at once."""
        started, count = time.perf_counter(), len(self._attempts)
        try:
            yield from self._run()
        except Exception as error:  # Not an error of a handler.
            log_error(logger, error, "Attempts could not be run in a child process: %s")
            for attempt in list(self._attempts):
                yield from self._end(attempt.not_started(error))
        left = list(self._attempts)
        self._attempts.clear()
        self.has_ended = True
        self._ended(RunEnd(left, count - len(left), time.perf_counter() - started, self._handler_seconds))

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
        attempts = list(self._attempts)[: self.pool.attempts_left(worker)]
        requests = [attempt.request(is_first=attempt is attempts[0]) for attempt in attempts]
        self._calls = worker.start_all(TARGET, requests, on_message=self._on_message)
        for attempt, call in zip(attempts, self._calls, strict=True):
            if call.is_withdrawn:
                break
            try:
                yield from self._end(self._outcomes(attempt, call, worker))
            except ChildCrashed as error:
                if self._had_begun(call, worker):
                    self.pool.count_death(was_killed=attempt.signal.reason is not None)
                    yield from self._end(attempt.outcomes_of_death(worker.pid, error))
                break
            if self.pool.is_too_large(worker):
                worker.withdraw()

    def _outcomes(self, attempt: IsolatedAttempt, call: Call, worker: PooledChild) -> list[Outcome]:
        """Wait for the outcomes of the current attempt. Raises ``ChildCrashed``."""
        if call is self._calls[0]:
            attempt.expect_begin()
        else:
            attempt.begin()
        try:
            attempt.forward_aborts(call)
            watch = AbortWatch(call, attempt.signal, self.pool.isolation.grace_seconds)
            with self.pool.reading(worker), watch:
                outcomes = attempt.outcomes(self._reply(call, worker))
            return attempt.end(outcomes)
        except PoolClosed as error:
            return attempt.hand_back(error)
        except RemoteError as error:  # Raised before the handler was called.
            return attempt.not_started(error)

    def _reply(self, call: Call, worker: PooledChild) -> Any:
        if call is not self._calls[-1]:
            if (reply := call.wait(PATIENCE_SECONDS)) is not PENDING:
                return reply
            worker.withdraw()
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
        self._handler_seconds += outcomes[0].seconds
        return outcomes
