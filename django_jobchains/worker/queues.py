"""Which queues a worker claims from: those it serves, within their limits. The claim itself skips paused queues."""

import random
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django_jobchains.leases import HeldLeases
from django_jobchains.notifications import EVERY, Hint
from django_jobchains.store import QueueRule, Store

#: The limits of queues are read again before a claim when they are so old,
RULES_SECONDS = 1.0
#: and when a hint says so, but no more often than this: on SQLite every commit is such a hint.
TOLD_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Share:
    """One claim to make: up to ``limit`` jobs of ``queues`` (None: of all) but for those ``excluded``."""

    limit: int
    queues: Collection[str] | None
    excluded: Collection[str] = ()


class ServedQueues:
    """Used by the claim loop alone, but for ``on_hint`` and ``has_limits``. ``queues`` None: all of them."""

    def __init__(self, store: Store, leases: HeldLeases, queues: Collection[str] | None) -> None:
        self._store = store
        self._leases = leases
        self._queues = queues
        self._rules: tuple[QueueRule, ...] = ()
        self._read_at: float | None = None
        self._was_told = False
        #: Then the end of any attempt may be what a due job waits for.
        self.has_limits = False

    def on_hint(self, hint: Hint) -> None:
        if hint.kind == "job_scheduled" and hint.subject == EVERY:
            self._was_told = True

    def shares(self, room: int) -> list[Share]:
        """The claims that fill so much room: one, and one for each queue of which only a part of it may be filled."""
        self._read_if_old()
        narrow = {name: left for name, left in self._left().items() if left < room}
        shares = [Share(left, (name,)) for name, left in narrow.items() if left > 0]
        queues, excluded = self._without(narrow)
        if queues is None or queues:
            shares.append(Share(room, queues, excluded))
        random.shuffle(shares)  # none of them always comes first, and takes it all
        return shares

    def open(self) -> tuple[Collection[str] | None, Collection[str]]:
        """The queues with room for another job, None for all, and those to leave out of them."""
        return self._without(name for name, left in self._left().items() if left <= 0)

    def have_changed(self) -> bool:
        """Whether a hint came since the last claim, and something else holds now: a reason not to wait."""
        if not self._was_told:
            return False
        before = self._rules
        self._read()
        return self._rules != before

    def _left(self) -> dict[str, int]:
        """How many more jobs of each limited queue may run."""
        limits = {rule.name: rule.slot_limit for rule in self._rules if rule.slot_limit is not None}
        running = self._leases.count_by_queue() if limits else {}
        return {name: limit - running.get(name, 0) for name, limit in limits.items() if self._is_served(name)}

    def _is_served(self, name: str) -> bool:
        return self._queues is None or name in self._queues

    def _without(self, names: Iterable[str]) -> tuple[Collection[str] | None, Collection[str]]:
        closed = set(names)
        if self._queues is None:
            return None, sorted(closed)
        return [name for name in self._queues if name not in closed], ()

    def _read_if_old(self) -> None:
        age = RULES_SECONDS if self._read_at is None else time.monotonic() - self._read_at
        if age >= (TOLD_SECONDS if self._was_told else RULES_SECONDS):
            self._read()

    def _read(self) -> None:
        was_told, self._was_told = self._was_told, False  # before reading: what is said from now on is read again
        try:
            self._rules = tuple(self._store.queue_rules())
        except BaseException:
            self._was_told |= was_told
            raise
        self._read_at = time.monotonic()
        self.has_limits = any(rule.slot_limit is not None for rule in self._rules)
