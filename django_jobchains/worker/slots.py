"""Slot pools run attempts, on threads or elsewhere. Lanes are the job types that are claimed together for a pool."""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import Environment, JobAttempt
from django_jobchains.attempts.outcome import Outcome
from django_jobchains.attempts.record_attempt import RecordAttempt
from django_jobchains.db.connections import close_thread_connections
from django_jobchains.declare.limits import limited_types
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.store.limits import LimitedTypes, Rotation
from django_jobchains.store.queues import Override
from django_jobchains.store.rows import ClaimedJob
from django_jobchains.store.workers import PoolState
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.held_leases import HeldLeases
from django_jobchains.worker.isolated.isolated_attempt import ChildRun, IsolatedAttempt, IsolatedRecordAttempt
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.threads import OwnedThread

#: While attempts are shorter than this, jobs are claimed ahead of free slots, for this time at most. Claims of one or
#: two jobs cost the database many times as much per job as claims of twenty.
AHEAD_SECONDS = 0.05
MAX_AHEAD = 200
#: A claimed job that has waited this long for a slot is returned to the queue, because other workers may be idle.
PATIENCE_SECONDS = 0.5
#: Weight of the newest attempt in the average.
NEWEST_WEIGHT = 0.1

AnyAttempt = JobAttempt | BatchAttempt | IsolatedAttempt | RecordAttempt
#: What a slot runs in a child process.
ChildTask = ChildRun | IsolatedRecordAttempt
#: What a slot runs: an attempt, or the attempts of a child process.
SlotTask = JobAttempt | BatchAttempt | ChildRun | RecordAttempt
Claimed = tuple[ClaimedJob, AbortSignal]
TaskT = TypeVar("TaskT")


def single(claimed: Sequence[Claimed], environment: Environment) -> JobAttempt:
    ((job, signal),) = claimed
    return JobAttempt(job, environment, signal)


class Backlog(deque[tuple[float, TaskT]]):
    """Claimed attempts that wait for a slot, each with the monotonic time when its wait began."""

    #: How long attempts take. Until they prove to be short, no job is claimed ahead.
    average_seconds = AHEAD_SECONDS

    def put(self, attempts: Iterable[TaskT]) -> None:
        now = time.monotonic()
        self.extend([(now, attempt) for attempt in attempts])

    def take_back(self, waited_seconds: float) -> list[TaskT]:
        """Remove and return all attempts, if the first of them has waited this long."""
        if not self or time.monotonic() - self[0][0] < waited_seconds:
            return []
        attempts = [attempt for _, attempt in self]
        self.clear()
        self.average_seconds = max(self.average_seconds, AHEAD_SECONDS)
        return attempts

    def count_seconds(self, seconds: float, weight: float = NEWEST_WEIGHT) -> None:
        """Add the duration of an attempt to the average, or the average duration of several with their weight."""
        self.average_seconds += (seconds - self.average_seconds) * weight

    def ahead(self, slots: int) -> int:
        """Return how many jobs to claim ahead of this number of slots."""
        if self.average_seconds >= AHEAD_SECONDS:
            return 0
        return min(int(slots * AHEAD_SECONDS / self.average_seconds), MAX_AHEAD)


