"""Hints that need not be sent, for whoever hears the one before looks a second time."""

import random
import threading
import time
from collections.abc import Collection
from dataclasses import replace

from django_jobchains.notifications.hints import EVERY, Hint, chain_finished

#: A process sends one hint of a kind and subject in this time and leaves out the others. Whoever is woken looks again
#: after twice the time, and so sees what was committed meanwhile: merged without a thread and without a late sender.
MERGE_SECONDS = 0.005
LOOK_AGAIN_SECONDS = 2 * MERGE_SECONDS

#: Kept in memory to leave hints out; beyond it they are simply sent.
_REMEMBERED = 1_000
_LONG_AGO = float("-inf")


class Merger:
    """What a process sends of the hints it has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[Hint, float] = {}
        self._chain_finished_at = _LONG_AGO
        #: How many jobs the hints spoke of that were left out since.
        self._left_out: dict[Hint, int | None] = {}

    def fresh(self, hints: Collection[Hint]) -> list[Hint]:
        """Those to send now, each with an id of its own if it says how many jobs there are."""
        now = time.monotonic()
        with self._lock:
            if len(self._sent) > _REMEMBERED:
                self._sent.clear()
                self._left_out.clear()
            return [self._numbered(hint, now) for hint in self._widened(hints, now) if self._is_due(hint, now)]

    def _widened(self, hints: Collection[Hint], now: float) -> Collection[Hint]:
        """Chains end in thousands a second, each a subject of its own: of those that follow closely it is said that
        there are some."""
        if not any(hint.kind == "chain_finished" for hint in hints):
            return hints
        is_close, self._chain_finished_at = now - self._chain_finished_at < MERGE_SECONDS, now
        if not is_close:
            return hints
        return [*(hint for hint in hints if hint.kind != "chain_finished"), chain_finished(EVERY)]

    def _is_due(self, hint: Hint, now: float) -> bool:
        if now - self._sent.get(hint, _LONG_AGO) >= MERGE_SECONDS:
            return True
        self._left_out[hint] = _together(self._left_out.get(hint, 0), hint.count)
        return False

    def _numbered(self, hint: Hint, now: float) -> Hint:
        self._sent[hint] = now
        count = _together(self._left_out.pop(hint, 0), hint.count)
        number = "" if count is None else f"{random.getrandbits(64):016x}"
        return replace(hint, count=count, id=number)


def _together(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
