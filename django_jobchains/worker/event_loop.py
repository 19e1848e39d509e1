"""The event loop of a worker: one owned thread that runs hundreds of ``async def`` handlers at once."""

import asyncio
import contextvars
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from logging import getLogger
from types import FrameType
from typing import Any

from django_jobchains.async_attempts import AsyncAttempt, follow_tasks
from django_jobchains.attempts import Attempt, Outcome
from django_jobchains.exceptions import JobAborted
from django_jobchains.processors import Processor
from django_jobchains.running import call_on
from django_jobchains.texts import log_error
from django_jobchains.worker.call_threads import QueryThreads, SideThreads, Threads, TransactionThreads
from django_jobchains.worker.lanes import Claimed
from django_jobchains.worker.slots import PATIENCE_SECONDS
from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")

#: How often the loop shows that it advances.
BEAT_SECONDS = 0.5
#: A loop that has not advanced for so long is reported,
LAG_SECONDS = 2.0
#: and after so long the worker ends: all its handlers stand still, and nothing else can help them.
MOST_LAG_SECONDS = 60.0
BLOCKED = (
    "The event loop has stood still for %.1f seconds, and with it every async handler. Await what takes long, or call "
    "it with asyncio.to_thread. It is at:\n%s"
)
#: For tasks that handlers left, when the loop ends.
LAST_TASKS_SECONDS = 0.5


