"""What a process sends over NATS, who listens in it, and the one connection of them all."""

import atexit
import os
import threading
import weakref
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from django_jobchains.notifications.hints import Hint, HintKind, encode
from django_jobchains.notifications.nats_budgets import WakeBudgets
from django_jobchains.notifications.nats_listener import NatsListener
from django_jobchains.notifications.nats_thread import NatsThread

#: Hints of different subjects that wait for a server that is away. More are dropped.
MOST_WAITING = 1_000


class OutboxFull(Exception):
    """So many hints wait for the server that no more are kept."""


class NatsConnection:
    """Called from any thread. Its own thread starts when it is first needed; after a fork the child starts another."""

    def __init__(self, name: str, options: Mapping[str, Any], prefix: str, budgets: WakeBudgets) -> None:
        self.name = name
        self.options = options
        self.budgets = budgets
        self._prefix = prefix
        self._forget()
        _connections.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hint, Hint] = {}
        self._listeners: tuple[NatsListener, ...] = ()
        self._left: tuple[NatsListener, ...] = ()
        self._thread: NatsThread | None = None
        self._has_sent = False

    def forget_parent(self) -> None:
        """In a forked child: the thread, the socket and those who listen are the parent's."""
        _of_parents.append(self._thread)
        self._forget()

    def subject(self, kind: HintKind) -> str:
        return f"{self._prefix}.{kind}"

    @property
    def is_connected(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_connected

    # Sending

    def send(self, hints: Collection[Hint]) -> None:
        with self._lock:
            self._has_sent = True
            dropped = [hint for hint in hints if not self._keep(hint)]
            thread = self._started()
        thread.wake()
        if dropped:
            raise OutboxFull(f"{len(dropped)} of {len(hints)} were dropped, {MOST_WAITING} wait for the NATS server")

    def _keep(self, hint: Hint) -> bool:
        """Those of one kind and subject are one, so that a server may be away for long."""
        waiting = self._waiting.pop(hint, None)
        if waiting:
            known = None not in (waiting.count, hint.count)
            count = (waiting.count or 0) + (hint.count or 0) if known else None
            hint = replace(hint, count=count, id=hint.id if known else "")
        elif len(self._waiting) >= MOST_WAITING:
            return False
        self._waiting[hint] = hint
        return True

    def waiting(self) -> list[tuple[str, bytes]]:
        """Subjects and messages to send now. They are not kept: to lose them with their connection is allowed."""
        with self._lock:
            hints, self._waiting = list(self._waiting), {}
        return [(self.subject(hint.kind), encode(hint).encode(errors="replace")) for hint in hints]

    def flush(self) -> None:
        """Waits a second at most until what was sent is at the server."""
        with self._lock:
            thread = self._thread
            is_needed = thread and self._has_sent and (thread.is_connected or self._waiting)
        if thread and is_needed:
            thread.flush()

    # Listening

    @property
    def listeners(self) -> tuple[NatsListener, ...]:
        return self._listeners

    def attach(self, listener: NatsListener) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)
            thread = self._started()
        thread.wake()

    def detach(self, listener: NatsListener) -> None:
        """The thread goes with the last listener, where nothing is sent."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
            self._left = (*self._left, listener)
            is_idle = not self._listeners and not self._has_sent
            thread = self._thread
            if is_idle:
                self._thread, self._left = None, ()
        if thread:
            thread.stop() if is_idle else thread.wake()

    def left(self) -> tuple[NatsListener, ...]:
        """Those that no longer listen, and are still subscribed."""
        with self._lock:
            left, self._left = self._left, ()
        return left

    def raise_denied(self) -> None:
        if thread := self._thread:
            thread.raise_denied()

    # Wake budgets

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        """See ``Notifier.take``. Waits for a fifth of a second at most."""
        thread = self._thread
        if hint.count is None or not hint.id or thread is None or not thread.is_connected:
            return None
        return thread.take(hint, most, group)

    def close(self) -> None:
        """Sends what waits, and ends the thread unless somebody listens."""
        self.flush()
        with self._lock:
            self._has_sent = False
            thread = None if self._listeners else self._thread
            if thread:
                self._thread = None
        if thread:
            thread.stop()

    def _started(self) -> NatsThread:
        if self._thread is None or not self._thread.is_alive:
            self._thread = NatsThread(self)
        return self._thread


_connections: weakref.WeakSet[NatsConnection] = weakref.WeakSet()
#: Kept in a forked child as they are: what would be cleaned up is the parent's.
_of_parents: list[object] = []


def _forget_parents() -> None:
    for connection in list(_connections):
        connection.forget_parent()


def _close_all() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_forget_parents)
# A command that enqueues and ends at once has its hints still to send.
atexit.register(_close_all)
