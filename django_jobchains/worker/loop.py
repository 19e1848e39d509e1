"""The claim loop: fill free slots, then wait for a wake-up, a free slot, the next due time or the poll interval."""

import random
import threading
import time
from collections.abc import Collection, Mapping

from django_jobchains.announcing import announce
from django_jobchains.attempts import Attempt, not_started
from django_jobchains.exceptions import ProcessorNotFound
from django_jobchains.leases import HeldLeases
from django_jobchains.policies import AttemptPolicy
from django_jobchains.processors import Processor, Registry
from django_jobchains.store import ClaimedJob, Effects, HeldLease, Store
from django_jobchains.worker.completer import Completer
from django_jobchains.worker.slots import PATIENCE_SECONDS, Slots
from django_jobchains.worker.wakeups import WakeUp

SHORTEST_WAIT_SECONDS = 0.001
#: Before a due job that somebody has locked is asked for again.
LOCKED_WAIT_SECONDS = 0.1


class ClaimLoop:
    def __init__(
        self,
        *,
        worker: str,
        store: Store,
        registry: Registry,
        policies: Mapping[str, AttemptPolicy],
        queues: Collection[str] | None,
        leases: HeldLeases,
        slots: Slots,
        completer: Completer,
        wake: WakeUp,
        poll_seconds: float,
        max_jobs: int | None = None,
    ) -> None:
        self._worker = worker
        self._store = store
        self._registry = registry
        self._policies = policies
        self._queues = queues
        self._leases = leases
        self._slots = slots
        self._completer = completer
        self._wake = wake
        self._poll_seconds = poll_seconds
        self._left = max_jobs
        self._lease_seconds = {name: policy.lease.seconds for name, policy in policies.items()}
        #: Set when nothing was due and nothing ran; cleared when a job is claimed.
        self.idle = threading.Event()
        #: Set when ``max_jobs`` jobs were claimed and have ended.
        self.spent = threading.Event()

    def step(self) -> None:
        """One look at the database, if there is room, and one wait."""
        self._wake.clear()
        self._hand_back_waiting()
        room = self._room()
        if not room:
            self._wait_for_room()
            return
        was_quiet = self._is_quiet()
        jobs = self._claim(room)
        self._wake.looked(found=bool(jobs))
        if not jobs and was_quiet:
            self.idle.set()
        if len(jobs) < room:
            self._wait(found=bool(jobs))

    def _room(self) -> int:
        room = 0 if self._completer.is_behind else self._slots.room()
        return room if self._left is None else min(room, self._left)

    def _is_quiet(self) -> bool:
        return self._slots.is_idle and self._completer.is_idle

    def _claim(self, room: int) -> list[ClaimedJob]:
        since = time.monotonic()
        jobs = self._store.claim(self._worker, room, self._lease_seconds, self._queues)
        if jobs:
            self.idle.clear()
            if self._left is not None:
                self._left -= len(jobs)
            self._start(jobs, since)
        return jobs

    def _start(self, jobs: list[ClaimedJob], since: float) -> None:
        try:
            attempts = [self._attempt(job, since) for job in jobs]
            self._slots.put([attempt for attempt in attempts if attempt is not None])
        except BaseException:  # nobody may renew what nobody runs: the leases must end
            self._leases.let_go(jobs)
            raise

    def _attempt(self, job: ClaimedJob, since: float) -> Attempt | None:
        """None when there is none to make; whatever is wrong with one job does not harm those claimed with it."""
        policy = self._policies[job.type_name]
        signal = self._leases.hold(job, self._lease_seconds[job.type_name], since)
        try:
            processor = self._processor(job)
            if processor is None:
                return None
            return Attempt(job, processor, policy=policy, store=self._store, registry=self._registry, signal=signal)
        except BaseException as error:
            self._completer.put(not_started(job, policy, error))
            return None

    def _processor(self, job: ClaimedJob) -> Processor | None:
        try:
            return self._registry.processor(job.type_name)
        except ProcessorNotFound:  # gone since the worker started
            self._give_back([HeldLease(job.id, job.lease_number, 0)])
            return None

    def _hand_back_waiting(self) -> None:
        """Jobs claimed ahead that found no slot soon go back: another worker may be idle."""
        if attempts := self._slots.take_back():
            self._give_back([HeldLease(attempt.job.id, attempt.job.lease_number, 0) for attempt in attempts])

    def _give_back(self, leases: list[HeldLease]) -> None:
        effects = Effects()
        self._store.hand_back(leases, effects)
        announce(self._store.using, effects)
        self._leases.let_go(leases)
        if self._left is not None:
            self._left += len(leases)

    def _wait_for_room(self) -> None:
        if self._left == 0 and self._is_quiet():
            self.spent.set()
        self._wake.wait(PATIENCE_SECONDS if self._slots.has_waiting else self._poll_seconds)

    def _wait(self, *, found: bool) -> None:
        """Until something may be due. While a second look is near anyway, the next due time is not asked for."""
        if found or self._wake.is_looking_again:
            self._wake.wait(self._jittered(min(self._poll_seconds, PATIENCE_SECONDS)))
            return
        seconds = self._jittered(self._poll_seconds)
        due = self._store.next_due(self._lease_seconds, self._queues)
        if due is not None:  # one that is due but was not claimed is locked by somebody
            seconds = min(max(due, SHORTEST_WAIT_SECONDS) if due > 0 else LOCKED_WAIT_SECONDS, seconds)
        self._wake.wait(seconds)

    def _jittered(self, seconds: float) -> float:
        return seconds * random.uniform(0.8, 1)  # noqa: S311 - jitter
