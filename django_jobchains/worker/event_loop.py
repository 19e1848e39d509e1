"""The event loop of a worker: one thread that runs hundreds of ``async def`` handlers at the same time."""

import asyncio
import contextvars
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from logging import getLogger
from types import FrameType
from typing import Any

from django_jobchains.attempts.handler_task import follow_tasks
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.attempts.record_attempt import RecordAttempt, RecordEnvironment
from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal, call_on
from django_jobchains.store.record_tables import RecordKey
from django_jobchains.text.errors import log_error
from django_jobchains.worker.call_threads import QueryThreadPool, SideThreads, Threads, TransactionThreadPool
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import PATIENCE_SECONDS, AnyAttempt, Claimed, SlotPool, SlotTask, release
from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")


AnyAsyncAttempt = JobAttempt | RecordAttempt

#: How often the loop records that it advances.
BEAT_SECONDS = 0.5
#: A loop that has not advanced for this long is reported.
LAG_SECONDS = 2.0
#: After this long the worker ends, because none of its async handlers can continue.
MAX_LAG_SECONDS = 60.0
BLOCKED = (
    "The event loop has been blocked for %.1f seconds, and with it every async handler. Await slow calls, or run them "
    "with asyncio.to_thread. It is blocked at:\n%s"
)
#: How long the loop waits at its end for tasks that handlers started.
CANCEL_SECONDS = 0.5


