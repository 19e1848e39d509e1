"""The claim loop: fill free slots, then wait for a wake-up, a free slot, the next due time or the poll interval."""

import math
import random
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from django_jobchains.attempts.outcome import Outcome, not_started
from django_jobchains.notifications.wakeups import announced
from django_jobchains.store import Store
from django_jobchains.store.errors import call_in_parts
from django_jobchains.store.rows import AttemptKey, ClaimedJob, EndedAttempt, ExpiredJob
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import JobExpired
from django_jobchains.worker.claim_wait import MIN_RATE_WAIT_SECONDS, MIN_START_WAIT_SECONDS
from django_jobchains.worker.end_writer import EndWriter
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.queue_limits import ClaimSpec
from django_jobchains.worker.records import RecordLane, RecordWorkers
from django_jobchains.worker.slots import PATIENCE_SECONDS, AnyAttempt, Lane, SlotTask
from django_jobchains.worker.threads import LOCK_SECONDS

MIN_WAIT_SECONDS = 0.001
#: The wait before the next claim if a due job was not claimed, because another transaction has locked it.
LOCKED_WAIT_SECONDS = 0.1
#: The first wait before the next claim if another worker was deciding about a limit, which takes it milliseconds.
DECIDING_WAIT_SECONDS = 0.01
#: The wait after a claim that found jobs, before the time of the next due job is read.
FOUND_WAIT_SECONDS = 0.05
#: The shortest wait before records are queried again.
MIN_RECORD_WAIT_SECONDS = 0.01

AnyLane = Lane | RecordLane


