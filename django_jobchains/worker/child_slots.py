"""Slots whose attempts run in child processes. A thread of the worker's slots waits for each of them."""

import math
import time
from collections.abc import Sequence
from typing import Any

from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.isolation import Isolation
from django_jobchains.store.workers import PoolState
from django_jobchains.telemetry.tracing import get_tracing
from django_jobchains.worker.isolated.isolated_attempt import ChildRun, IsolatedAttempt, IsolatedRecordAttempt, RunEnd
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.slots import AHEAD_SECONDS, NEWEST_WEIGHT, AnyAttempt, ChildTask, SlotPool, Slots

#: How long the handlers of one run may take together, so that a wrong estimate does not delay any of them for long.
RUN_SECONDS = 0.02
#: A handler that takes less time counts as one that takes this long.
SHORTEST_SECONDS = 0.0005


class ChildSlots(SlotPool):
    """Runs up to ``pool.max_workers`` attempts at the same time in the worker's ``slots``.

    Other attempts use the same slots, so the slots count and watch all attempts. An attempt that waits for a child
    process waits here, and does not occupy a slot.
    """

    def __init__(self, isolation: Isolation, slots: Slots) -> None:
        super().__init__(slots.context)
        self.context.backlogs.append(self.backlog)
        self.pool = IsolationPool(isolation, slots.count, self.context.worker)
        self._slots = slots
        #: The most runs at the same time since this was last taken.
        self._peak = 0
        self._average_handler_seconds = AHEAD_SECONDS

    @property
    def is_idle(self) -> bool:
        return not self.backlog and self._slots.is_idle

    @property
    def closed_seconds(self) -> float:
        return self.pool.closed_seconds

    def states(self) -> tuple[PoolState, ...]:
        return (self.pool.state(),)

    def attempts(self) -> list[AnyAttempt]:
        """Return the attempts of runs. Attempts at records belong to the worker's slots."""
        runs = [task for task in self._tasks() if isinstance(task, ChildRun)]
        return [attempt for run in runs if (attempt := run.current) is not None]

    def room(self) -> int:
        """Return how many jobs to claim now: for the free workers, and some ahead while attempts take milliseconds."""
        with self._changed:
            assigned, ahead = self._assigned(), self.backlog.ahead(self.pool.max_workers)
            workers = min(self.pool.max_workers, assigned + self._slots.free())
            if not workers or self.pool.closed_seconds or len(self.backlog) > ahead // 2:
                return 0
            return max(workers + ahead - assigned - len(self.backlog), 0)

    def free(self) -> int:
        """Return how many attempts could start at the same time."""
        if self.pool.closed_seconds:
            return 0
        with self._changed:
            workers = self.pool.max_workers - self._assigned() - len(self.backlog)
        return max(min(workers, self._slots.free()), 0)

    def record_attempt(self, *args: Any, **options: Any) -> RecordAttempt:
        def on_ended(seconds: float) -> None:
            self._ended(RunEnd((), 1, seconds, seconds))

        return IsolatedRecordAttempt(*args, pool=self.pool, on_ended=on_ended, **options)

    def put(self, attempts: Sequence[IsolatedAttempt | IsolatedRecordAttempt]) -> None:
        with self._changed:
            self.backlog.put(attempts)
            self._start_waiting()

    def take_peak(self) -> int:
        """Return the most attempts that had a child process at the same time, since the last call."""
        with self._changed:
            peak, self._peak = self._peak, self._assigned()
        return peak

    def _ended(self, end: RunEnd) -> None:
        """Put back the attempts that are left of a run, and start the next run in its slot."""
        with self._changed:
            self._count(end)
            if end.left:
                self._put_back(end.left)
            if self.backlog and self._assigned() < self.pool.max_workers:
                self._slots.follow(self._next_run())
            has_room = len(self.backlog) <= self.backlog.ahead(self.pool.max_workers) // 2
        if has_room:
            self.context.wake.slot_is_free()

    def _put_back(self, attempts: Sequence[IsolatedAttempt]) -> None:
        """Let attempts that have not begun wait again, before all others, and start those for which there is room."""
        now = time.monotonic()
        with self._changed:
            self.backlog.extendleft((now, attempt) for attempt in reversed(attempts))
            self._start_waiting()
        self.context.wake.set(())  # The claim loop returns them to the queue if they wait for long.

    def _count(self, end: RunEnd) -> None:
        if end.ended:
            weight = 1 - (1 - NEWEST_WEIGHT) ** end.ended
            self.backlog.count_seconds(end.seconds / end.ended, weight)
            self._average_handler_seconds += (end.handler_seconds / end.ended - self._average_handler_seconds) * weight
        elif end.left:
            # The child was too busy to begin one in time. It waits for a single attempt, so that there is progress.
            self._average_handler_seconds = RUN_SECONDS

    def _start_waiting(self) -> None:
        """Pass attempts to the slots, in as many runs as there are workers."""
        workers = self.pool.max_workers - self._assigned() if self.backlog else 0
        if runs := [self._next_run() for _ in range(workers) if self.backlog]:
            self._slots.put(runs)
            self._peak = max(self._peak, self._assigned())

    def _next_run(self) -> ChildTask:
        """Remove attempts that wait, and return one of them, or a worker's share of them if they are short."""
        longest = int(RUN_SECONDS / max(self._average_handler_seconds, SHORTEST_SECONDS))
        if self.pool.isolation.level == "transient" or get_tracing() is not None:
            longest = 1
        count = min(math.ceil(len(self.backlog) / self.pool.max_workers), longest)
        _, first = self.backlog.popleft()
        if isinstance(first, IsolatedRecordAttempt):
            return first
        attempts = [first]
        while self.backlog and len(attempts) < count:
            _, attempt = self.backlog[0]
            if isinstance(attempt, IsolatedRecordAttempt):
                break
            attempts.append(attempt)
            self.backlog.popleft()
        return ChildRun(attempts, self.pool, self._put_back, self._ended)

    def _assigned(self) -> int:
        """Return how many runs have a worker or are about to get one."""
        return len(self._tasks())

    def _tasks(self) -> list[ChildTask]:
        return [task for task in self._slots.child_tasks() if task.pool is self.pool and not task.has_ended]
