"""The event loop of a worker: one owned thread that runs hundreds of ``async def`` handlers at once."""

import asyncio
import contextvars
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from logging import getLogger

from django_jobchains.async_attempts import AsyncAttempt, follow_tasks
from django_jobchains.attempts import Attempt, Outcome
from django_jobchains.running import call_on
from django_jobchains.worker.call_threads import QueryThreads, SideThreads, Threads, TransactionThreads
from django_jobchains.worker.slots import PATIENCE_SECONDS
from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")

#: How often the loop shows that it advances.
BEAT_SECONDS = 0.5
#: A loop that has not advanced for so long is reported,
LAG_SECONDS = 2.0
#: and after so long the worker ends: all its handlers stand still, and nothing else can help them.
MOST_LAG_SECONDS = 60.0
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
    ) -> None:
        self.count = count
        self._on_outcome = on_outcome
        self._on_room = on_room
        self._on_broken = on_broken
        self._give_up = give_up
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, AsyncAttempt]] = deque()
        self._running: set[AsyncAttempt] = set()
        #: Given up by the worker, and still not ended.
        self._disowned: set[AsyncAttempt] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._advanced_at = time.monotonic()
        self._has_reported_lag = False
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
            return not self._running and not self._waiting

    @property
    def has_waiting(self) -> bool:
        """Never for want of a place: attempts wait for the loop for a moment."""
        return False

    def room(self) -> int:
        with self._changed:
            return max(self.count - len(self._running) - len(self._waiting), 0)

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
            return attempts

    # Attempts that do not end

    def disown(self, attempt: AsyncAttempt) -> bool:
        """Frees the place of an attempt that does not heed its signal: its outcome is dropped and its transaction rolled
        back. False when it has ended meanwhile."""
        with self._changed:
            if attempt not in self._running:
                return False
            self._running.discard(attempt)
            self._disowned.add(attempt)
        self._poke(attempt.drop)
        self._on_room()
        return True

    def running_attempts(self) -> list[AsyncAttempt]:
        with self._changed:
            return list(self._running)

    @property
    def stuck(self) -> int:
        """How many were disowned and still run."""
        return len(self._disowned)

    @property
    def is_stuck(self) -> bool:
        """Whether something that handlers started still runs, on the loop or on a thread."""
        is_calling = self._side_threads is not None and self._side_threads.running > 0
        return bool(self._running or self._disowned) or is_calling or self._thread.is_alive

    # A loop that stands still

    @property
    def lag_seconds(self) -> float:
        """For how long the loop has not advanced, beyond the time between two beats."""
        if self._loop is None or not self._thread.is_alive:
            return 0.0
        return max(time.monotonic() - self._advanced_at - BEAT_SECONDS, 0.0)

    def check_lag(self) -> None:
        """Says what blocks the loop, and ends the worker when that takes too long. From another thread, now and then."""
        lag = self.lag_seconds
        if lag < LAG_SECONDS:
            self._has_reported_lag = False
        elif lag >= MOST_LAG_SECONDS:
            logger.critical("The event loop has stood still for %.0f seconds: the worker ends. %s", lag, self._stack())
            self._give_up()
        elif not self._has_reported_lag:
            self._has_reported_lag = True
            text = (
                "The event loop has stood still for %.1f seconds, and with it every async handler. Await what takes long, "
                "or call it with asyncio.to_thread. %s"
            )
            logger.error(text, lag, self._stack())

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        lines = traceback.format_stack(frame)[-4:] if frame else []
        return "It is at:\n" + "".join(lines)

    # Stopping

    def close(self) -> None:
        """No attempt starts any more; without one the loop ends."""
        with self._changed:
            self._closed = True
        self._poke(self._stop_if_over)

    def join(self, deadline: float) -> list[str]:
        """Waits for running attempts; returns the names of those that still run at the deadline, and of threads."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, max(deadline - time.monotonic(), 0))
            running = [f"{attempt.job.type_name} {attempt.job.id}" for attempt in self._running]
        if running or not self._thread.join(deadline):
            return [f"{self._thread.name}: {', '.join(running) or 'tasks'}"]
        for threads in (self._transaction_threads, self._query_threads):
            threads.stop()
        return self._transaction_threads.join(deadline) + self._query_threads.join(deadline)

    # On the thread of the loop

    def _step(self) -> None:
        """A while of the loop's life. What was running goes on in the next."""
        loop = self._loop or self._new_loop()
        if self._closed and not self._running:
            self._end(loop)
            return
        self._advanced_at = time.monotonic()
        loop.call_soon(self._start_waiting)
        beat = loop.call_later(BEAT_SECONDS, loop.stop)
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:  # a task that a handler started: asyncio lets these through
            logger.error("A task on the event loop raised %r. The loop goes on.", error)
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
        with self._changed:
            if self._closed:
                return
            attempts = [attempt for _, attempt in self._waiting]
            self._waiting.clear()
            self._running.update(attempts)
        for attempt in attempts:
            task = loop.create_task(self._run(attempt), context=contextvars.Context())
            task.add_done_callback(lambda task, attempt=attempt: self._ended(attempt))  # type: ignore[misc]

    async def _run(self, attempt: AsyncAttempt) -> None:
        self._queries.use()
        outcome = await attempt.arun()
        with self._changed:
            is_wanted = attempt in self._running
        if is_wanted:
            self._on_outcome(outcome)
            self._leave(attempt)

    def _ended(self, attempt: AsyncAttempt) -> None:
        """Of an attempt that has no outcome the lease must end, so that its job is taken back."""
        with self._changed:
            is_broken = attempt in self._running
        if is_broken:
            self._on_broken(attempt)
        self._leave(attempt)

    def _leave(self, attempt: AsyncAttempt) -> None:
        with self._changed:
            was_running = attempt in self._running
            self._running.discard(attempt)
            self._disowned.discard(attempt)
            self._changed.notify_all()
        if was_running:
            self._on_room()
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._closed and not self._running and self._loop is not None:
            self._loop.stop()

    def _poke(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            call_on(self._loop, callback)

    def _lose(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop itself has failed. Its attempts cannot go on: their leases end, and another loop begins."""
        self.transactions.forget_waiting()
        with self._changed:
            lost, self._loop = [*self._running, *self._disowned], None
        for attempt in lost:
            attempt.drop(is_loop_dead=True)
            self._ended(attempt)
        loop.close()

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
        self._thread.stop()