class ClaimLoop:
    """Claims jobs of each lane for its free slots, creates their attempts, and puts these into the lane's pool."""

    def __init__(
        self, context: WorkerContext, lanes: Sequence[Lane], outcome_writer: EndWriter[Outcome], records: RecordWorkers
    ) -> None:
        self._context = context
        self._store = context.store
        self._wake = context.wake
        self._leases = context.leases
        self._queues = context.queues
        self._poll_seconds = context.options.poll_seconds
        self._outcome_writer = outcome_writer
        self._records = records
        #: In the order of their last claims, so that each lane gets its share of the slots.
        self._ordered: list[AnyLane] = [*lanes, *records.lanes.values()]
        self._pools = list({id(lane.pool): lane.pool for lane in self._ordered}.values())
        self._observers = context.observers
        self._jobs_left = context.options.max_jobs
        self.retires = self._is_closed = False
        #: Claimed jobs that will not be started and must be returned to the queue.
        self.unwanted: list[AttemptKey] = []
        #: The types of the jobs that were claimed last.
        self._found: list[str] = []
        #: The number of jobs claimed so far.
        self.claimed = 0
        #: Set when nothing was due and nothing ran; cleared when a job is claimed.
        self.idle = threading.Event()
        #: Set when no more jobs are claimed, because of ``max_jobs`` or ``retire``, and all attempts have ended.
        self.exhausted = threading.Event()

    def step(self) -> None:
        """Claim jobs if there are free slots, and wait."""
        types = self._wake.begin_query()
        self._wake.needs_slots = True  # until it is known below that there are enough
        self._hand_back_waiting()
        self._wake.accepts_hints = not (self.retires or self._is_closed or self._jobs_left == 0)
        had_slots = self._have_slots()
        was_quiet = self._is_quiet()  # Before the lanes: a full lane whose attempt ends in between is not queried.
        lanes = [lane for lane in self._ordered if _may_run(lane, types) and self._room(lane)]
        if not lanes:
            if self._wake.must_notify_peers():
                self._notify_peers()
            if (self.retires or self._jobs_left == 0) and self._is_quiet():
                self.exhausted.set()
            if not self._ordered:  # No task has been enqueued yet.
                self.idle.set()
                if self._ordered:  # Added in between.
                    self.idle.clear()
            self._wake.wait(self._longest_wait(), self._until_records())
            return
        found, is_full = self._fill(lanes)
        self._found = found or self._found
        self._wake.record_query(found=bool(found), is_full=is_full)
        if not found and was_quiet and self._records.is_quiet and types is None and not self._wake.must_query:
            self.idle.set()
        if not is_full:
            self._wake.needs_slots = self._wake.is_eager or not (had_slots and self._have_slots())
            self._wait([lane for lane in lanes if self._room(lane)], found=bool(found))

    def add(self, lane: Lane) -> None:
        """Claim jobs of another lane from now on. Can be called from any thread."""
        if lane.pool not in self._pools:
            self._pools.append(lane.pool)
        self._ordered.append(lane)

    def close(self) -> None:
        """Hand back jobs that are claimed from now on, because they would not run. Can be called from any thread."""
        self._is_closed = True
        self._wake.set()

    def retire(self) -> None:
        """Claim no more jobs. ``exhausted`` is set when running attempts have ended. Can be called from any thread."""
        self.retires = self._wake.is_eager = True
        self._wake.set()

    @property
    def _may_claim(self) -> bool:
        is_behind = self._outcome_writer.is_behind or self._observers.is_behind
        return not (self.retires or self._is_closed or self._jobs_left == 0 or is_behind)

    def _have_slots(self) -> bool:
        """Return whether every lane has a slot for another attempt."""
        return self._may_claim and all(lane.has_slots() for lane in self._ordered)

    def _room(self, lane: AnyLane) -> int:
        room = lane.room() if self._may_claim else 0
        return room if self._jobs_left is None else min(room, self._jobs_left)

    def _is_quiet(self) -> bool:
        # Check the slots first: an attempt that ends in between has passed its outcome to a writer, which is then not
        # idle.
        is_run = all(pool.is_idle for pool in self._pools)
        return is_run and self._outcome_writer.is_idle and self._records.writer.is_idle

    # Claiming

    def _fill(self, lanes: Sequence[AnyLane]) -> tuple[list[str], bool]:
        """Return the types of the claimed jobs, and whether they fill a lane, so that more may be due."""
        found: list[str] = []
        is_full = False
        for lane in lanes:
            if room := self._room(lane):  # Lanes before this one may have taken the slot.
                claimed = self._dequeue(lane, room) if isinstance(lane, RecordLane) else self._claim(lane, room)
                found += claimed
                is_full |= len(claimed) == room
                if claimed:
                    self._ordered.remove(lane)
                    self._ordered.append(lane)
        return found, is_full

    def _notify_peers(self) -> None:
        """Notify other workers, which skipped the hint, if more jobs are due than this worker had slots for."""
        due = self._next_due(self._ordered)
        if due is not None and due <= 0:
            with announced(self._store) as effects:
                effects.add_due(2 * self._found)

    def _claim(self, lane: Lane, room: int) -> list[str]:
        claimed: list[str] = []
        for claim in self._queues.claims_for(room):
            limit = min(claim.limit, room - len(claimed), self._room(lane))
            if not limit:
                continue
            since, worker = time.monotonic(), self._context.worker
            expired: list[ExpiredJob] = []
            with measured("claim", worker):
                jobs = self._queues.start(claim.within, limit, partial(self._claim_now, lane, claim, expired))
            if jobs:
                self._count(len(jobs))
                self._start(lane, jobs, since)
                claimed += [job.type_name for job in jobs]
            if expired:
                self._count(len(expired))
                claimed += [job.type_name for job in expired]
                for job in expired:
                    report(JobExpired(worker, job.id, job.chain_id, job.type_name))
                self._hand_back([job.key for job in expired])
        return claimed

    def _claim_now(self, lane: Lane, claim: ClaimSpec, expired: list[ExpiredJob], limit: int) -> list[ClaimedJob]:
        worker, queues, excluded = self._context.worker, claim.queues, claim.excluded
        if lane.rotation is None:
            return self._store.jobs.claim(worker, limit, lane.leases, queues, excluded, expired)
        types = lane.limited(self._queues.overrides)
        with self._store.db.waits_at_most(LOCK_SECONDS):
            return self._store.limits.claim(worker, limit, types, lane.rotation, queues, excluded, expired)

    def _start(self, lane: Lane, jobs: Sequence[ClaimedJob], since: float) -> None:
        """Hold the leases of claimed jobs, and put their attempts into the pool. A batch is one attempt."""
        if self._is_closed:  # The loop was closed during the claim.
            self._hand_back([job.key for job in jobs])
            return
        try:
            seconds = [lane.environments[job.type_name].policy.lease.seconds for job in jobs]
            held = zip(jobs, seconds, strict=True)
            claimed = [(job, self._leases.hold(job.key, lease, since, job.queue)) for job, lease in held]
            attempts: list[AnyAttempt] = []
            for group in [claimed] if lane.batch_limit else [[one] for one in claimed]:
                environment = lane.environments[group[0][0].type_name]
                try:
                    attempts.append(lane.make(group, environment))
                except BaseException as error:  # An error with one job must not affect those claimed with it.
                    for job, _ in group:
                        self._outcome_writer.put(not_started(job, environment.policy, error))
            lane.pool.put(attempts)
        except BaseException:  # Nothing runs these jobs, so their leases must expire.
            self._leases.release(job.key for job in jobs)
            raise

    def _dequeue(self, lane: RecordLane, room: int) -> list[str]:
        """Dequeue records, and put each list of attempts into the pool before the next is dequeued."""
        names: list[str] = []
        for attempts in lane.dequeue(room):
            self._count(len(attempts))
            if self._is_closed:  # The loop was closed during the call.
                self._records.hand_back(attempts)
                break
            try:
                lane.pool.put(attempts)
            except BaseException as error:  # Nothing handles these records, so they must be reset.
                for attempt in attempts:
                    attempt.abandon(error)
                raise
            names += [lane.kind.name] * len(attempts)
        return names

    def _count(self, claimed: int) -> None:
        self.idle.clear()
        self.claimed += claimed
        if self._jobs_left is not None:
            self._jobs_left -= claimed

    # Handing back

    def _hand_back_waiting(self) -> None:
        """Hand back jobs that were claimed ahead and did not get a slot soon, because another worker may be idle."""
        waiting = [attempt for pool in self._pools for attempt in pool.take_back()]
        self._count_back(self._records.hand_back(waiting))
        if waiting or self.unwanted:
            self._hand_back(keys_of(waiting))

    def _hand_back(self, keys: list[AttemptKey]) -> None:
        """Return jobs to the queue that have not begun, which cancels expired jobs.

        If that fails, the next step retries. For a job that is locked, or that a locked job waits for, it is deferred.
        """
        self.unwanted += keys
        if locked := hand_back_unlocked(self._store, self.unwanted, has_begun=False):
            self._store.deferred.defer([EndedAttempt("handed_back", key, has_begun=False) for key in locked])
        self._leases.release(self.unwanted)
        self._count_back(len(self.unwanted))
        self.unwanted = []

    def _count_back(self, handed_back: int) -> None:
        if self._jobs_left is not None:
            self._jobs_left += handed_back

    # Waiting

    def _longest_wait(self) -> float:
        """Return the longest wait, after which jobs that were claimed ahead are still returned to the queue in time.

        It also ends when child processes should be started again.
        """
        waits = [self._poll_seconds, *(seconds for pool in self._pools if (seconds := pool.closed_seconds))]
        if any(pool.backlog for pool in self._pools):
            waits.append(PATIENCE_SECONDS)
        return min(waits)

    def _until_records(self) -> float:
        """Return the seconds until records may be queried.

        An eager worker queries them at each step, so it waits for something else.
        """
        if self._wake.is_eager or self.retires or self._is_closed:
            return math.inf
        return max(self._records.seconds_to_next(), MIN_RECORD_WAIT_SECONDS)

    def _wait(self, lanes: Sequence[AnyLane], *, found: bool) -> None:
        """Wait until a job may be due. The next due time is not needed before a second query."""
        met_locks = max(
            (lane.rotation.met_locks for lane in lanes if isinstance(lane, Lane) and lane.rotation), default=0
        )
        if met_locks:
            seconds = min(DECIDING_WAIT_SECONDS * 2 ** min(met_locks - 1, 9), LOCKED_WAIT_SECONDS)
            self._wake.wait(seconds * random.uniform(0.5, 1))  # noqa: S311 - jitter
            return
        if found or self._wake.is_second_query_due:
            self._wake.wait(min(self._poll_seconds, self._until_next_start(lanes)), self._until_records())
            return
        if self._queues.have_changed():
            self._wake.set()
            return
        seconds = self._longest_wait() * random.uniform(0.8, 1)  # noqa: S311 - jitter
        due = self._next_due(lanes)
        if due is not None:  # A due job that was not claimed is locked by another transaction.
            seconds = min(max(due, MIN_WAIT_SECONDS) if due > 0 else LOCKED_WAIT_SECONDS, seconds)
        self._wake.wait(seconds, self._until_records())

    def _until_next_start(self, lanes: Iterable[AnyLane]) -> float:
        """Return the wait after a claim that found jobs."""
        rotations = [lane.rotation for lane in lanes if isinstance(lane, Lane) and lane.rotation is not None]
        starts = [rotation.next_start_at for rotation in rotations if rotation.next_start_at is not None]
        left = [max(start - time.monotonic(), MIN_START_WAIT_SECONDS) for start in starts]
        return min(FOUND_WAIT_SECONDS, *left) if left else FOUND_WAIT_SECONDS

    def _next_due(self, lanes: Iterable[AnyLane]) -> float | None:
        of_jobs = [lane for lane in lanes if isinstance(lane, Lane)]
        leases = {name: seconds for lane in of_jobs if lane.rotation is None for name, seconds in lane.leases.items()}
        limited = [lane.limited(self._queues.overrides) for lane in of_jobs if lane.rotation is not None]
        if not (leases or limited):  # only records
            return None
        served = self._queues.open()
        due = [self._store.jobs.next_due(leases, *served)] if leases else []
        for types in limited:
            seconds = self._store.limits.next_due(types, *served)
            is_rated = bool(types.rates) and seconds is not None and seconds > 0
            due.append(max(seconds or 0, MIN_RATE_WAIT_SECONDS) if is_rated else seconds)
        return min((seconds for seconds in due if seconds is not None), default=None)


def _may_run(lane: AnyLane, types: Collection[str] | None) -> bool:
    """Return whether to query a lane for these job types; None for all. A lane of records has its own times."""
    return types is None or isinstance(lane, RecordLane) or not lane.leases.keys().isdisjoint(types)


def keys_of(attempts: Sequence[AnyAttempt | SlotTask]) -> list[AttemptKey]:
    return [job.key for attempt in attempts for job in attempt.jobs]


def hand_back_unlocked(store: Store, keys: list[AttemptKey], *, has_begun: bool) -> list[AttemptKey]:
    """Return jobs to the queue. Return the keys of those that were not written because of a lock.

    Their jobs are locked, for example by a handler inside ``complete()``, or the jobs that wait for one of them.
    """
    with announced(store) as effects, store.db.waits_at_most(LOCK_SECONDS):
        hand_back = partial(store.attempts.hand_back, effects=effects, has_begun=has_begun)
        written = set(call_in_parts(hand_back, keys, {}))
    missing = [key for key in keys if key not in written]
    lost = store.leases.check(missing).lost
    return [key for key in missing if key not in lost]
