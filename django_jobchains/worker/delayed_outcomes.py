"""Outcomes of attempts that cannot be written yet, because another transaction has locked a row that they change."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from django_jobchains.attempts.outcome import Outcome
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import OutcomeDelayed

#: The wait before the first retry, which doubles with each further retry, and the longest wait.
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 1.0
#: Retries stop after this time, so that new outcomes are written.
MAX_RETRY_SECONDS = 0.2


@dataclass(slots=True)
class _Delayed:
    outcome: Outcome
    since: float = field(default_factory=time.monotonic)
    wait_seconds: float = FIRST_WAIT_SECONDS / 2
    tries: int = 0
    due_at: float = 0.0


class DelayedOutcomes:
    """Outcomes to retry, each after its own wait. Only the thread of the outcome writer uses it."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        #: By identity of the outcome, in the order of the first tries.
        self._delayed: dict[int, _Delayed] = {}

    def __len__(self) -> int:
        return len(self._delayed)

    def add(self, outcome: Outcome, error: str = "") -> None:
        """Delay an outcome, each time for longer. Reports it once, when it reaches the longest wait."""
        delayed = self._delayed.setdefault(id(outcome), _Delayed(outcome))
        was_short = delayed.wait_seconds < MAX_WAIT_SECONDS
        delayed.tries += 1
        delayed.wait_seconds = min(2 * delayed.wait_seconds, MAX_WAIT_SECONDS)
        now = time.monotonic()
        delayed.due_at = now + delayed.wait_seconds
        if was_short and delayed.wait_seconds == MAX_WAIT_SECONDS:
            job = outcome.job
            report(OutcomeDelayed(self._worker, job.id, job.type_name, now - delayed.since, error))

    def tries(self, outcome: Outcome) -> int:
        """Return how often an outcome has been delayed."""
        delayed = self._delayed.get(id(outcome))
        return delayed.tries if delayed else 0

    def forget(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._delayed.pop(id(outcome), None)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next retry, None if no outcome is delayed."""
        if not self._delayed:
            return None
        return max(min(delayed.due_at for delayed in self._delayed.values()) - time.monotonic(), 0)

    def retry(self, write: Callable[[Outcome], object]) -> None:
        """Call ``write`` with each outcome whose wait is over, for a limited time."""
        if not self._delayed:
            return
        began = time.monotonic()
        due: Collection[_Delayed] = [delayed for delayed in self._delayed.values() if delayed.due_at <= began]
        for delayed in sorted(due, key=lambda delayed: delayed.due_at):
            write(delayed.outcome)
            if time.monotonic() - began > MAX_RETRY_SECONDS:
                return