class AsyncSlots(SlotPool):
    """Runs up to ``count`` attempts of async types at the same time.

    ``ASYNC_THREADS`` limits the threads for transactions, and the threads for queries. Attempts wait for the loop only
    for a moment, unless something blocks it.
    """

    def __init__(self, context: WorkerContext, outcome_writer: EndWriter[Outcome]) -> None:
        super().__init__(context)
        self.count = context.options.async_slots
        self.outcome_writer = outcome_writer
        self.max_stuck = context.settings.MAX_STUCK_SLOTS
        self._running: set[AnyAsyncAttempt] = set()
        #: Running attempts that were asked to stop and have not stopped.
        self._stuck: set[AnyAsyncAttempt] = set()
        self.peak = 0  # as for ``Slots``
        self._closed = self._has_reported_lag = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._advanced_at = time.monotonic()
        #: Whether waiting attempts were returned to the queue: until the loop advances, no job is claimed.
        self._is_blocked = False
        owner: dict[str, Any] = {"worker": context.worker, "give_up": context.give_up}
        self._transaction_threads = Threads("async-transactions", context.settings.ASYNC_THREADS, **owner)
        self._query_threads = Threads("async-queries", context.settings.ASYNC_THREADS, **owner)
        self.transactions = TransactionThreadPool(self._transaction_threads)
        self._queries = QueryThreadPool(self._query_threads)
        self._side_threads: SideThreads | None = None
        self._thread = OwnedThread("event-loop", self._step, **owner)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._held() and not self.backlog

    def room(self) -> int:
        """Return how many jobs to claim now: none for a blocked loop."""
        if self._is_blocked or self.lag_seconds > PATIENCE_SECONDS:
            return 0
        with self._changed:
            return max(self.count - self._held() - len(self.backlog), 0)

    def attempt(self, claimed: Sequence[Claimed], environment: Environment) -> JobAttempt:
        ((job, signal),) = claimed
        return JobAttempt(job, environment, signal, self.transactions)

    def record_attempt(
        self, record: Any, key: RecordKey, environment: RecordEnvironment, signal: AbortSignal, **options: Any
    ) -> RecordAttempt:
        return RecordAttempt(record, key, environment, signal, self.transactions, **options)

    def put(self, attempts: Sequence[AnyAsyncAttempt]) -> None:
        with self._changed:
            self.backlog.put(attempts)
        self._call_on_loop(self._start_waiting)

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> Sequence[AnyAttempt | SlotTask]:
        with self._changed:
            attempts = super().take_back(waited_seconds)
            self._is_blocked |= bool(attempts)
        return attempts

    # Stuck attempts

    def attempts(self) -> list[AnyAsyncAttempt]:
        with self._changed:
            return list(self._running)

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    @property
    def is_out_of_slots(self) -> bool:
        """Whether every slot is held by a stuck attempt, and no more slots may be replaced."""
        return len(self._stuck) - self.max_stuck >= self.count

    def write_off(self, attempt: AnyAsyncAttempt) -> bool:
        """Mark an attempt as stuck, release its locks, and free its slot if allowed. Returns False if it was marked."""
        self._call_on_loop(attempt.release_thread)
        with self._changed:
            if attempt not in self._running or attempt in self._stuck or self._closed:
                return False
            self._stuck.add(attempt)
        self.context.wake.set()
        return True

    def stack_of(self, attempt: AnyAsyncAttempt) -> str:
        """Return where the attempt is, as a traceback; "" if it has ended. If the loop is blocked, return where."""
        task = attempt.task.task
        if task is None:
            return ""
        if self.lag_seconds >= LAG_SECONDS:
            return self._stack_of_loop()
        return "".join(traceback.StackSummary.extract(_suspended_at(task.get_coro())).format())

    def _held(self) -> int:
        """Return the number of slots in use, except the slots of stuck attempts that may be replaced."""
        return len(self._running) - min(len(self._stuck), self.max_stuck)

    @property
    def is_stuck(self) -> bool:
        """Whether something that handlers started still runs after ``close``, on the loop or on a thread."""
        is_calling = self._side_threads is not None and self._side_threads.running > 0
        return is_calling or self._thread.is_alive

    # A blocked loop

    @property
    def lag_seconds(self) -> float:
        """How long the loop has not advanced, beyond ``BEAT_SECONDS``."""
        if self._loop is None or not self._thread.is_alive:
            return 0.0
        return max(time.monotonic() - self._advanced_at - BEAT_SECONDS, 0.0)

    def check_lag(self) -> None:
        """Report what blocks the loop, and end the worker after too long. Another thread calls it regularly."""
        lag = self.lag_seconds
        if lag < LAG_SECONDS:
            self._has_reported_lag = False
        elif lag >= MAX_LAG_SECONDS:
            text = "The event loop has been blocked for %.0f seconds, so the worker stops. It is blocked at:\n%s"
            logger.critical(text, lag, self._stack_of_loop())
            self.context.give_up()
        elif not self._has_reported_lag:
            self._has_reported_lag = True
            logger.error(BLOCKED, lag, self._stack_of_loop())

    def _stack_of_loop(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-10:]) if frame else ""

    # Stopping

    def close(self) -> None:
        """Start no more attempts. The loop ends with the last one."""
        with self._changed:
            self._closed = True
        self._call_on_loop(self._stop_if_over)

    def join(self, deadline: float) -> list[str]:
        """Wait for running attempts. Returns the names of the attempts and threads that still run at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: not self._awaited(), max(deadline - time.monotonic(), 0))
            running = [attempt.label for attempt in self._awaited()]
        if running:
            return running
        if self._running or self._thread.ident is None:  # Stuck attempts keep the loop running.
            return []
        own = [] if self._thread.join(deadline) else [self._thread.name]
        return own + self._transaction_threads.join(deadline) + self._query_threads.join(deadline)

    def _awaited(self) -> list[AnyAsyncAttempt]:
        return [attempt for attempt in self._running if not attempt.is_detached]

    # On the thread of the loop

    def _step(self) -> None:
        """Run the loop until the next beat. Attempts continue in the next step."""
        loop = self._loop or self._new_loop()
        if self._closed and not self._running:
            self._end(loop)
            return
        if self.lag_seconds > PATIENCE_SECONDS:
            self.context.wake.set()
        self._advanced_at = time.monotonic()
        loop.call_soon(self._start_waiting)
        beat = loop.call_later(BEAT_SECONDS, loop.stop)
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:  # Raised by a task of a handler, and passed on by asyncio.
            log_error(logger, error, "A task on the event loop raised an exception. The loop continues: %s")
        except BaseException:
            self._lose(loop)
            raise
        finally:
            beat.cancel()

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        follow_tasks(loop)
        self._side_threads = self._side_threads or SideThreads()
        loop.set_default_executor(self._side_threads)
        return loop

    def _start_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_blocked:
            self._is_blocked = False
            self.context.wake.set()
        with self._changed:
            if self._closed:
                return
            attempts = [attempt for _, attempt in self.backlog]
            self.backlog.clear()
            self._running.update(attempts)
            self.peak = max(self.peak, self.running)
        for attempt in attempts:
            task = loop.create_task(self._run(attempt), context=contextvars.Context())
            task.add_done_callback(partial(self._ended, attempt))

    async def _run(self, attempt: AnyAsyncAttempt) -> None:
        self._queries.use()
        for outcome in await attempt.arun():
            self.outcome_writer.put(outcome)
        self._remove(attempt)

    def _ended(self, attempt: AnyAsyncAttempt, task: "asyncio.Task[None]") -> None:
        """Release what an attempt holds that ended without an outcome, so that its job or record is taken back."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error and attempt in self._running:
            log_error(logger, error, "The attempt of %s ended without an outcome: %s", attempt.label)
            release(attempt, self.context.leases, error)
            self._remove(attempt)

    def _remove(self, attempt: AnyAsyncAttempt) -> None:
        with self._changed:
            self._running.discard(attempt)
            self._stuck.discard(attempt)
            self._changed.notify_all()
        self.context.wake.slot_is_free()
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._closed and not self._running and self._loop is not None:
            self._loop.stop()

    def _call_on_loop(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            call_on(self._loop, callback)

    def _lose(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail all attempts after an error of the loop itself. The next step starts another loop."""
        self.transactions.forget_waiting()
        self._loop = None
        for attempt in self.attempts():
            attempt.signal.abort("error")
            attempt.handle_dead_loop(partial(self._fail, attempt, self.stack_of(attempt)))
            self._remove(attempt)
        with suppress(Exception):
            loop.close()

    def _fail(self, attempt: AnyAsyncAttempt, stack: str) -> None:
        outcomes = attempt.detach(JobAborted("error"), stack)
        for outcome in outcomes:
            self.outcome_writer.put(outcome)
        if not outcomes:
            self.context.leases.release(job.key for job in attempt.jobs)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if self._side_threads is not None:
            self._side_threads.shutdown(wait=False, cancel_futures=True)
        self._loop = None
        loop.close()
        for threads in (self._transaction_threads, self._query_threads):
            threads.stop()
        self._thread.stop()


def _suspended_at(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a waiting coroutine and of what it awaits, innermost last."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
