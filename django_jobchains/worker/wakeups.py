"""What ends the claim loop's wait: a hint, a free slot, a continuation, or the time."""

import threading
import time
from collections.abc import Collection
from math import inf

from django_jobchains.notifications import EVERY, Hint
from django_jobchains.notifications.merging import LOOK_AGAIN_SECONDS
from django_jobchains.worker.threads import waiting
from django_jobchains.worker.turns import Turns


class WakeUp:
    """Set from any thread; waited for by the claim loop alone."""

    def __init__(self, type_names: Collection[str], turns: Turns) -> None:
        self._subjects = {EVERY, *type_names}
        self._turns = turns
        self._changed = threading.Condition()
        self._is_set = False
        self._look_again_at: float | None = None
        #: When to look for jobs that somebody else is to look for first.
        self._late_at: float | None = None
        self._heard_at = 0.0
        self._was_fruitless = False
        #: Whether the next look is for jobs of which others were told to leave some alone.
        self._is_shared = False

    def set(self) -> None:
        if not self._is_set:
            with self._changed:
                self._is_set = True
                self._changed.notify()

    def on_hint(self, hint: Hint) -> None:
        """Wakes the loop now, and once more a little later: senders leave out hints that follow closely.

        While looks find nothing, hints that come before that second look wait for it: a flood of them, forged or not,
        costs a look in ten milliseconds.
        """
        if hint.kind != "job_scheduled" or hint.subject not in self._subjects:
            return
        is_looking_soon = self._is_looking_soon
        seconds = 0.0 if is_looking_soon else self._turns.seconds_until(hint)
        self._turns.heard(hint)
        if seconds is None:
            return
        with self._changed:
            self._is_shared |= not is_looking_soon and self._turns.is_sharing
            if seconds:
                self._late_at = min(self._late_at or inf, time.monotonic() + seconds)
            else:
                self._look_soon()
            self._changed.notify()

    @property
    def _is_looking_soon(self) -> bool:
        return self._is_set or (self._look_again_at is not None and self._was_fruitless)

    def _look_soon(self) -> None:
        self._heard_at = time.monotonic()
        if self._look_again_at is None or not self._was_fruitless:
            self._look_again_at = self._heard_at + LOOK_AGAIN_SECONDS
            self._is_set = True

    def clear(self) -> None:
        """Before looking: what is set from now on is a reason to look again."""
        with self._changed:
            self._is_set = False
            self._late_at = None
            if self._look_again_at is not None and time.monotonic() >= self._look_again_at:
                was_heard_since = self._heard_at > self._look_again_at - LOOK_AGAIN_SECONDS
                self._look_again_at = self._heard_at + LOOK_AGAIN_SECONDS if was_heard_since else None

    def looked(self, *, found: bool, is_full: bool) -> None:
        """After looking: whether there was something to claim, and whether it took all the room."""
        self._was_fruitless = not found
        if self._is_shared and is_full:
            self._look_again_at = time.monotonic() + LOOK_AGAIN_SECONDS
        elif not self.is_looking_again:
            self._is_shared = False

    def leaves_some_alone(self) -> bool:
        """Without room: whether it is time to see if jobs are left that others were told to leave alone. Once."""
        if self.is_looking_again or not self._is_shared:
            return False
        self._is_shared = False
        return True

    @property
    def is_looking_again(self) -> bool:
        return self._look_again_at is not None

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with waiting(), self._changed:
            while not self._is_set and (left := self._next_look(until) - time.monotonic()) > 0:
                self._changed.wait(left)

    def _next_look(self, until: float) -> float:
        return min(at for at in (until, self._look_again_at, self._late_at) if at is not None)