class AsyncSlots:
    """Runs up to ``count`` attempts of async types at once; for the claim loop it is like ``Slots``."""

    def __init__(
        self,
        count: int,
        *,
        threads: int,
        worker: str,
        on_outcome: Callable[[Outcome], None],
        on_room: Callable[[], None],
        on_broken: Callable[[Attempt], object],
        give_up: Callable[[], None],
        most_stuck: int,
    ) -> None:
        self.count = count
        self._most_stuck = most_stuck
        self._on_outcome = on_outcome
        self._on_room = on_room
        self._on_broken = on_broken
        self._give_up = give_up
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, AsyncAttempt]] = deque()
        self._running: set[AsyncAttempt] = set()
        #: Those of them that were asked to stop and do not.
        self._stuck: set[AsyncAttempt] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._advanced_at = time.monotonic()
        self._has_reported_lag = False
        #: Attempts that waited for the loop were handed back; until it advances none is claimed.
        self._is_blocked = False
        self._transaction_threads = Threads("async-transactions", threads, worker=worker, give_up=give_up)
        self._query_threads = Threads("async-queries", threads, worker=worker, give_up=give_up)
        self.transactions = TransactionThreads(self._transaction_threads)
        self._queries = QueryThreads(self._query_threads)
        self._side_threads: SideThreads | None = None
        self._thread = OwnedThread("event-loop", self._step, worker=worker, give_up=give_up)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._held() and not self._waiting

    @property
    def has_waiting(self) -> bool:
        """Whether claimed jobs wait for the loop: for a moment, unless something blocks it."""
        return bool(self._waiting)

    def room(self) -> int:
        """How many jobs to claim now: none for a loop that stands still."""
        if self._is_blocked or self.lag_seconds > PATIENCE_SECONDS:
            return 0
        with self._changed:
            return max(self.count - self._held() - len(self._waiting), 0)

    def free(self) -> int:
        return self.room()

    def attempt(self, claimed: Sequence[Claimed], processor: Processor, **options: Any) -> AsyncAttempt:
        ((job, signal),) = claimed
        return AsyncAttempt(job, processor, threads=self.transactions, signal=signal, **options)

    def put(self, attempts: Sequence[AsyncAttempt]) -> None:
        now = time.monotonic()
        with self._changed:
            self._waiting.extend((now, attempt) for attempt in attempts)
        self._poke(self._start_waiting)

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> list[AsyncAttempt]:
        """Removes the attempts that the loop has not begun, if the first of them has waited so long."""
        with self._changed:
            if not self._waiting or time.monotonic() - self._waiting[0][0] < waited_seconds:
                return []
            attempts = [attempt for _, attempt in self._waiting]
            self._waiting.clear()
            self._is_blocked = True
            return attempts

    # Attempts that do not end

    def attempts(self) -> list[AsyncAttempt]:
        """Those that run now."""
        with self._changed:
            return list(self._running)

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    @property
    def is_hopeless(self) -> bool:
        """Whether every place is held by an attempt that does not stop, and none may be replaced."""
        return len(self._stuck) - self._most_stuck >= self.count

    def write_off(self, attempt: AsyncAttempt) -> bool:
        """The attempt does not stop: what it has locked is freed, and its place while that is allowed. False when that
        is known."""
        self._poke(attempt.async_phases.take_away)
        with self._changed:
            if attempt not in self._running or attempt in self._stuck or self._closed:
                return False
            self._stuck.add(attempt)
        self._on_room()
        return True

    def stack_of(self, attempt: AsyncAttempt) -> str:
        """Where the attempt is, as a traceback; "" when it has ended. One that blocks the loop is where that is."""
        task = attempt.task
        if task is None:
            return ""
        if self.lag_seconds >= LAG_SECONDS:
            return self._stack_of_loop()
        return "".join(traceback.StackSummary.extract(_suspended_at(task.get_coro())).format())

    def _held(self) -> int:
        """Places that are taken: by all that run, but for those given up while that frees a place."""
        return len(self._running) - min(len(self._stuck), self._most_stuck)

    @property
    def is_stuck(self) -> bool:
        """Whether, after ``close``, something that handlers started still runs, on the loop or on a thread."""
        is_calling = self._side_threads is not None and self._side_threads.running > 0
        return is_calling or self._thread.is_alive

    # A loop that stands still

    @property
    def lag_seconds(self) -> float:
        """For how long the loop has not advanced, beyond the time between two beats."""
        if self._loop is None or not self._thread.is_alive:
            return 0.0
        return max(time.monotonic() - self._advanced_at - BEAT_SECONDS, 0.0)

    def check_lag(self) -> None:
        """Says what blocks the loop, and ends the worker when it takes too long. For another thread, now and then."""
        lag = self.lag_seconds
        if lag < LAG_SECONDS:
            self._has_reported_lag = False
        elif lag >= MOST_LAG_SECONDS:
            text = "The event loop has stood still for %.0f seconds: the worker ends. It is at:\n%s"
            logger.critical(text, lag, self._stack_of_loop())
            self._give_up()
        elif not self._has_reported_lag:
            self._has_reported_lag = True
            logger.error(BLOCKED, lag, self._stack_of_loop())

    def _stack_of_loop(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-10:]) if frame else ""

    # Stopping

    def close(self) -> None:
        """No attempt starts any more; without one the loop ends."""
        with self._changed:
            self._closed = True
        self._poke(self._stop_if_over)

    def join(self, deadline: float) -> list[str]:
        """Waits for running attempts; returns the names of those that still run at the deadline, and of threads."""
        with self._changed:
            self._changed.wait_for(lambda: not self._awaited(), max(deadline - time.monotonic(), 0))
            running = [f"{attempt.job.type_name} {attempt.job.id}" for attempt in self._awaited()]
        if running:
            return [f"{self._thread.name} ({', '.join(running)})"]
        if self._running or not self._thread.is_started:  # those written off keep the loop, and nobody waits for them
            return []
        own = [] if self._thread.join(deadline) else [self._thread.name]
        return own + self._transaction_threads.join(deadline) + self._query_threads.join(deadline)

    def _awaited(self) -> list[AsyncAttempt]:
        return [attempt for attempt in self._running if not attempt.is_disowned]

    # On the thread of the loop

    def _step(self) -> None:
        """A while of the loop's life. What was running goes on in the next."""
        loop = self._loop or self._new_loop()
        if self._closed and not self._running:
            self._end(loop)
            return
        if self.lag_seconds > PATIENCE_SECONDS:
            self._on_room()
        self._advanced_at = time.monotonic()
        loop.call_soon(self._start_waiting)
        beat = loop.call_later(BEAT_SECONDS, loop.stop)
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:  # a task that a handler started: asyncio lets these through
            log_error(logger, error, "A task on the event loop raised an exception. The loop goes on: %s")
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
            self._on_room()
        with self._changed:
            if self._closed:
                return
            attempts = [attempt for _, attempt in self._waiting]
            self._waiting.clear()
            self._running.update(attempts)
        for attempt in attempts:
            task = loop.create_task(self._run(attempt), context=contextvars.Context())
            task.add_done_callback(partial(self._ended, attempt))

    async def _run(self, attempt: AsyncAttempt) -> None:
        self._queries.use()
        for outcome in await attempt.aoutcomes():
            self._on_outcome(outcome)
        self._leave(attempt)

    def _ended(self, attempt: AsyncAttempt, task: "asyncio.Task[None] | None" = None) -> None:
        """The lease of an attempt that ended without an outcome must end, so that its job is taken back."""
        if task is not None and not task.cancelled() and (error := task.exception()):
            log_error(logger, error, "The attempt of job %s ended without an outcome: %s", attempt.job.id)
        if attempt in self._running:
            self._on_broken(attempt)
            self._leave(attempt)

    def _leave(self, attempt: AsyncAttempt) -> None:
        with self._changed:
            self._running.discard(attempt)
            self._stuck.discard(attempt)
            self._changed.notify_all()
        self._on_room()
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._closed and not self._running and self._loop is not None:
            self._loop.stop()

    def _poke(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            call_on(self._loop, callback)

    def _lose(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop itself has failed. Its attempts cannot go on: they fail, and another loop begins."""
        self.transactions.forget_waiting()
        self._loop = None
        for attempt in self.attempts():
            attempt.signal.abort("error")
            attempt.lose_loop(partial(self._fail, attempt, self.stack_of(attempt)))
            self._leave(attempt)
        with suppress(Exception):
            loop.close()

    def _fail(self, attempt: AsyncAttempt, stack: str) -> None:
        outcomes = attempt.disown(JobAborted("error"), stack)
        for outcome in outcomes:
            self._on_outcome(outcome)
        if not outcomes:
            self._on_broken(attempt)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=LAST_TASKS_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if self._side_threads is not None:
            self._side_threads.shutdown(wait=False, cancel_futures=True)
        self._loop = None
        loop.close()
        for threads in (self._transaction_threads, self._query_threads):
            threads.stop()
        self._thread.stop()


def _suspended_at(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine that awaits, and of what it awaits, the innermost last."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