class SlotPool:
    """Runs attempts: on threads, on an event loop or in child processes. ``count``: how many run at the same time."""

    count = 0

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.backlog: Backlog[Any] = Backlog()
        #: The lock of the condition, which would take it with two more calls.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    @property
    def running(self) -> int:
        """The number of running attempts, including stuck ones, that no other pool counts."""
        return 0

    @property
    def stuck(self) -> int:
        """The number of attempts that were asked to stop and have not stopped."""
        return 0

    @property
    def is_out_of_slots(self) -> bool:
        """Whether every slot is held by a stuck attempt, and no more slots may be replaced."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        raise NotImplementedError

    @property
    def lag_seconds(self) -> float:
        """How long an event loop has not advanced."""
        return 0.0

    @property
    def closed_seconds(self) -> float:
        """How long child processes will not be started."""
        return 0.0

    def start(self) -> None:
        """Start the threads of the pool."""

    def states(self) -> tuple[PoolState, ...]:
        """Return the state of its child processes."""
        return ()

    def attempts(self) -> Sequence[AnyAttempt]:
        """Return the running attempts."""
        raise NotImplementedError

    def room(self) -> int:
        """Return how many jobs to claim now."""
        raise NotImplementedError

    def free(self) -> int:
        """Return how many attempts could start at the same time."""
        return self.room()

    def record_attempt(self, *args: Any, **options: Any) -> RecordAttempt:
        return RecordAttempt(*args, **options)

    def put(self, attempts: Sequence[Any]) -> None:
        """Run attempts as soon as there are slots."""
        raise NotImplementedError

    def take_back(self, waited_seconds: float = PATIENCE_SECONDS) -> Sequence[AnyAttempt | SlotTask]:
        """Remove and return the attempts that wait for a slot, if the first of them has waited this long."""
        with self._changed:
            return self.backlog.take_back(waited_seconds)

    def close(self) -> None:
        """Start no more attempts. Waiting attempts were taken back before."""

    def join(self, deadline: float) -> list[str]:
        """Wait for running attempts. Returns the jobs and records that still run at the deadline, and open threads."""
        return []

    def write_off(self, attempt: Any) -> bool:
        """Mark an attempt as stuck, and free its slot if that is allowed. Returns False if there is nothing to do."""
        return False

    def stack_of(self, attempt: Any) -> str:
        """Return where an attempt is, as a traceback; "" if it has ended."""
        return ""

    def check_lag(self) -> None:
        """Report what blocks an event loop."""


@dataclass(eq=False)
class Lane:
    """Job types that are claimed together. ``environments``: what the attempts of each type share. ``batch_limit``: the
    number of jobs that one attempt can take, if it takes several. ``make``: creates an attempt for claimed jobs.
    ``rotation``: of types with limits that hold for all workers together; None for types without such limits.

    Types are added while other threads read both mappings, so these are replaced.
    """

    pool: SlotPool
    environments: Mapping[str, Environment]
    batch_limit: int | None = None
    make: Callable[[Sequence[Claimed], Environment], AnyAttempt] = single
    rotation: Rotation | None = None

    @cached_property
    def leases(self) -> dict[str, float]:
        """The seconds of a lease, by the types to claim."""
        return {name: environment.policy.lease.seconds for name, environment in self.environments.items()}

    def limited(self, overrides: Mapping[str, Override]) -> LimitedTypes:
        """Return the types to claim, with their limits. ``overrides``: the limits that replace them, by name."""
        leases = self.leases
        return limited_types(leases, {name: self.environments[name].processor.limits for name in leases}, overrides)

    def add(self, name: str, environment: Environment) -> None:
        """Claim jobs of another type from now on, or of one that was withdrawn."""
        leases = {**self.leases, name: environment.policy.lease.seconds}
        self.environments = {**self.environments, name: environment}  # First, because jobs may be claimed immediately.
        self.leases = leases

    def withdraw(self, name: str) -> None:
        """Claim no more jobs of a type."""
        self.leases = {other: seconds for other, seconds in self.leases.items() if other != name}

    def room(self) -> int:
        """Return how many jobs to claim now."""
        if self.batch_limit is None:
            return self.pool.room()
        return self.batch_limit if self.pool.free() else 0

    def has_slots(self) -> bool:
        return self.room() > 0

    def free(self) -> int:
        """Return how many jobs could start at the same time."""
        return self.pool.free() * (self.batch_limit or 1)


def release(attempt: AnyAttempt | SlotTask, leases: HeldLeases, error: BaseException) -> None:
    """Release what an attempt holds that ended without an outcome, so that its job or record is taken back."""
    leases.release(job.key for job in attempt.jobs)
    if isinstance(attempt, RecordAttempt):
        attempt.abandon(error)


#: A slot that has been idle for this long closes its connections, because other processes may need them.
IDLE_SECONDS = 30.0


class Slot:
    """A thread that runs one attempt at a time."""

    def __init__(self, number: int, slots: "Slots") -> None:
        self.attempt: SlotTask | None = None
        #: Whether its attempt was asked to stop and has not stopped. ``is_replaced``: another slot has taken its place.
        self.is_stuck = self.is_replaced = False
        self._slots = slots
        context = slots.context
        self.thread = OwnedThread(f"slot-{number}", self._step, worker=context.worker, give_up=context.give_up)

    def _step(self) -> None:
        """Run attempts until none waits."""
        attempt = self._slots.next(self)
        if attempt is None:
            close_thread_connections()
        while attempt is not None:
            attempt = self._run(attempt)

    def _run(self, attempt: SlotTask) -> SlotTask | None:
        started = time.perf_counter()
        try:
            for outcome in attempt.run():
                self._slots.outcome_writer.put(outcome)
        except BaseException as error:  # Not an error of the handler: the lease must expire, so that the job is reaped.
            release(attempt, self._slots.context.leases, error)
            self._slots.done(self, takes_next=False)
            raise
        self._slots.backlog.count_seconds(time.perf_counter() - started)
        return self._slots.done(self)


class Slots(SlotPool):
    """Runs up to ``count`` attempts, each on its own thread. ``MAX_STUCK_SLOTS`` of them may be replaced."""

    def __init__(self, context: WorkerContext, outcome_writer: EndWriter[Outcome]) -> None:
        super().__init__(context)
        context.backlogs.append(self.backlog)
        self.count = context.options.slots
        self.outcome_writer = outcome_writer
        self.max_stuck = self._replacements_left = context.settings.MAX_STUCK_SLOTS
        #: Slots that wait for an attempt, and whether one of them was notified and has not woken up yet.
        self._waiting = 0
        self._is_notified = False
        #: Slots that run an attempt from ``follow`` when the current one has ended.
        self._following = 0
        self._running = 0
        #: The most attempts that ran at the same time since this was last set.
        self.peak = 0
        self._closed = False
        self._created = 0
        self._slots: list[Slot] = [self._new_slot() for _ in range(self.count)]

    def _new_slot(self) -> Slot:
        self._created += 1
        return Slot(self._created, self)

    def start(self) -> None:
        for slot in self._slots:
            slot.thread.start()

    @property
    def running(self) -> int:
        """The number of running attempts, including stuck ones."""
        return self._running + self.max_stuck - self._replacements_left

    @property
    def stuck(self) -> int:
        return sum(slot.is_stuck for slot in list(self._slots))

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._running and not self.backlog

    @property
    def is_out_of_slots(self) -> bool:
        """Whether every slot is stuck, and no more slots may be replaced."""
        return sum(slot.is_stuck and not slot.is_replaced for slot in list(self._slots)) >= self.count

    def attempts(self) -> list[AnyAttempt]:
        """Return the attempts that run on the threads of the slots, not in child processes."""
        running = [attempt for slot in list(self._slots) if (attempt := slot.attempt) is not None]
        return [attempt for attempt in running if not isinstance(attempt, ChildRun)]

    def child_tasks(self) -> list[ChildTask]:
        """Return what runs in child processes, or waits for a slot to do so. A stuck attempt is in a hook instead."""
        with self._changed:
            running = [slot.attempt for slot in self._slots if not slot.is_stuck]
            tasks = running + [task for _, task in self.backlog]
        return [task for task in tasks if isinstance(task, ChildTask)]

    @property
    def in_children(self) -> int:
        """The number of slots whose attempts run in child processes."""
        running = [slot.attempt for slot in list(self._slots) if not slot.is_stuck]
        return sum(isinstance(attempt, ChildTask) for attempt in running)

    def room(self) -> int:
        """Return how many jobs to claim now: for the free slots, and some ahead while attempts take milliseconds."""
        with self._changed:
            ahead = self.backlog.ahead(self.count)
            if ahead and len(self.backlog) > ahead // 2:
                return 0
            return max(self.count + ahead - self._running - len(self.backlog), 0)

    def free(self) -> int:
        """Return the number of slots that have no attempt, neither running nor waiting."""
        with self._changed:
            return max(self.count - self._running - len(self.backlog), 0)

    def put(self, attempts: Sequence[SlotTask]) -> None:
        with self._changed:
            self.backlog.put(attempts)
            self._notify_one()

    def follow(self, attempt: SlotTask) -> None:
        """Let the calling slot run this attempt next. This frees no slot and wakes no thread."""
        with self._changed:
            self.backlog.appendleft((time.monotonic(), attempt))
            self._following += 1

    def close(self) -> None:
        """Start no more attempts, and end idle slots."""
        with self._changed:
            self._closed = True
            for slot in self._slots:
                slot.thread.stop()
            self._changed.notify_all()

    def join(self, deadline: float) -> list[str]:
        """Wait for running attempts. Returns the jobs that still run at the deadline.

        Slots whose attempts can no longer write anything are not waited for.
        """
        awaited = [slot for slot in list(self._slots) if not (slot.attempt and slot.attempt.is_detached)]
        running = [slot for slot in awaited if not slot.thread.join(deadline)]
        return [slot.attempt.label if slot.attempt else slot.thread.name for slot in running]

    # Stuck attempts

    def write_off(self, attempt: AnyAttempt) -> bool:
        """Mark an attempt's slot as stuck, and replace it if that is allowed. Returns False if it was marked."""
        with self._changed:
            slot = self._slot_of(attempt)
            if slot is None or slot.is_stuck or self._closed:
                return False
            slot.is_stuck = True
            if self._replacements_left:
                self._replace(slot)
            return True

    def stack_of(self, attempt: AnyAttempt) -> str:
        """Return where the attempt is, as a traceback; "" if it has ended."""
        slot = self._slot_of(attempt)
        frame = sys._current_frames().get(slot.thread.ident or 0) if slot else None
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _slot_of(self, attempt: AnyAttempt) -> Slot | None:
        return next((slot for slot in list(self._slots) if slot.attempt is attempt), None)

    def _replace(self, slot: Slot) -> None:
        self._replacements_left -= 1
        self._running -= 1
        slot.is_replaced = True
        slot.thread.stop()
        self._slots.append(self._new_slot())
        self._slots[-1].thread.start()
        self.context.wake.set()

    # For the threads of the slots

    def next(self, slot: Slot) -> SlotTask | None:
        """Wait for an attempt to run. Returns None if there was none for a long time, or if the slot must end."""
        with self._changed:
            if not self.backlog and not self._closed:
                self._waiting += 1
                self._changed.wait_for(self._has_work, IDLE_SECONDS)
                self._waiting -= 1
            return self._take(slot)

    def _take(self, slot: Slot) -> SlotTask | None:
        if self._closed or not self.backlog:
            return None
        self._running += 1
        running = self._running + self.max_stuck - self._replacements_left
        if running > self.peak:
            self.peak = running
        _, slot.attempt = self.backlog.popleft()
        self._notify_one()
        return slot.attempt

    def _notify_one(self) -> None:
        """Wake one slot if there is work; it wakes the next. If all were woken, they would compete for the interpreter,
        while a single one may be enough for short attempts."""
        if self.backlog and self._waiting and not self._is_notified:
            self._is_notified = True
            self._changed.notify()

    def _has_work(self) -> bool:
        self._is_notified = False
        return bool(self.backlog) or self._closed

    def done(self, slot: Slot, *, takes_next: bool = True) -> SlotTask | None:
        """Free a slot whose attempt has ended, and return the attempt that it runs next, if one waits.

        While attempts are short, this takes a fraction of the time of a wait for the next one.
        """
        with self._lock:
            slot.attempt = None
            slot.is_stuck = False
            if slot.is_replaced:  # Its attempt has ended after all, so another slot may be replaced.
                self._slots.remove(slot)
                self._replacements_left += 1
                another = next((slot for slot in self._slots if slot.is_stuck and not slot.is_replaced), None)
                if another is not None and not self._closed:
                    self._replace(another)
                if self._following:  # Its thread ends, so another slot must run it.
                    self._following -= 1
                    self._notify_one()
                return None
            self._running -= 1
            attempt = self._take(slot) if takes_next else None
            if self._following:
                self._following -= 1
                return attempt
            ahead = self.backlog.ahead(self.count)
            has_room = len(self.backlog) <= ahead // 2 and (ahead or attempt is None)
        if has_room:
            self.context.wake.slot_is_free()
        return attempt
