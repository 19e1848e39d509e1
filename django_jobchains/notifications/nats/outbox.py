"""Hints that wait to be sent over NATS."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from threading import Lock

from django_jobchains.notifications.hints import Hint, HintKind, encode

#: Hints with different subjects that are kept while the server is unavailable.
MAX_WAITING = 1_000


class OutboxFull(Exception):
    """Hints were dropped because too many wait for the server already."""


class Outbox:
    """Keeps hints until they are sent. May be used from any thread.

    Hints with the same kind and subject are merged, so that the server may be unavailable for long.
    """

    def __init__(self, subjects: Mapping[HintKind, str]) -> None:
        self._subjects = subjects
        self._lock = Lock()
        self._waiting: dict[Hint, Hint] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, hints: Collection[Hint]) -> int:
        """Keep hints, and return how many were dropped instead."""
        with self._lock:
            return sum(not self._keep(hint) for hint in hints)

    def take(self) -> list[tuple[str, bytes]]:
        """Remove all hints and return their subjects and messages. They may get lost with their connection."""
        with self._lock:
            hints, self._waiting = list(self._waiting), {}
        return [(self._subjects[hint.kind], encode(hint).encode(errors="replace")) for hint in hints]

    def _keep(self, hint: Hint) -> bool:
        waiting = self._waiting.pop(hint, None)
        if waiting:
            is_known = None not in (waiting.count, hint.count)
            count = (waiting.count or 0) + (hint.count or 0) if is_known else None
            hint = replace(hint, count=count, id=hint.id if is_known else "")
        elif len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting[hint] = hint
        return True
