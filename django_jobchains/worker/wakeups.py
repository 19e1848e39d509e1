"""What ends the claim loop's wait: a hint, a free slot, a continuation, or the time."""

import threading
import time
from collections.abc import Collection

from django_jobchains.notifications import EVERY, Hint
from django_jobchains.notifications.base import LOOK_AGAIN_SECONDS
from django_jobchains.worker.threads import waiting


class WakeUp:
    """Set from any thread; waited for by the claim loop alone."""

    def __init__(self, type_names: Collection[str]) -> None:
        self._subjects = {EVERY, *type_names}
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._look_again_at: float | None = None
        self._heard_at = 0.0
        self._was_fruitless = False

    def set(self) -> None:
        if not self._event.is_set():
            self._event.set()

    def on_hint(self, hint: Hint) -> None:
        """Wakes the loop now, and once more a little later: senders leave out hints that follow closely.

        While looks find nothing, hints that come before that second look wait for it: a flood of them, forged or not,
        costs a look in ten milliseconds.
        """
        if hint.kind != "job_scheduled" or hint.subject not in self._subjects:
            return
        with self._lock:
            self._heard_at = time.monotonic()
            if self._look_again_at is None or not self._was_fruitless:
                self._look_again_at = self._heard_at + LOOK_AGAIN_SECONDS
                self._event.set()

    def clear(self) -> None:
        """Before looking: what is set from now on is a reason to look again."""
        with self._lock:
            self._event.clear()
            if self._look_again_at is not None and time.monotonic() >= self._look_again_at:
                was_heard_since = self._heard_at > self._look_again_at - LOOK_AGAIN_SECONDS
                self._look_again_at = self._heard_at + LOOK_AGAIN_SECONDS if was_heard_since else None

    def looked(self, *, found: bool) -> None:
        """After looking: whether there was something to claim."""
        self._was_fruitless = not found

    @property
    def is_looking_again(self) -> bool:
        return self._look_again_at is not None

    def wait(self, seconds: float) -> None:
        if (at := self._look_again_at) is not None:
            seconds = min(seconds, at - time.monotonic())
        with waiting():
            self._event.wait(max(seconds, 0))
