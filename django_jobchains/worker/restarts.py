"""When a worker process that ended is started again, and when that has no sense any more."""

import signal
from collections import Counter
from collections.abc import Collection

#: A process that lived so long has not ended early.
SETTLED_SECONDS = 10.0
#: The waits before what ended early is started again: no busy loop, but not long either, as it does not work meanwhile.
FIRST_WAIT_SECONDS = 0.5
LAST_WAIT_SECONDS = 5.0
#: When every process failed to start so often in a row, a person has to look.
MOST_FAILED_STARTS = 5


class Restarts:
    """Of each number, how often in a row its process ended early, and how often before it had begun."""

    def __init__(self) -> None:
        self._early: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()

    def ended(self, number: int, *, lived_seconds: float, failed_to_start: bool) -> float:
        """The seconds until it is started again."""
        self._failed[number] = self._failed[number] + 1 if failed_to_start else 0
        self._early[number] = self._early[number] + 1 if lived_seconds < SETTLED_SECONDS else 0
        if not self._early[number]:
            return 0
        return float(min(FIRST_WAIT_SECONDS * 2 ** min(self._early[number] - 1, 10), LAST_WAIT_SECONDS))

    def has_none_that_starts(self, numbers: Collection[int]) -> bool:
        return bool(numbers) and all(self._failed[number] >= MOST_FAILED_STARTS for number in numbers)

    def forget(self) -> None:
        self._early.clear()
        self._failed.clear()


def failed_to_start(code: int, *, has_begun: bool) -> bool:
    """Whether it ended by itself before it had begun; what was killed from outside might have started."""
    return not has_begun and code not in (0, -signal.SIGKILL, -signal.SIGTERM)
