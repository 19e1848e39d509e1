"""Whose turn it is to look when a few jobs became due: so many idle workers as these jobs need, not all of them."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from django_jobchains.notifications import EVERY, Hint, Notifier
from django_jobchains.store import Beat, PresentWorker

#: Without a wake budget, one worker more than is needed looks at once: the first may be busy, or dead.
SPARE = 1
#: The next in the order looks after this time, and each further one after three times that of the one before.
LATE_SECONDS = 0.02
LATE_FACTOR = 3.0
#: Heartbeats after which a worker has no place in the order.
MOST_MISSED = 2
#: An attempt of less than this leaves its slot free for the next hint.
SHORT_SECONDS = 0.1
#: Weight of the newest attempt in the average of its type.
NEWEST_SHARE = 0.2
#: Hints that follow more closely are not asked for: a flood of them is answered by a look at the database.
ASK_SECONDS = 0.001


class Turns:
    """Asked by the listener's thread, told by the one that beats.

    ``group``: the same for all workers that could run the same jobs. ``free``: the slots that are free for a type.
    ``is_narrow``: whether some of them are not for every queue. ``look``: lets this worker look after all.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        group: str,
        poll_seconds: float,
        free: Callable[[str], int],
        is_narrow: Callable[[], bool],
        look: Callable[[], None],
    ) -> None:
        self._notifier = notifier
        self._group = group
        self._poll_seconds = poll_seconds
        self._free = free
        self._is_narrow = is_narrow
        self._look = look
        self._order: Order | None = None
        #: Jobs that were hinted since, but for short ones: so many of the free slots may be taken by now.
        self._hinted = 0
        #: How long attempts of a type take here.
        self._seconds: dict[str, float] = {}
        #: The last hint that was left to others.
        self._left: Hint | None = None
        self._asked_at = 0.0
        #: Whether the last hint let it look for some jobs, and told others to leave them alone.
        self.is_sharing = False

    @property
    def is_alone(self) -> bool:
        return self._order is not None and len(self._order.free) == 1

    def place(self, worker: str, present: Sequence[PresentWorker]) -> None:
        """Takes its place among those of its group that had a free slot when they were last heard of.

        What was left to others is looked at again: those may have been busy.
        """
        self._order, self._hinted = order_of(worker, present), 0
        left, self._left = self._left, None
        if left and left.count and self._by_place(left, left.count) == 0.0:
            self._look()

    def seconds_until(self, hint: Hint) -> float | None:
        """When this worker is to look because of a hint, 0 is now; None: it is left to others."""
        self.is_sharing = False
        if hint.count is None or hint.subject == EVERY or self._is_alone_or_hurried():
            return 0.0
        free = self._free(hint.subject)
        if not free or self._is_narrow():  # it may take no job from those who could
            return 0.0
        self.is_sharing = True
        share = self._notifier.take(hint, free, self._group)
        seconds = self._by_place(hint, hint.count) if share is None else 0.0 if share else None
        if seconds != 0.0:
            self._left = hint
        return seconds

    def heard(self, hint: Hint) -> None:
        """Of jobs that somebody runs, whoever it is."""
        if self._seconds.get(hint.subject, inf) >= SHORT_SECONDS:
            self._hinted += hint.count or 1

    def ran(self, type_name: str, seconds: float) -> None:
        """An attempt took so long. One that was long counts for many that were short."""
        average = self._seconds.get(type_name, seconds)
        self._seconds[type_name] = max(seconds, average + (seconds - average) * NEWEST_SHARE)

    def _is_alone_or_hurried(self) -> bool:
        if self.is_alone:
            return True
        before, self._asked_at = self._asked_at, time.monotonic()
        return self._asked_at - before < ASK_SECONDS

    def _by_place(self, hint: Hint, count: int) -> float | None:
        """The hint's number says where the order begins: every worker comes to the same without asking anybody."""
        if self._order is None:
            return 0.0
        late = self._order.late(int(hint.id or "0", 16), count + self._hinted) - SPARE
        if late < 0:
            return 0.0
        seconds = LATE_SECONDS * LATE_FACTOR ** min(late, 30)
        return seconds if seconds < self._poll_seconds else None


@dataclass(frozen=True, slots=True)
class Order:
    """The free slots of each worker of a group, and the place of this one among them."""

    place: int
    free: tuple[int, ...]

    def late(self, first: int, jobs: int) -> int:
        """How far behind those that can start so many jobs, the first in front; below 0: it is one of them."""
        needed = slots = 0
        while slots < jobs and needed < len(self.free):
            slots += self.free[(first + needed) % len(self.free)]
            needed += 1
        return (self.place - first) % len(self.free) - needed


def order_of(worker: str, present: Sequence[PresentWorker]) -> Order | None:
    """None when it is not among them."""
    mine = next((other.beat for other in present if other.beat.worker == worker), None)
    if mine is None:
        return None
    peers = sorted((other.beat for other in present if _is_peer(other, mine)), key=attrgetter("worker"))
    return Order(peers.index(mine), tuple(max(beat.slots - beat.busy, 1) for beat in peers))


def group_of(database: Sequence[str], queues: Collection[str] | None, type_names: Collection[str]) -> str:
    """A short name of what a worker works for."""
    said = json.dumps([*database, None if queues is None else sorted(queues), sorted(type_names)])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def _is_peer(other: PresentWorker, mine: Beat) -> bool:
    beat = other.beat
    if beat.worker == mine.worker:
        return True
    is_there = other.silent_seconds <= MOST_MISSED * beat.heartbeat_seconds and not beat.is_stopping
    return is_there and beat.busy < beat.slots and (beat.queues, beat.type_names) == (mine.queues, mine.type_names)
