"""Hints between threads of one process: for a worker that runs inside the program that enqueues, and for tests."""

import os
import threading
from collections import defaultdict
from collections.abc import Collection

from django_jobchains.notifications.base import Notifier
from django_jobchains.notifications.budgets import Budgets
from django_jobchains.notifications.hints import Hint
from django_jobchains.notifications.subscribing import Listener, Subscribers

_lock = threading.Lock()
_listening: dict[str, list[Subscribers]] = defaultdict(list)
_budgets = Budgets()


def _forget_after_fork() -> None:
    global _lock, _budgets
    _lock, _budgets = threading.Lock(), Budgets()
    _listening.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class InProcessNotifier(Notifier):
    def send(self, hints: Collection[Hint]) -> None:
        with _lock:
            listening = list(_listening[self.using])
        for hint in hints:
            for subscribers in listening:
                subscribers(hint)

    def connect(self, subscribers: Subscribers) -> Listener:
        return _InProcessListener(self.using, subscribers)

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return _budgets.take(hint, most, group)


class _InProcessListener(Listener):
    def __init__(self, using: str, subscribers: Subscribers) -> None:
        self._using, self._subscribers = using, subscribers
        with _lock:
            _listening[using].append(subscribers)
        subscribers.look(self.kinds)

    def close(self) -> None:
        with _lock:
            _listening[self._using].remove(self._subscribers)
