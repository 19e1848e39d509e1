"""The claim loop: fill free slots, then wait for a wake-up, a free slot, the next due time or the poll interval."""

import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from django_jobchains.announcing import announce
from django_jobchains.attempts import not_started
from django_jobchains.exceptions import ProcessorNotFound
from django_jobchains.leases import HeldLeases
from django_jobchains.notes import Notebook
from django_jobchains.policies import AttemptPolicy
from django_jobchains.processors import Registry
from django_jobchains.store import ClaimedJob, Effects, HeldLease, Store
from django_jobchains.worker.completer import Completer
from django_jobchains.worker.lanes import AnyAttempt, Claimed, Lane
from django_jobchains.worker.queues import ServedQueues, Share
from django_jobchains.worker.slots import PATIENCE_SECONDS
from django_jobchains.worker.threads import LOCK_SECONDS
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
        queues: ServedQueues,
        leases: HeldLeases,
        lanes: Sequence[Lane],
        completer: Completer,
        notebook: Notebook,
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
        #: Turned after each look, so that none always comes first.
        self._lanes = deque(lanes)
        self._lane_of = {name: lane for lane in lanes for name in lane.leases}
        self._places = {id(lane.place): lane.place for lane in lanes}.values()
        self._completer = completer
        self._notebook = notebook
        self._wake = wake
        self._poll_seconds = poll_seconds
        self._left = max_jobs
        self._retires = self._is_closed = False
        #: Claimed, not started, and to be handed back.
        self._unwanted: list[HeldLease] = []
        #: The types of the jobs that were claimed last.
        self._found: list[str] = []
        #: Jobs so far.
        self.claimed = 0
        #: Set when nothing was due and nothing ran; cleared when a job is claimed.
        self.idle = threading.Event()
        #: Set when ``max_jobs`` jobs were claimed, or it retires, and all have ended.
        self.spent = threading.Event()

    def step(self) -> None:
        """One look at the database, if there is room, and one wait."""
        self._wake.clear()
        self._hand_back_waiting()
        lanes = [lane for lane in self._lanes if self._room(lane)]
        if not lanes:
            if self._wake.leaves_some_alone():
                self._tell_others()
            self._wait_for_room()
            return
        was_quiet = self._is_quiet()
        found, is_full = self._fill(lanes)
        self._found = found or self._found
        self._wake.looked(found=bool(found), is_full=is_full)
        if not found and was_quiet:
            self.idle.set()
        if not is_full:
            self._wait([lane for lane in lanes if self._room(lane)], found=bool(found))

    def close(self) -> None:
        """From any thread: what is claimed from now on is handed back, for nobody runs it."""
        self._is_closed = True
        self._wake.set()

    def retire(self) -> None:
        """From any thread: claims no more; ``spent`` is set when what runs has ended."""
        self._retires = True
        self._wake.set()

    def free(self, type_name: str) -> int:
        """From any thread: how many more jobs of a type could start now."""
        lane = self._lane_of[type_name]
        return min(lane.free(), self._room(lane))

    def _room(self, lane: Lane) -> int:
        if self._retires or self._is_closed:
            return 0
        room = 0 if self._completer.is_behind else lane.room()
        return room if self._left is None else min(room, self._left)

    def _is_quiet(self) -> bool:
        return all(place.is_idle for place in self._places) and self._completer.is_idle

    def _fill(self, lanes: Sequence[Lane]) -> tuple[list[str], bool]:
        """The types of the jobs that were found, and whether there may be more that are due and have room."""
        found: list[str] = []
        is_full = False
        for lane in lanes:
            if room := self._room(lane):  # the lanes before it may have taken it
                claimed = self._claim(lane, room)
                found += claimed
                is_full |= len(claimed) == room
        self._lanes.rotate(-1)
        return found, is_full

    def _tell_others(self) -> None:
        """This worker was told of a few jobs, others were not, and more are due than it had room for."""
        due = self._next_due(self._lane_of)
        if due is not None and due <= 0:
            effects = Effects()
            effects.add_due(2 * self._found)
            announce(self._store.using, effects)

    def _claim(self, lane: Lane, room: int) -> list[str]:
        claimed: list[str] = []
        for share in self._queues.shares(room):
            if limit := min(share.limit, room - len(claimed), self._room(lane)):
                claimed += self._claim_share(lane, limit, share)
        return claimed

    def _claim_share(self, lane: Lane, limit: int, share: Share) -> list[str]:
        since = time.monotonic()
        jobs = self._store.claim(self._worker, limit, lane.leases, share.queues, share.excluded)
        if jobs:
            self.idle.clear()
            self.claimed += len(jobs)
            if self._left is not None:
                self._left -= len(jobs)
            self._start(lane, jobs, since)
        return [job.type_name for job in jobs]

    def _start(self, lane: Lane, jobs: Sequence[ClaimedJob], since: float) -> None:
        if self._is_closed:  # the claim came back late
            self._give_back([HeldLease(job.id, job.lease_number, 0) for job in jobs])
            return
        try:
            claimed = [(job, self._leases.hold(job, lane.leases[job.type_name], since)) for job in jobs]
            lane.place.put(self._attempts(lane, claimed))
        except BaseException:  # nobody may renew what nobody runs: the leases must end
            self._leases.let_go(jobs)
            raise

    def _attempts(self, lane: Lane, claimed: Sequence[Claimed]) -> list[AnyAttempt]:
        """Whatever is wrong with one job does not harm those claimed with it."""
        groups = [claimed] if lane.batch_limit else [[one] for one in claimed]
        return [attempt for group in groups for attempt in self._made(lane, group)]

    def _made(self, lane: Lane, claimed: Sequence[Claimed]) -> list[AnyAttempt]:
        """One attempt, or none when there is none to make."""
        type_name = claimed[0][0].type_name
        try:
            processor, policy = self._registry.processor(type_name), self._policies[type_name]
            return [
                lane.make(
                    claimed,
                    processor,
                    policy=policy,
                    store=self._store,
                    registry=self._registry,
                    notebook=self._notebook,
                )
            ]
        except ProcessorNotFound:  # gone since the worker started
            self._give_back([HeldLease(job.id, job.lease_number, 0) for job, _ in claimed])
        except BaseException as error:
            for job, _ in claimed:
                self._completer.put(not_started(job, self._policies[job.type_name], error))
        return []

    def _hand_back_waiting(self) -> None:
        """Jobs claimed ahead that found no slot soon go back: another worker may be idle."""
        waiting = [attempt for place in self._places for attempt in place.take_back()]
        if waiting or self._unwanted:
            self._give_back(leases_of(waiting))

    def _give_back(self, leases: list[HeldLease]) -> None:
        """What fails, or is locked by someone else, is tried again at the next step."""
        self._unwanted += leases
        effects = Effects()
        with self._store.waits_at_most(LOCK_SECONDS):
            written = self._store.hand_back(self._unwanted, effects)
        announce(self._store.using, effects)
        lost = self._store.check([lease for lease in self._unwanted if lease.key not in written]).lost
        gone = [lease for lease in self._unwanted if lease.key in written or lease.key in lost]
        self._leases.let_go(gone)
        if self._left is not None:
            self._left += len(gone)
        self._unwanted = [lease for lease in self._unwanted if lease not in gone]

    def _wait_for_room(self) -> None:
        if (self._retires or self._left == 0) and self._is_quiet():
            self.spent.set()
        self._wake.wait(self._longest_wait())

    def _longest_wait(self) -> float:
        """Jobs that were claimed ahead are looked after in time to be handed back."""
        has_waiting = any(place.has_waiting for place in self._places)
        return min(self._poll_seconds, PATIENCE_SECONDS) if has_waiting else self._poll_seconds

    def _wait(self, lanes: Sequence[Lane], *, found: bool) -> None:
        """Until something may be due. While a second look is near anyway, the next due time is not asked for."""
        if found or self._wake.is_looking_again:
            self._wake.wait(self._jittered(min(self._poll_seconds, PATIENCE_SECONDS)))
            return
        if self._queues.have_changed():
            return
        seconds = self._jittered(self._longest_wait())
        due = self._next_due([name for lane in lanes for name in lane.leases])
        if due is not None:  # one that is due but was not claimed is locked by somebody
            seconds = min(max(due, SHORTEST_WAIT_SECONDS) if due > 0 else LOCKED_WAIT_SECONDS, seconds)
        self._wake.wait(seconds)

    def _next_due(self, type_names: Iterable[str]) -> float | None:
        leases = {name: self._lane_of[name].leases[name] for name in type_names}
        return self._store.next_due(leases, *self._queues.open())

    def _jittered(self, seconds: float) -> float:
        return seconds * random.uniform(0.8, 1)  # noqa: S311 - jitter


def leases_of(attempts: Sequence[AnyAttempt]) -> list[HeldLease]:
    return [HeldLease(job.id, job.lease_number, 0) for attempt in attempts for job in attempt.jobs]
