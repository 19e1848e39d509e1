"""Slots: threads that each run one attempt at a time, fed from one queue of claimed jobs."""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from django_jobchains.attempts import Outcome
from django_jobchains.hygiene import close_all
from django_jobchains.worker.lanes import AnyAttempt
from django_jobchains.worker.threads import OwnedThread

#: Jobs are claimed ahead of free slots only while attempts are shorter than this, and only so much ahead: claims of a
#: job or two cost the database many times as much for each as claims of twenty.
AHEAD_SECONDS = 0.05
MOST_AHEAD = 100
#: A claimed job that waited so long for a slot is handed back: others may be idle.
PATIENCE_SECONDS = 0.5
#: A slot that had nothing to do for so long closes its connections: somebody else may need them more.
IDLE_SECONDS = 30.0
#: Weight of the newest attempt in the average.
NEWEST_SHARE = 0.1


class Slot:
    """A thread that runs one attempt at a time."""

    def __init__(self, number: int, slots: "Slots", worker: str, give_up: Callable[[], None]) -> None:
        self.attempt: AnyAttempt | None = None
        #: Its attempt was asked to stop and does not; ``is_replaced``: another slot has taken its place.
        self.is_stuck = self.is_replaced = False
        self._slots = slots
        self.thread = OwnedThread(f"slot-{number}", self._step, worker=worker, give_up=give_up)

    def _step(self) -> None:
        if self._slots.next(self):
            try:
                self._run(self.attempt)  # type: ignore[arg-type]
            finally:
                self._slots.done(self)
        else:
            close_all()

    def _run(self, attempt: AnyAttempt) -> None:
        started = time.perf_counter()
        try:
            for outcome in attempt.outcomes():
                self._slots.on_outcome(outcome)
        except BaseException:  # not the handler's: its lease must end, so that the job is taken back
            self._slots.on_broken(attempt)
            raise
        self._slots.count_seconds(time.perf_counter() - started)


