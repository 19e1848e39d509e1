"""Outcomes of attempts that could not be written yet, because someone else has locked a row that they need."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from django_jobchains.attempts import Outcome
from django_jobchains.store import AttemptKey
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import OutcomeDelayed

#: Between two tries: the first wait, and the longest.
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 1.0
#: They are tried again for this long at most before the outcomes that came meanwhile are written.
SHARE_SECONDS = 0.2


@dataclass(slots=True)
class _Delayed:
    outcome: Outcome
    since: float = field(default_factory=time.monotonic)
    wait_seconds: float = FIRST_WAIT_SECONDS / 2
    tries: int = 0
    due_at: float = 0.0


class DelayedOutcomes:
    """Used by one thread."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        #: In the order in which they were first tried.
        self._delayed: dict[AttemptKey, _Delayed] = {}

    def __len__(self) -> int:
        return len(self._delayed)

    def add(self, outcome: Outcome, error: str = "") -> None:
        """Puts an outcome off; for longer each time. Reports it once, when it has reached the longest wait."""
        delayed = self._delayed.setdefault(outcome.job.key, _Delayed(outcome))
        was_short = delayed.wait_seconds < MAX_WAIT_SECONDS
        delayed.tries += 1
        delayed.wait_seconds = min(2 * delayed.wait_seconds, MAX_WAIT_SECONDS)
        now = time.monotonic()
        delayed.due_at = now + delayed.wait_seconds
        if was_short and delayed.wait_seconds == MAX_WAIT_SECONDS:
            job = outcome.job
            report(OutcomeDelayed(self._worker, job.id, job.type_name, now - delayed.since, error))

    def tries(self, key: AttemptKey) -> int:
        """How often an outcome has been put off."""
        return self._delayed[key].tries if key in self._delayed else 0

    def forget(self, keys: Iterable[AttemptKey]) -> None:
        for key in keys:
            self._delayed.pop(key, None)

    def seconds_to_next(self) -> float | None:
        """Until the next is to be tried again; None without any."""
        if not self._delayed:
            return None
        return max(min(delayed.due_at for delayed in self._delayed.values()) - time.monotonic(), 0)

    def try_again(self, write: Callable[[Outcome], object]) -> None:
        """Calls ``write`` with each outcome that is due, one by one, for a limited time."""
        began = time.monotonic()
        due: Collection[_Delayed] = [delayed for delayed in self._delayed.values() if delayed.due_at <= began]
        for delayed in sorted(due, key=lambda delayed: delayed.due_at):
            write(delayed.outcome)
            if time.monotonic() - began > SHARE_SECONDS:
                return
