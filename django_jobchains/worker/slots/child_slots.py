"""Slots whose attempts run in child processes. A thread of the worker's slots waits for each of them."""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import RecordKey
from django_jobchains.telemetry.tracing import get_tracing
from django_jobchains.worker.isolated.child_run import ChildRun, RunEnd
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.isolated.isolated_record import IsolatedRecordAttempt
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.slots.lanes import AnyAttempt, ChildTask
from django_jobchains.worker.slots.threads import (
    AHEAD_SECONDS,
    MAX_AHEAD,
    NEWEST_WEIGHT,
    PATIENCE_SECONDS,
    Slots,
)

#: How long the handlers of one run may take together, so that a wrong estimate does not delay any of them for long.
RUN_SECONDS = 0.02
#: A handler that takes less time counts as one that takes this long.
SHORTEST_SECONDS = 0.0005


#: Claimed attempts that wait for a child process, with the monotonic time when the wait began.
WaitingAttempts = deque[tuple[float, IsolatedAttempt | IsolatedRecordAttempt]]


class ChildSlots:
    """Runs up to ``pool.max_workers`` attempts at once in the worker's ``slots``, with the interface of ``Slots``.

    Other attempts use the same slots, so the slots count and watch all attempts. An attempt that waits for a child
    process waits here, and does not occupy a slot.
    """

    count = running = stuck = 0
    is_out_of_slots = False

    def __init__(self, pool: IsolationPool, slots: Slots, waiting: WaitingAttempts) -> None:
        self.pool = pool
        self._slots = slots
        self._lock = threading.Lock()
        #: Claimed attempts that wait for a child process.
        self.waiting = waiting
        #: The most runs at once since this was last taken.
        self._peak = 0
        # Until attempts prove to be short, no job is claimed ahead.
        self._average_seconds = self._average_handler_seconds = AHEAD_SECONDS

    def start(self) -> None:
        """Do nothing: child processes start when they are needed."""

    @property
    def is_idle(self) -> bool:
        return not self.waiting and self._slots.is_idle

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting)

    def attempts(self) -> list[AnyAttempt]:
        """Return the attempts of runs. Attempts at records belong to the worker's slots."""
        runs = [task for task in self._tasks() if isinstance(task, ChildRun)]
        return [attempt for run in runs if (attempt := run.current) is not None]

    def room(self) -> int:
        """Return how many jobs to claim now: for the free workers, and some ahead while attempts take milliseconds."""
        with self._lock:
            assigned, ahead = self._assigned(), self._ahead()
            workers = min(self.pool.max_workers, assigned + self._slots.free())
            if not workers or self.pool.closed_seconds or len(self.waiting) > ahead // 2:
                return 0
            return max(workers + ahead - assigned - len(self.waiting), 0)

    def free(self) -> int:
        """Return how many attempts could start at once."""
        if self.pool.closed_seconds:
            return 0
        with self._lock:
            workers = self.pool.max_workers - self._assigned() - len(self.waiting)
        return max(min(workers, self._slots.free()), 0)

    def record_attempt(self, kind: RecordType, record: Any, key: RecordKey, **options: Any) -> RecordAttempt:
        return IsolatedRecordAttempt(kind, record, key, pool=self.pool, on_ended=self._record_ended, **options)

    def put(self, attempts: Sequence[IsolatedAttempt | IsolatedRecordAttempt]) -> None:
        now = time.monotonic()
        with self._lock:
            self.waiting.extend((now, attempt) for attempt in attempts)
            self._start_waiting()

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> list[IsolatedAttempt | IsolatedRecordAttempt]:
        """Remove and return the attempts that wait for a child process, if the first has waited this long."""
        with self._lock:
            if not self.waiting or time.monotonic() - self.waiting[0][0] < waited_seconds:
                return []
            attempts = [attempt for _, attempt in self.waiting]
            self.waiting.clear()
            self._average_seconds = max(self._average_seconds, AHEAD_SECONDS)
            return attempts

    def take_peak(self) -> int:
        """Return the most attempts that had a child process at once, since the last call."""
        with self._lock:
            peak, self._peak = self._peak, self._assigned()
        return peak

    def close(self) -> None:
        """Start no more attempts. Waiting attempts were taken back before."""

    def join(self, deadline: float) -> list[str]:
        """Return no names: the worker's slots wait for the attempts."""
        return []

    def write_off(self, attempt: AnyAttempt) -> bool:
        """Return False: child processes are killed instead."""
        return False

    def stack_of(self, attempt: AnyAttempt) -> str:
        return ""

    def _record_ended(self, seconds: float) -> None:
        self._ended(RunEnd((), 1, seconds, seconds))

    def _ended(self, end: RunEnd) -> None:
        """Put back the attempts that are left of a run, and start the next run in its slot."""
        now = time.monotonic()
        with self._lock:
            self._count(end)
            self.waiting.extendleft((now, attempt) for attempt in reversed(end.left))
            if self.waiting and self._assigned() < self.pool.max_workers:
                self._slots.follow(self._next_run())
            if end.left:
                self._start_waiting()
            has_room = len(self.waiting) <= self._ahead() // 2
        if has_room:
            self._slots.wake.slot_is_free()

    def _count(self, end: RunEnd) -> None:
        if end.ended:
            weight = 1 - (1 - NEWEST_WEIGHT) ** end.ended
            self._average_seconds += (end.seconds / end.ended - self._average_seconds) * weight
            self._average_handler_seconds += (end.handler_seconds / end.ended - self._average_handler_seconds) * weight

    def _start_waiting(self) -> None:
        """Pass attempts to the slots, in as many runs as there are workers."""
        workers = self.pool.max_workers - self._assigned() if self.waiting else 0
        if runs := [self._next_run() for _ in range(workers) if self.waiting]:
            self._slots.put(runs)
            self._peak = max(self._peak, self._assigned())

    def _next_run(self) -> ChildTask:
        """Remove attempts that wait, and return one of them, or a worker's share of them if they are short."""
        count = min(math.ceil(len(self.waiting) / self.pool.max_workers), self._longest_run())
        _, first = self.waiting.popleft()
        if isinstance(first, IsolatedRecordAttempt):
            return first
        attempts = [first]
        while self.waiting and len(attempts) < count:
            _, attempt = self.waiting[0]
            if isinstance(attempt, IsolatedRecordAttempt):
                break
            attempts.append(attempt)
            self.waiting.popleft()
        return ChildRun(attempts, self.pool, self._ended)

    def _longest_run(self) -> int:
        if self.pool.isolation.level == "transient" or get_tracing() is not None:
            return 1
        return int(RUN_SECONDS / max(self._average_handler_seconds, SHORTEST_SECONDS))

    def _assigned(self) -> int:
        """Return how many runs have a worker or are about to get one."""
        return len(self._tasks())

    def _tasks(self) -> list[ChildTask]:
        return [task for task in self._slots.child_tasks() if task.pool is self.pool and not task.has_ended]

    def _ahead(self) -> int:
        if self._average_seconds >= AHEAD_SECONDS:
            return 0
        return min(int(self.pool.max_workers * AHEAD_SECONDS / self._average_seconds), MAX_AHEAD)
