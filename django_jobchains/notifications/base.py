"""The contract of a notifier: publish hints, listen for hints."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from logging import getLogger
from typing import Literal
from uuid import UUID

logger = getLogger("django_jobchains")

HintKind = Literal["job_scheduled", "chain_finished", "ownership_lost"]

#: The subject of a hint that is about any of its kind: "look for yourself".
EVERY = "*"

#: A process sends one hint of a kind and subject in this time and leaves out the others. Whoever is woken looks again
#: after twice the time, and so sees what was committed meanwhile: merged without a thread and without a late sender.
MERGE_SECONDS = 0.005
LOOK_AGAIN_SECONDS = 2 * MERGE_SECONDS

#: Kept in memory to leave hints out; beyond it they are simply sent.
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Hint:
    """``subject``: the type of ``job_scheduled``, the chain of ``chain_finished``, the job of ``ownership_lost``."""

    kind: HintKind
    subject: str


def job_scheduled(type_name: str) -> Hint:
    return Hint("job_scheduled", type_name)


def chain_finished(chain_id: UUID | str) -> Hint:
    return Hint("chain_finished", str(chain_id))


def ownership_lost(job_id: UUID | str) -> Hint:
    return Hint("ownership_lost", str(job_id))


#: Said when it is not known what was missed.
LOOK = (job_scheduled(EVERY), chain_finished(EVERY), ownership_lost(EVERY))


class Listener:
    """Calls back for each hint until it is closed."""

    def close(self) -> None:
        """Stops the callbacks; frees threads and connections within a second or two."""

    @property
    def is_alive(self) -> bool:
        """Whether hints can arrive; False asks the worker's health to turn red, not its work to stop."""
        return True


class Notifier:
    """Sends hints between processes. A subclass says how in ``send`` and ``listen``; both may lose any of them."""

    #: False: whoever waits has to poll.
    carries_hints = True

    def __init__(self, using: str) -> None:
        self.using = using
        self._lock = threading.Lock()
        self._sent: dict[Hint, float] = {}

    def publish(self, hints: Collection[Hint]) -> None:
        """Sends the hints this process has not just sent. Never raises: a failed wake-up undoes no finished job."""
        if fresh := self._fresh(hints):
            try:
                self.send(fresh)
            except Exception as error:
                logger.warning("Wake-ups were not sent; workers find the jobs at their next poll: %s", error)

    def send(self, hints: Collection[Hint]) -> None:
        """Hands the hints over, in few and short steps: an enqueue waits for it."""

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        """Starts calling ``on_hint`` from a thread of the notifier's own. After each (re)connection it passes
        ``LOOK``: subscribe, then look."""
        return Listener()

    def _fresh(self, hints: Collection[Hint]) -> list[Hint]:
        now = time.monotonic()
        with self._lock:
            fresh = [hint for hint in hints if now - self._sent.get(hint, -1.0) >= MERGE_SECONDS]
            if len(self._sent) > _REMEMBERED:
                self._sent.clear()
            self._sent.update(dict.fromkeys(fresh, now))
        return fresh


class NullNotifier(Notifier):
    """Sends nothing: workers poll."""

    carries_hints = False
