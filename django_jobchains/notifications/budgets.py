"""Wake budgets in memory: how many of a hint's jobs somebody already looks for."""

import threading
from collections import OrderedDict

from django_jobchains.notifications.hints import Hint

#: Hints whose budget is remembered. Whoever hears a hint asks at once, so the oldest are not asked for any more.
_REMEMBERED = 1_000


class Budgets:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: OrderedDict[tuple[str, str], int] = OrderedDict()

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        """See ``Notifier.take``."""
        if hint.count is None or not hint.id:
            return None
        key = (hint.id, group)
        with self._lock:
            taken = self._taken.get(key, 0)
            share = max(min(most, hint.count - taken), 0)
            self._taken[key] = taken + share
            if len(self._taken) > _REMEMBERED:
                self._taken.popitem(last=False)
        return share
