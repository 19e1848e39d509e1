"""Hints between threads of one process: for a worker that runs inside the program that enqueues, and for tests."""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection

from django_jobchains.notifications.base import LOOK, Hint, Listener, Notifier

_lock = threading.Lock()
_callbacks: dict[str, list[Callable[[Hint], None]]] = defaultdict(list)


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _callbacks.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class InProcessNotifier(Notifier):
    def send(self, hints: Collection[Hint]) -> None:
        with _lock:
            callbacks = list(_callbacks[self.using])
        for hint in hints:
            for on_hint in callbacks:
                on_hint(hint)

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return _InProcessListener(self.using, on_hint)


class _InProcessListener(Listener):
    def __init__(self, using: str, on_hint: Callable[[Hint], None]) -> None:
        self._using, self._on_hint = using, on_hint
        with _lock:
            _callbacks[using].append(on_hint)
        for hint in LOOK:
            on_hint(hint)

    def close(self) -> None:
        with _lock:
            _callbacks[self._using].remove(self._on_hint)
