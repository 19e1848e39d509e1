"""Which workers query when a few jobs become due: as many idle ones as these jobs need, not all of them."""

import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any

from django_jobchains.notifications import EVERY, Hint, Notifier
from django_jobchains.store.workers import WorkerFacts
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import Lane

#: Without a wake budget, one more worker than needed queries immediately, because the first may be busy or dead.
SPARE_WORKERS = 1
#: The delay of the next worker in the order, and the factor by which the delay grows for each further one.
LATE_SECONDS = 0.02
LATE_FACTOR = 3.0
#: A worker that missed more heartbeats is left out of the order.
MAX_MISSED_HEARTBEATS = 2
#: A shorter attempt leaves its slot free for the next hint.
SHORT_SECONDS = 0.1
#: For hints that arrive at shorter intervals, the worker queries instead of asking for a share of the budget.
MIN_ASK_SECONDS = 0.001


class WakeOrder:
    """Decides whether, and when, a hint wakes the claim loop: see docs/decisions/0018-wake-budgets.md.

    ``lanes``: by job type. The listener's thread calls ``on_hint``, the thread of the heartbeat ``update``.
    """

    def __init__(self, context: WorkerContext, notifier: Notifier, lanes: Mapping[str, Lane]) -> None:
        options = context.options
        self._wake = context.wake
        self._queues = context.queues
        self._counter = context.counter
        self._poll_seconds = options.poll_seconds
        self._notifier = notifier
        self._context = context
        self.serve(lanes)
        self._order: PeerOrder | None = None
        #: Jobs that were hinted since the last heartbeat, except short ones: they may have filled free slots.
        self._hinted = 0
        #: The last hint that this worker skipped, because others handle it.
        self._skipped: Hint | None = None
        self._asked_at = 0.0
        #: Whether the last hint assigned some jobs to this worker, and others to its peers.
        self.is_sharing = False

    def serve(self, lanes: Mapping[str, Lane]) -> None:
        """React to hints about the types of these lanes from now on."""
        options = self._context.options
        #: The same for all workers that could run the same jobs.
        self.group = group_of(self._context.store.connection.settings_dict, options.queues, options.type_names)
        self._lanes = lanes

    @property
    def is_alone(self) -> bool:
        return self._order is not None and len(self._order.free) == 1

    def on_hint(self, hint: Hint) -> None:
        if hint.kind != "job_scheduled" or (hint.subject != EVERY and hint.subject not in self._lanes):
            return
        if not self._wake.accepts_hints:
            return
        will_query_soon = self._wake.will_query_soon
        seconds = 0.0 if will_query_soon else self.seconds_until(hint)
        self.count(hint)
        if seconds is not None:
            types = None if hint.subject == EVERY else [hint.subject]
            self._wake.query_in(seconds, types, is_shared=self.is_sharing and not will_query_soon)

    def update(self, worker: str, present: Sequence[WorkerFacts]) -> None:
        """Find this worker's position among the workers of its group that had a free slot at their last heartbeat.

        The hint that it skipped last is evaluated once more, because the others may have been busy.
        """
        self._order, self._hinted = order_of(worker, present), 0
        skipped, self._skipped = self._skipped, None
        if skipped and skipped.count and self._seconds_by_position(skipped, skipped.count) == 0.0:
            self._wake.set()

    def seconds_until(self, hint: Hint) -> float | None:
        """Return the delay of this worker's query because of a hint; None if other workers handle the hint."""
        self.is_sharing = False
        if hint.count is None or hint.subject == EVERY or self.is_alone:
            return 0.0
        before, self._asked_at = self._asked_at, time.monotonic()
        if self._asked_at - before < MIN_ASK_SECONDS:
            return 0.0
        free = self._lanes[hint.subject].free()
        if not free or self._queues.has_limits:  # Leave the share to workers that could run the jobs.
            return 0.0
        self.is_sharing = True
        share = self._notifier.take(hint, free, self.group)
        if share:
            return 0.0
        seconds = self._seconds_by_position(hint, hint.count) if share is None else None
        if seconds != 0.0:
            self._skipped = hint
        return seconds

    def count(self, hint: Hint) -> None:
        """Count the jobs of a hint, whichever worker runs them."""
        if self._counter.average_seconds.get(hint.subject, inf) >= SHORT_SECONDS:
            self._hinted += hint.count or 1

    def _seconds_by_position(self, hint: Hint, count: int) -> float | None:
        """The hint's number selects where the order begins, so all workers agree without communicating."""
        if self._order is None:
            return 0.0
        late = self._order.late(int(hint.id or "0", 16), count + self._hinted) - SPARE_WORKERS
        if late < 0:
            return 0.0
        seconds = LATE_SECONDS * LATE_FACTOR ** min(late, 30)
        return seconds if seconds < self._poll_seconds else None


@dataclass(frozen=True, slots=True)
class PeerOrder:
    """The free slots of each worker of a group, and this worker's position among them."""

    position: int
    free: tuple[int, ...]

    def late(self, first: int, jobs: int) -> int:
        """Return how many workers are between this one and those that can start the jobs; negative if this one can.

        ``first``: where the order begins.
        """
        needed = slots = 0
        while slots < jobs and needed < len(self.free):
            slots += self.free[(first + needed) % len(self.free)]
            needed += 1
        return (self.position - first) % len(self.free) - needed


def order_of(worker: str, present: Sequence[WorkerFacts]) -> PeerOrder | None:
    """Return None if the worker itself has no row."""
    mine = next((other for other in present if other.id == worker), None)
    if mine is None:
        return None
    peers = sorted((other for other in present if _is_peer(other, mine)), key=attrgetter("id"))
    return PeerOrder(peers.index(mine), tuple(max(peer.slots - peer.busy, 1) for peer in peers))


def group_of(database: Mapping[str, Any], queues: Collection[str] | None, type_names: Collection[str]) -> str:
    """Return a short name for the jobs that a worker serves. ``database``: its settings, with the server's address."""
    address = [str(database[key]) for key in ("ENGINE", "HOST", "PORT", "NAME")]
    scope = json.dumps([*address, None if queues is None else sorted(queues), sorted(type_names)])
    return hashlib.sha256(scope.encode()).hexdigest()[:12]


def is_alive(worker: WorkerFacts) -> bool:
    """Return whether a worker sends heartbeats and is not stopping."""
    max_seconds = MAX_MISSED_HEARTBEATS * worker.heartbeat_seconds
    return not worker.is_stopping and worker.heartbeat_age_seconds <= max_seconds


def _is_peer(other: WorkerFacts, mine: WorkerFacts) -> bool:
    if other.id == mine.id:
        return True
    same_work = (other.queues, other.type_names) == (mine.queues, mine.type_names)
    return is_alive(other) and other.busy < other.slots and same_work
