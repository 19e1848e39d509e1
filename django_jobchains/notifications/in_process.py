"""Hints between the threads of one process: for a worker inside the program that enqueues, and for tests."""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Collection

from django_jobchains.db import call_in_forks
from django_jobchains.notifications.base import Listener, Notifier, Subscribers
from django_jobchains.notifications.hints import Hint

#: Hints whose wake budgets are remembered. Workers that receive a hint use its budget immediately, so old ones are not
#: needed.
_MAX_REMEMBERED = 1_000

_lock = threading.Lock()
_listening: dict[str, list[Subscribers]] = defaultdict(list)
#: How many jobs of a hint workers already claim, by the id of the hint and the group of the workers.
_taken: OrderedDict[tuple[str, str], int] = OrderedDict()


def _reset_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _listening.clear()
    _taken.clear()


call_in_forks(_reset_after_fork)


class InProcessNotifier(Notifier):
    """Calls the listeners of this process."""

    def send(self, hints: Collection[Hint]) -> None:
        with _lock:
            listening = list(_listening[self.using])
        for hint in hints:
            for subscribers in listening:
                subscribers(hint)

    def connect(self, subscribers: Subscribers) -> Listener:
        return _InProcessListener(self.using, subscribers)

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        if hint.count is None or not hint.id:
            return None
        key = (hint.id, group)
        with _lock:
            taken = _taken.get(key, 0)
            share = max(min(limit, hint.count - taken), 0)
            _taken[key] = taken + share
            if len(_taken) > _MAX_REMEMBERED:
                _taken.popitem(last=False)
        return share


class _InProcessListener(Listener):
    def __init__(self, using: str, subscribers: Subscribers) -> None:
        self._using, self._subscribers = using, subscribers
        with _lock:
            _listening[using].append(subscribers)
        subscribers.resync(self.kinds)

    def close(self) -> None:
        with _lock:
            _listening[self._using].remove(self._subscribers)
