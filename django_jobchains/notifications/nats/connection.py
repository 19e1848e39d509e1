"""The connection of a process to NATS: starts and stops its thread, also around forks and at the end of the process."""

import atexit
import os
import threading
import weakref
from collections.abc import Collection, Mapping
from typing import Any

from django_jobchains.notifications.hints import KINDS, Hint, HintKind
from django_jobchains.notifications.nats.budgets import WakeBudgets
from django_jobchains.notifications.nats.listener import NatsListener
from django_jobchains.notifications.nats.outbox import MAX_WAITING, Outbox, OutboxFull
from django_jobchains.notifications.nats.thread import NatsThread
from django_jobchains.notifications.subscriptions import Subscribers


class NatsConnection:
    """A connection to NATS that any thread may use.

    Its own thread starts when it is first needed. After a fork, the child starts another one.
    """

    def __init__(self, name: str, options: Mapping[str, Any], prefix: str, budgets: WakeBudgets) -> None:
        self.budgets = budgets
        self.subjects: dict[HintKind, str] = {kind: f"{prefix}.{kind}" for kind in KINDS}
        self._name = name
        self._options = options
        self._reset()
        _connections.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._outbox = Outbox(self.subjects)
        self._thread: NatsThread | None = None
        self._has_sent = False

    def forget_parent(self) -> None:
        """Start again in a forked child: the thread, the socket and the listeners belong to the parent."""
        _kept_for_parents.append(self._thread)
        self._reset()

    def send(self, hints: Collection[Hint]) -> None:
        """Hand hints to the thread. Raises ``OutboxFull`` if too many wait for the server already."""
        with self._lock:
            self._has_sent = True
            dropped = self._outbox.add(hints)
            thread = self._started_thread()
        thread.wake()
        if dropped:
            raise OutboxFull(
                f"{dropped} of {len(hints)} hints were dropped, because {MAX_WAITING} wait for the NATS server already"
            )

    def flush(self) -> None:
        """Wait until the server has received what was sent, for one second at most."""
        with self._lock:
            thread = self._thread
            is_needed = thread and self._has_sent and (thread.is_connected or self._outbox)
        if thread and is_needed:
            thread.flush()

    def listen(self, subscribers: Subscribers) -> NatsListener:
        listener = NatsListener(f"{self._name}-hints", self.subjects, subscribers, self._stop_if_idle)
        with self._lock:
            thread = self._started_thread()
            thread.add(listener)
        thread.wake()
        return listener

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        """See ``Notifier.take``. Waits for a fifth of a second at most."""
        thread = self._thread
        if hint.count is None or not hint.id or thread is None or not thread.is_connected:
            return None
        return thread.take(hint, limit, group)

    def close(self) -> None:
        """Send what waits, and stop the thread unless there are listeners."""
        self.flush()
        with self._lock:
            self._has_sent = False
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        with self._lock:
            thread = self._thread
            is_idle = thread is not None and not thread.has_listeners and not self._has_sent
            if is_idle:
                self._thread = None
        if thread:
            thread.stop() if is_idle else thread.wake()

    def _started_thread(self) -> NatsThread:
        if self._thread is None:
            self._thread = NatsThread(self._name, self._options, self._outbox, self.budgets)
        return self._thread


_connections: weakref.WeakSet[NatsConnection] = weakref.WeakSet()
#: Threads of parents, kept in a forked child so that none of their resources are cleaned up.
_kept_for_parents: list[object] = []


def _forget_parents() -> None:
    for connection in list(_connections):
        connection.forget_parent()


def _close_connections() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_forget_parents)
# A command that enqueues and ends at once still has to send its hints.
atexit.register(_close_connections)
