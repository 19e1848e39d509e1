"""The queues a worker claims from: those it serves, within their limits. The claim itself skips paused queues.

The limit of a queue for all workers together is set at run time. The limits of a single worker are options of the
worker.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django_jobchains.notifications import EVERY, Hint, freed_queue
from django_jobchains.store import Store
from django_jobchains.store.queues import LimitedQueue, Override, Rules
from django_jobchains.store.record_tables import RecordTable
from django_jobchains.worker.held_leases import HeldLeases

#: Before a claim, the limits of queues are read again if they are older than this.
MAX_AGE_SECONDS = 1.0
#: The same time after a hint that limits may have changed. On SQLite every commit is such a hint.
MAX_AGE_AFTER_HINT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """One claim to make: up to ``limit`` jobs of ``queues``, None for all, except those ``excluded``.

    ``within``: the only one of ``queues``, if it has a limit that holds for all workers together.
    """

    limit: int
    queues: Collection[str] | None
    excluded: Collection[str] = ()
    within: LimitedQueue | None = None


class ServedQueues:
    """The queues of a worker, None for all. Only the claim loop calls its methods, except ``on_hint``.

    ``own_limits``: how many slots of this worker may run each queue. ``tables``: the tables of the records by queue.
    """

    def __init__(
        self,
        store: Store,
        held: Sequence[HeldLeases],
        queues: Collection[str] | None,
        own_limits: Mapping[str, int],
        tables: Callable[[], Mapping[str, Sequence[RecordTable]]],
    ) -> None:
        self._store = store
        self._held = held
        self._queues = queues
        self._own_limits = own_limits
        self._tables = tables
        self._rules = Rules()
        self._read_at: float | None = None
        self._was_hinted = False
        #: By name, the queues whose limit holds for all workers together. It is replaced, and read by any thread.
        self.limited: Mapping[str, LimitedQueue] = {}
        #: Those of them that had no free place in the last claim. A hint follows when one becomes free.
        self._full: set[str] = set()
        #: Whether another worker was deciding about the queue in the last call of ``start``.
        self.met_lock = False
        #: Whether a due job may be waiting for the end of any attempt. Read by any thread.
        self.has_limits = bool(own_limits)

    def on_hint(self, hint: Hint) -> bool:
        """Return whether the hint is about a free place in a queue that this worker serves."""
        if hint.kind == "job_scheduled" and hint.subject == EVERY:
            self._was_hinted = True
        return any(hint == freed_queue(name) and self._is_served(name) for name in self.limited)

    def claims_for(self, room: int) -> list[ClaimSpec]:
        """Return the claims that fill free slots: one for each queue with a limit, and one for all others.

        A queue that is far below a limit of this worker alone is claimed with the others.
        """
        self._read_if_old()
        narrow = {name: left for name, left in self._left().items() if left < room or name in self.limited}
        claims = [ClaimSpec(left, (name,), (), self.limited.get(name)) for name, left in narrow.items() if left > 0]
        queues, excluded = self._without(narrow)
        if queues is None or queues:
            claims.append(ClaimSpec(room, queues, excluded))
        random.shuffle(claims)  # So that no queue always comes first and takes all slots.
        return claims

    def start(self, within: LimitedQueue | None, limit: int, start: Callable[[int], list[Any]]) -> list[Any]:
        """Call ``start`` with the number of jobs or records to start, at most ``limit``, and return those it started.

        If the queue has a limit that holds for all workers, this is done in a transaction that decides about it.
        """
        self.met_lock = False
        if within is None:
            return start(limit)

        def start_some(places: int) -> list[Any]:
            if places > 0:
                return start(min(limit, places))
            self._full.add(within.name)
            return []

        self._full.discard(within.name)
        found = self._store.queues.start_within(within, start_some)
        self.met_lock = found is None
        return found or []

    def room_in(self, name: str, room: int) -> int:
        """Return how many of the free slots may run records of a queue. The statement itself skips paused queues."""
        if not self._is_served(name):
            return 0
        self._read_if_old()
        return min(room, self._left().get(name, room))

    def open(self) -> tuple[Collection[str] | None, Collection[str]]:
        """Return the queues below their limit (None for all), and the queues to exclude."""
        return self._without([*self._full, *(name for name, left in self._left().items() if left <= 0)])

    def have_changed(self) -> bool:
        """Return whether limits have changed since the last claim, if a hint announced a change."""
        if not self._was_hinted:
            return False
        before = self._rules
        self._read()
        return self._rules != before

    @property
    def overrides(self) -> Mapping[str, Override]:
        """What replaces the declared limits of types and groups, by name. ``claims_for`` reads it if it is old."""
        return self._rules.overrides

    def _left(self) -> dict[str, int]:
        """Return how many more jobs of each limited queue this worker may run."""
        limits = {name: queue.slot_limit for name, queue in self.limited.items()}
        limits |= {name: min(limit, limits.get(name, limit)) for name, limit in self._own_limits.items()}
        running = sum((held.count_by_queue() for held in self._held if limits), Counter[str]())
        return {name: limit - running.get(name, 0) for name, limit in limits.items() if self._is_served(name)}

    def _is_served(self, name: str) -> bool:
        return self._queues is None or name in self._queues

    def _without(self, names: Iterable[str]) -> tuple[Collection[str] | None, Collection[str]]:
        closed = set(names)
        if self._queues is None:
            return None, sorted(closed)
        return [name for name in self._queues if name not in closed], ()

    def _read_if_old(self) -> None:
        max_age = MAX_AGE_AFTER_HINT_SECONDS if self._was_hinted else MAX_AGE_SECONDS
        if self._read_at is None or time.monotonic() - self._read_at >= max_age:
            self._read()

    def _read(self) -> None:
        was_hinted, self._was_hinted = self._was_hinted, False  # Before the read, so that later hints cause another.
        try:
            self._rules = self._store.queues.rules()
        except BaseException:
            self._was_hinted |= was_hinted
            raise
        self._read_at = time.monotonic()
        limits = {rule.name: rule.slot_limit for rule in self._rules.queues if rule.slot_limit is not None}
        tables = self._tables() if limits else {}
        self.limited = {name: LimitedQueue(name, limit, tables.get(name, ())) for name, limit in limits.items()}
        self._full &= limits.keys()
        self.has_limits = bool(self.limited or self._own_limits)
