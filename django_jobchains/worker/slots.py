"""Slots: threads that each run one attempt at a time, fed from one queue of claimed jobs."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from django_jobchains.attempts import Attempt, Outcome
from django_jobchains.worker.threads import OwnedThread

#: Jobs are claimed ahead of free slots only while attempts are so short, and only for so long ahead.
SHORT_ATTEMPT_SECONDS = 0.01
AHEAD_SECONDS = 0.02
MOST_AHEAD = 100
#: A claimed job that waited so long for a slot is handed back: others may be idle.
PATIENCE_SECONDS = 0.5
#: Weight of the newest attempt in the average.
NEWEST_SHARE = 0.1


class Slots:
    def __init__(
        self,
        count: int,
        *,
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
        self._queue: deque[tuple[float, Attempt]] = deque()
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False
        # Until attempts have shown to be short, none is claimed ahead.
        self._average_seconds = SHORT_ATTEMPT_SECONDS
        self._threads = [
            OwnedThread(f"slot-{number}", self._step, worker=worker, give_up=give_up) for number in range(1, count + 1)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> int:
        return self._running

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._running and not self._queue

    @property
    def has_waiting(self) -> bool:
        """Whether claimed jobs wait for a slot: then results may wait a little to be written together."""
        return bool(self._queue)

    def room(self) -> int:
        """How many jobs to claim now: the free slots, and some ahead while attempts take milliseconds."""
        with self._changed:
            ahead = self._ahead()
            if ahead and len(self._queue) > ahead // 2:
                return 0
            return max(self.count + ahead - self._running - len(self._queue), 0)

    def put(self, attempts: Sequence[Attempt]) -> None:
        now = time.monotonic()
        with self._changed:
            self._queue.extend((now, attempt) for attempt in attempts)
            self._changed.notify(len(attempts))

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> list[Attempt]:
        """Removes the attempts that wait for a slot, if the first of them has waited so long."""
        with self._changed:
            if not self._queue or time.monotonic() - self._queue[0][0] < waited_seconds:
                return []
            attempts = [attempt for _, attempt in self._queue]
            self._queue.clear()
            self._average_seconds = max(self._average_seconds, SHORT_ATTEMPT_SECONDS)
            return attempts

    def close(self) -> None:
        """No attempt starts any more; idle slots end."""
        with self._changed:
            self._closed = True
            for thread in self._threads:
                thread.stop()
            self._changed.notify_all()

    def join(self, deadline: float) -> list[str]:
        """Waits for running attempts; returns the names of the slots that still run at the deadline."""
        return [thread.name for thread in self._threads if not thread.join(deadline)]

    def _ahead(self) -> int:
        if self._average_seconds >= SHORT_ATTEMPT_SECONDS:
            return 0
        return min(int(self.count * AHEAD_SECONDS / self._average_seconds), MOST_AHEAD)

    def _step(self) -> None:
        attempt = self._next()
        if attempt is None:
            return
        try:
            outcome = attempt.run()
            self._on_outcome(outcome)
            self._count(outcome.seconds)
        except BaseException:  # not the handler's: its lease must end, so that the job is taken back
            self._on_broken(attempt)
            raise
        finally:
            self._done()

    def _next(self) -> Attempt | None:
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._running += 1
            return self._queue.popleft()[1]

    def _count(self, seconds: float) -> None:
        self._average_seconds += (seconds - self._average_seconds) * NEWEST_SHARE

    def _done(self) -> None:
        with self._changed:
            self._running -= 1
            has_room = len(self._queue) <= self._ahead() // 2
        if has_room:
            self._on_room()