class Slots:
    def __init__(
        self,
        count: int,
        *,
        worker: str,
        on_outcome: Callable[[Outcome], None],
        on_room: Callable[[], None],
        on_broken: Callable[[AnyAttempt], object],
        give_up: Callable[[], None],
        most_stuck: int,
    ) -> None:
        self.count = count
        self.on_outcome = on_outcome
        self.on_broken = on_broken
        self._on_room = on_room
        self._worker = worker
        self._give_up = give_up
        self._left_to_replace = most_stuck
        self._queue: deque[tuple[float, AnyAttempt]] = deque()
        self._changed = threading.Condition()
        #: Slots that wait, and whether one of them was called and has not come yet.
        self._waiting = 0
        self._is_called = False
        self._running = 0
        self._closed = False
        # Until attempts have shown to be short, none is claimed ahead.
        self._average_seconds = AHEAD_SECONDS
        self._made = 0
        self._slots: list[Slot] = [self._new_slot() for _ in range(count)]

    def _new_slot(self) -> Slot:
        self._made += 1
        return Slot(self._made, self, self._worker, self._give_up)

    def start(self) -> None:
        for slot in self._slots:
            slot.thread.start()

    @property
    def running(self) -> int:
        """Attempts that run, those that do not stop among them."""
        return self._running + sum(slot.is_replaced for slot in list(self._slots))

    @property
    def stuck(self) -> int:
        return sum(slot.is_stuck for slot in list(self._slots))

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._running and not self._queue

    @property
    def has_waiting(self) -> bool:
        """Whether claimed jobs wait for a slot: then results may wait a little to be written together."""
        return bool(self._queue)

    @property
    def is_hopeless(self) -> bool:
        """Whether every slot is held by an attempt that does not stop, and none may be replaced."""
        return sum(slot.is_stuck and not slot.is_replaced for slot in list(self._slots)) >= self.count

    def attempts(self) -> list[AnyAttempt]:
        """Those that run now."""
        return [attempt for slot in list(self._slots) if (attempt := slot.attempt) is not None]

    def room(self) -> int:
        """How many jobs to claim now: the free slots, and some ahead while attempts take milliseconds."""
        with self._changed:
            ahead = self._ahead()
            if ahead and len(self._queue) > ahead // 2:
                return 0
            return max(self.count + ahead - self._running - len(self._queue), 0)

    def free(self) -> int:
        """Slots without an attempt, neither running nor waiting."""
        with self._changed:
            return max(self.count - self._running - len(self._queue), 0)

    def put(self, attempts: Sequence[AnyAttempt]) -> None:
        now = time.monotonic()
        with self._changed:
            self._queue.extend((now, attempt) for attempt in attempts)
            self._call_one()

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> list[AnyAttempt]:
        """Removes the attempts that wait for a slot, if the first of them has waited so long."""
        with self._changed:
            if not self._queue or time.monotonic() - self._queue[0][0] < waited_seconds:
                return []
            attempts = [attempt for _, attempt in self._queue]
            self._queue.clear()
            self._average_seconds = max(self._average_seconds, AHEAD_SECONDS)
            return attempts

    def close(self) -> None:
        """No attempt starts any more; idle slots end."""
        with self._changed:
            self._closed = True
            for slot in self._slots:
                slot.thread.stop()
            self._changed.notify_all()

    def join(self, deadline: float) -> list[str]:
        """Waits for running attempts; returns the names of the slots that still run at the deadline."""
        return [slot.thread.name for slot in self._awaited() if not slot.thread.join(deadline)]

    def _awaited(self) -> list[Slot]:
        """An attempt that can write nothing any more is not waited for."""
        return [slot for slot in list(self._slots) if not (slot.attempt and slot.attempt.is_disowned)]

    # Stuck attempts

    def write_off(self, attempt: AnyAttempt) -> bool:
        """The attempt does not stop: its slot is replaced while that is allowed. False when that is known."""
        with self._changed:
            slot = self._slot_of(attempt)
            if slot is None or slot.is_stuck or self._closed:
                return False
            slot.is_stuck = True
            if self._left_to_replace:
                self._replace(slot)
            return True

    def stack_of(self, attempt: AnyAttempt) -> str:
        """Where the attempt is, as a traceback; "" when it has ended."""
        slot = self._slot_of(attempt)
        frame = sys._current_frames().get(slot.thread.ident or 0) if slot else None
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _slot_of(self, attempt: AnyAttempt) -> Slot | None:
        return next((slot for slot in list(self._slots) if slot.attempt is attempt), None)

    def _replace(self, slot: Slot) -> None:
        self._left_to_replace -= 1
        self._running -= 1
        slot.is_replaced = True
        slot.thread.stop()
        self._slots.append(self._new_slot())
        self._slots[-1].thread.start()
        self._on_room()

    def _replace_another(self) -> None:
        waiting = next((slot for slot in self._slots if slot.is_stuck and not slot.is_replaced), None)
        if waiting is not None and not self._closed:
            self._replace(waiting)

    # What slots do

    def next(self, slot: Slot) -> bool:
        """Waits for an attempt to run; False when there was none for long, or the slot is to end."""
        with self._changed:
            if not self._queue and not self._closed:
                self._wait(IDLE_SECONDS)
            if self._closed or not self._queue:
                return False
            self._running += 1
            slot.attempt = self._queue.popleft()[1]
            self._call_one()
            return True

    def _call_one(self) -> None:
        """If there is work, wakes one slot, which wakes the next. Called all at once, they would keep each other from
        the interpreter, while one alone could do work as short as that."""
        if self._queue and self._waiting and not self._is_called:
            self._is_called = True
            self._changed.notify()

    def _wait(self, seconds: float) -> None:
        self._waiting += 1
        self._changed.wait_for(self._has_come, seconds)
        self._waiting -= 1

    def _has_come(self) -> bool:
        self._is_called = False
        return bool(self._queue) or self._closed

    def done(self, slot: Slot) -> None:
        with self._changed:
            slot.attempt = None
            slot.is_stuck = False
            if slot.is_replaced:  # it came back after all, and so may another be replaced
                self._slots.remove(slot)
                self._left_to_replace += 1
                self._replace_another()
                return
            self._running -= 1
            has_room = len(self._queue) <= self._ahead() // 2
        if has_room:
            self._on_room()

    def count_seconds(self, seconds: float) -> None:
        self._average_seconds += (seconds - self._average_seconds) * NEWEST_SHARE

    def _ahead(self) -> int:
        if self._average_seconds >= AHEAD_SECONDS:
            return 0
        return min(int(self.count * AHEAD_SECONDS / self._average_seconds), MOST_AHEAD)
